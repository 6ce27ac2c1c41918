"""Ranks that fail by themselves: what is told, and what follows."""

import json
import os
import re
import signal
import time

from hosts import wait_for
from place import expect, sh, state_of
from table import row


@row(26, "an exception in the user's function", "message and rank in the card")
def exception(place):
    code, _, err = place.run("run", "-q", "-n", "2", place.probe(), "throw")
    expect(code == 1 and err.count("the reactor is too hot") == 1 and "rank 1 failed first" in err, err)
    return "rank 1, 'the reactor is too hot'"


def all_wait_for_one(place, victim, ends_by):
    """A script of plain ranks: that rank ends so when all others wait for it, who then end with 1 and say nothing."""
    for old in place.folder.glob("waits.*"):
        old.unlink()
    gate = place.folder / "gate"
    gate.unlink(missing_ok=True)
    os.mkfifo(gate)
    return f"if [ $RANK = {victim} ]; then exec 3>gate; " \
           "until [ $(ls waits.* 2>/dev/null | wc -l) = $((WORLD_SIZE - 1)) ]; do :; done; " \
           f"{ends_by}; fi; exec 4<gate; : >waits.$RANK; read x <&4; exit 1"


@row(27, "a rank ends, and its peers fail of that, faster to exit", "the cause is named, whatever ended it")
def first_death(place):
    ends = {"kill -9 $$": (137, "killed by SIGKILL"), "kill -SEGV $$": (139, "killed by SIGSEGV"), "kill -ABRT $$": (134, "killed by SIGABRT"),
            "kill -PIPE $$": (141, "killed by SIGPIPE"), "exit 3": (3, "exit code 3")}
    tried, wrong = 0, []
    for ranks in (2, 8):
        for ends_by, (code, cause) in ends.items():
            for _ in range(3):
                script = all_wait_for_one(place, 1, ends_by)
                got, _, err = place.run("run", "-q", "-n", str(ranks), *sh(script))
                tried += 1
                if got != code or f"rank 1 failed first: {cause}" not in err:
                    wrong.append(f"{ranks} ranks, {ends_by}: {got} {err}")
    expect(not wrong, f"wrong in {len(wrong)} of {tried}: {wrong[:1]}")
    return f"right in {tried} of {tried}: five ends, 2 and 8 ranks, the peers exiting at once"


@row(76, "peers lose a rank that takes longer than 2 s to end", "no cause is named, and what is not known")
def slow_cause(place):
    script = "if [ $RANK = 1 ]; then trap 'exit 3' TERM; : >up; while :; do sleep 0.01; done; fi; until [ -e up ]; do :; done; " \
             "echo '[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:4711' >&2; exit 1"
    code, _, err = place.run("run", "-q", "-n", "2", "--run-dir", f"{place.folder}/run", *sh(script))
    expect(code == 1 and "rank 0 failed of the loss of another rank: exit code 1" in err and "failed first" not in err, err)
    expect("cause     not known: it lost another rank, and no failure of another kind had come when muster ended rank 1" in err, err)
    expect(json.loads((place.folder / "run/failure.json").read_text())["doubt"].startswith("not known"), "failure.json")
    return "'failed of the loss of another rank', and rank 1 to look at"


def ended_in_one_moment(place, ranks, last_words):
    """All end while the launcher is stopped, so that it sees their ends at once: its exit code and what it says."""
    for left in [place.folder / "go", *place.folder.glob("pid*")]:
        left.unlink(missing_ok=True)
    job = place.start("run", "-q", "-n", str(ranks), *sh(
        f"echo $$ >new.pid$RANK; mv new.pid$RANK pid$RANK; until [ -e go ]; do sleep 0.02; done; {last_words}"))
    pids = [place.folder / f"pid{rank}" for rank in range(ranks)]
    wait_for(lambda: all(pid.exists() for pid in pids), 60)
    job.send_signal(signal.SIGSTOP)
    wait_for(lambda: state_of(job.pid) == "T", 60)
    (place.folder / "go").touch()
    wait_for(lambda: all(state_of(pid.read_text().strip()) == "Z" for pid in pids), 60)
    job.send_signal(signal.SIGCONT)
    err = job.communicate(timeout=60)[1].decode()
    return job.returncode, err


@row(77, "ranks end in one moment, and say nothing", "that which was first is not certain")
def alike(place):
    code, err = ended_in_one_moment(place, 4, "exit 1")
    expect(code == 1 and re.search(r"cause     not certain: ranks? [\d, ]+ ended alike in the same moment", err), err)
    for signal_name, code_of_signal in (("ABRT", 134), ("PIPE", 141)):
        for code_of_other in (1, 3):
            code, err = ended_in_one_moment(place, 2, f"[ $RANK = 0 ] && exit {code_of_other}; kill -{signal_name} $$")
            expect(code == code_of_signal and "cause     not certain: rank 0 ended in the same moment, and said no more" in err, err)
    return "the others are listed with it"


@row(78, "a Python rank crashes", "the line, in the card")
def python_crash(place):
    (place.folder / "crash.py").write_text("import ctypes\n\ndef read_nowhere():\n    ctypes.string_at(0)\n\nread_nowhere()\n")
    code, _, err = place.run("run", "-q", "-n", "1", "python3", "crash.py")
    expect(code == 139 and re.search(r'File ".*crash.py", line 4 in read_nowhere', err), err)
    code, out, _ = place.run("run", "-q", "-n", "1", *sh("echo $PYTHONFAULTHANDLER"), env={"PYTHONFAULTHANDLER": "0"})
    expect(code == 0 and out.strip() == "0", out)
    return "line 4, in read_nowhere; exit code 139"


@row(29, "a rank ends with 0 while others run", "told, and bounded")
def early_end(place):
    job = place.start("run", "-q", "-n", "2", "--timeout", "20", *sh("[ $RANK = 0 ] || sleep 1000"))
    err = job.communicate(timeout=60)[1].decode()
    expect("rank 0 has ended with exit code 0" in err and job.returncode == 124, err)
    return "told; --timeout ended the job with 124"


@row(30, "a rank fails again and again", "the budget is the job's")
def budget(place):
    code, out, err = place.run("run", "-q", "-n", "2", "--max-restarts", "2", *sh(
        "echo attempt; : > spoke$MUSTER_ATTEMPT$RANK; [ $RANK = $((MUSTER_ATTEMPT % 2)) ] || sleep 100; "
        "until [ -e spoke$MUSTER_ATTEMPT$((1 - RANK)) ]; do sleep 0.02; done; exit $((3 + MUSTER_ATTEMPT))"))
    expect(code == 5 and out.count("attempt") == 6 and "restart 2 of 2" in err, err)
    return "3 attempts in all, whichever rank failed; exit code 5, of the last"


@row(60, "a job that fails at once, again and again", "longer and longer pauses between its starts")
def restart_storm(place):
    start = time.monotonic()
    code, out, err = place.run("run", "-q", "-n", "1", "--max-restarts", "4", *sh("echo attempt; exit 3"))
    took = time.monotonic() - start
    pauses = re.findall(r"starting all ranks again(?: in ([\d.]+)s)? \(restart", err)
    expect(code == 3 and out.count("attempt") == 5 and pauses == ["", "1.0", "2.0", "4.0"] and took >= 7, f"{pauses} {took} {err}")
    return "pauses of 0, 1, 2 and 4 s before the four restarts"
