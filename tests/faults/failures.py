"""Ranks that fail by themselves: what is told, and what follows."""

import re
import time

from place import expect, sh
from table import row


@row(26, "an exception in the user's function", "message and rank in the card")
def exception(place):
    code, _, err = place.run("run", "-q", "-n", "2", place.probe(), "throw")
    expect(code != 0 and "the reactor is too hot" in err and "rank 1 failed first" in err, err)
    return "rank 1, 'the reactor is too hot'"


@row(27, "a peer fails of the first death, faster to exit", "the first death by time is the cause")
def first_death(place):
    script = "if [ $RANK = 1 ]; then echo $$ >pid; sleep 0.2; kill -9 $$; fi; while [ ! -s pid ]; do :; done; " \
             "while [ -e /proc/$(cat pid)/exe ] 2>/dev/null; do :; done; exit 1"
    right = 0
    for _ in range(10):
        (place.folder / "pid").unlink(missing_ok=True)
        _, _, err = place.run("run", "-q", "-n", "2", *sh(script))
        right += "rank 1 failed first" in err
    expect(right == 10, f"right in {right} of 10")
    return "right in 10 of 10, the peer exiting at once"


@row(29, "a rank ends with 0 while others run", "told, and bounded")
def early_end(place):
    job = place.start("run", "-q", "-n", "2", "--timeout", "20", *sh("[ $RANK = 0 ] || sleep 1000"))
    err = job.communicate(timeout=60)[1].decode()
    expect("rank 0 has ended with exit code 0" in err and job.returncode == 124, err)
    return "told after 10 s; --timeout ended the job with 124"


@row(30, "a rank fails again and again", "the budget is the job's")
def budget(place):
    code, out, err = place.run("run", "-q", "-n", "2", "--max-restarts", "2", *sh(
        "echo attempt; : > spoke$MUSTER_ATTEMPT$RANK; [ $RANK = $((MUSTER_ATTEMPT % 2)) ] || sleep 100; "
        "until [ -e spoke$MUSTER_ATTEMPT$((1 - RANK)) ]; do sleep 0.02; done; exit 3"))
    expect(code == 3 and out.count("attempt") == 6 and "restart 2 of 2" in err, err)
    return "3 attempts in all, whichever rank failed; exit code 3"


@row(60, "a job that fails at once, again and again", "longer and longer pauses between its starts")
def restart_storm(place):
    start = time.monotonic()
    code, out, err = place.run("run", "-q", "-n", "1", "--max-restarts", "4", *sh("echo attempt; exit 3"))
    took = time.monotonic() - start
    pauses = re.findall(r"starting all ranks again(?: in ([\d.]+)s)? \(restart", err)
    expect(code == 3 and out.count("attempt") == 5 and pauses == ["", "1.0", "2.0", "4.0"] and took >= 7, f"{pauses} {took} {err}")
    return "pauses of 0, 1, 2 and 4 s before the four restarts"
