"""What ranks print: too much of it, not text, and nowhere to put it."""

import os
import subprocess
import time

from hosts import wait_for
from place import Skip, expect, rss, sh
from table import row


def peak_with_line(place, size):
    """The launcher's memory at most, with a line of so many bytes without an end."""
    job = place.start("run", "-q", "-n", "2", *sh(
        f"[ $RANK = 0 ] && head -c {size} /dev/zero | tr '\\0' x; exit 0"), stdout=subprocess.DEVNULL, seconds=200)
    most = 0
    while job.poll() is None:
        try:
            most = max(most, rss(job.pid))
        except (OSError, AttributeError):
            pass
        time.sleep(0.01)  # between samples
    expect(job.returncode == 0, f"exit code {job.returncode}")
    return most


@row(41, "a line of 1 GiB without an end", "memory bounded")
def endless_line(place):
    short, most = (peak_with_line(place, size) for size in (32 << 20, 1 << 30))
    expect(most < min(32 << 20, short + (16 << 20)), f"{most >> 20} MiB, {short >> 20} with one of 32 MiB")
    return f"the launcher took {most / (1 << 20):.1f} MiB at most"


@row(42, "output that is no UTF-8", "the same bytes")
def bytes_pass(place):
    (place.folder / "bytes").write_bytes(bytes(b for b in range(256) if b not in (10, 13)) + b"\n")
    job = place.start("run", "-q", "-n", "1", "cat", "bytes")
    out, _ = job.communicate(timeout=30)
    expect(out == (place.folder / "bytes").read_bytes(), repr(out))
    return "all 254 came through"


@row(43, "log disk full; a reader that stops", "the rank goes on; a pipe loses nothing")
def full_disk(place):
    mount = place.folder / "logs"
    mount.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mount)],
                                           capture_output=True).returncode != 0:
        raise Skip("no tmpfs can be mounted")
    try:
        code, _, err = place.run("run", "-q", "-n", "1", "--tee", "1", "--log-dir", "logs", *sh(
            "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end >&2"))
        expect(code == 0 and "ends here: No space left" in err and "end" in err, err[-500:])
    finally:
        subprocess.run(["umount", "-l", str(mount)])
    write = "head -c 8000000 /dev/zero | tr '\\0' x; touch written"
    job = place.start("run", "-q", "-n", "1", *sh(write), bufsize=0)
    expect(len(job.stdout.read(1)) == 1 and not (place.folder / "written").exists(), "the pipe holds 8 MB?")
    out, _ = job.communicate(timeout=60)  # it is read on
    expect(job.returncode == 0 and len(out) == 7999999, f"exit code {job.returncode}, {len(out)} bytes")
    (place.folder / "written").unlink()
    job = place.start("run", "-q", "-n", "1", *sh(write), bufsize=0)
    expect(len(job.stdout.read(1)) == 1, "nothing was written")  # and no more of it
    job.terminate()
    expect(job.wait(timeout=30) == 143, f"exit code {job.returncode}")
    return "full disk: warned, output went on; stopped reader: it got all when it went on; SIGTERM ended the job"


@row(81, "a job starts in the folder of one that runs", "it is refused, and logs of earlier starts are kept")
def folder_in_use(place):
    flags = ("run", "-q", "-n", "2", "--run-dir", "run", "--tee", "1")
    first = place.start(*flags, *sh("echo first $RANK; touch here$RANK; while [ ! -e go ]; do sleep 0.01; done"))
    wait_for(lambda: (place.folder / "here0").exists() and (place.folder / "here1").exists(), 60)
    code, out, err = place.run(*flags, *sh("echo second $RANK"))
    expect(code == 1 and not out, f"{code} {out}")
    expect(f"expected no job that still writes there, got one (process {first.pid} on " in err, err)
    (place.folder / "go").touch()
    first.communicate(timeout=60)
    expect(first.returncode == 0, f"exit code {first.returncode}")
    code, _, err = place.run(*flags, *sh("echo third $RANK"))
    expect(code == 0, err)
    logs = place.folder / "run" / "logs"
    for rank in (0, 1):
        expect((logs / f"0/{rank}.out").read_text() == f"third {rank}\n", "the newest start has logs/0")
        expect((logs / f"earlier-1/0/{rank}.out").read_text() == f"first {rank}\n", "the first start's logs are kept")
    return "refused while it ran; the logs of both starts are there"
