"""Ranks that share memory: calls that differ, memory that is not there, and what is left of it."""

import json
import os
import pathlib
import re
import signal
import subprocess

from hosts import wait_for
from machine import memory_group, remove_group
from place import Skip, expect, read_until
from table import row


@row(22, "collectives that differ between ranks", "both sides shown, on every rank")
def different_calls(place):
    code, _, err = place.run("run", "-q", "-n", "2", place.probe(), "shapes")
    expect(code == 1 and "Float [4]" in err and "Float [5]" in err, err)
    # No rank is ended by another's error here, so that each writes its own.
    code, _, err = place.run("run", "-q", "-n", "2", "--on-failure", "continue", "--run-dir", f"{place.folder}/run", place.probe(), "shapes")
    told = [json.loads((place.folder / f"run/logs/0/{rank}.error.json").read_text())["message"]["message"] for rank in (0, 1)]
    expect(code == 1 and all("Float [4]" in message and "Float [5]" in message for message in told), f"{code} {told} {err}")
    return f"on both ranks: {re.search('collective #.*', told[1])[0][:90]}"


@row(45, "/dev/shm full; few addresses; no memory left in the control group", "not needed; an error, no SIGBUS")
def no_memory(place):
    probe = place.probe()
    full = f"mount -t tmpfs -o size=64k none /dev/shm && head -c 1M /dev/zero >/dev/shm/full; exec {place.muster} " \
           f"run -q -n 2 {probe} place"
    # Not without rights, and not where the root is no mount point (a chroot).
    if subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"], capture_output=True).returncode != 0:
        raise Skip("no mount namespace can be made")
    job = place.start("-m", "sh", "-c", full, program="unshare")
    err = job.communicate(timeout=60)[1].decode()
    expect(job.returncode == 0, err)
    job = place.start("-c", f"ulimit -v 10000000; exec {place.muster} run -q -n 2 --env MUSTER_BACKEND=shm {probe} place",
                      program="sh")
    err = job.communicate(timeout=60)[1].decode()
    expect(job.returncode == 0 and "2 ranks over shm" in err, err)
    group = memory_group("muster-shm", 2 << 30)
    try:
        run = f"exec {place.muster} run -q -n 2 {probe} room"
        job = place.start("-c", f"echo $$ >{group}/cgroup.procs; {run}", program="sh")
        err = job.communicate(timeout=60)[1].decode()
        said = re.search("shared memory: expected 4.0 GiB to be free[^;]*", err)
        expect(said and job.returncode == 1, err)
        return f"a full /dev/shm and few addresses are not noticed; '{said.group(0)}'"
    finally:
        place.gone_after(30)
        remove_group(group)


def holders_of_shared_memory(of=None):
    """Processes that hold muster's shared memory, by which: all of it, or the one that is meant."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(entry).startswith("/memfd:muster "):
                found.setdefault(os.stat(entry).st_ino, set()).add(int(entry.parts[2]))
        except OSError:
            pass
    return found if of is None else found.get(of, set())


@row(46, "a job that shares memory is killed", "none of it is left")
def leftover(place):
    before = set(os.listdir("/dev/shm"))
    job = place.start("run", "-q", "-n", "2", place.probe(), "hold")
    rank = int(re.search(r"pid (\d+) holds", read_until(job, "holds")).group(1))
    memory = next(inode for inode, pids in holders_of_shared_memory().items() if rank in pids)
    pids = holders_of_shared_memory(memory)
    expect(len(pids) == 2, "both ranks hold it")
    os.kill(job.pid, signal.SIGKILL)
    place.gone_after(30)
    wait_for(lambda: not holders_of_shared_memory(memory), 30)
    left = [name for name in set(os.listdir("/dev/shm")) - before  # others' may come meanwhile
            if "muster" in name or any(str(pid) in name for pid in pids)]
    expect(not left, f"left in /dev/shm: {left}")
    return "nobody holds it any more; nothing in /dev/shm"
