"""What the machine does to a job: its file systems, memory, processes and clock."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from clock import FakedClock
from hosts import wait_for
from page import told
from place import Skip, expect, read_until, sh, state_of
from table import row


def remove_group(group):
    """Removes a control group once the last process in it is gone."""
    def removed():
        try:
            group.rmdir()
        except OSError:
            return False
        return True
    wait_for(removed, 30)


@row(9, "a rank in D state", "bounded end, process named")
def d_state(place):
    tools = [tool for tool in ("fsfreeze", "mkfs.ext4") if shutil.which(tool, path=place.environment["PATH"])]
    if os.geteuid() != 0 or len(tools) < 2:
        raise Skip("needs root, fsfreeze and mkfs.ext4")
    image, mount = place.folder / "disk", place.folder / "mnt"
    mount.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 32 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", str(image)], capture_output=True, env=place.environment)
    if made.returncode != 0 or subprocess.run(["mount", "-o", "loop", str(image), str(mount)],
                                              capture_output=True).returncode != 0:
        raise Skip("no loop mounts here")
    try:
        job = place.start("run", "-q", "-n", "1", "--shutdown-timeout", "1", *sh(
            f"echo up $$; while :; do echo x >{mount}/f; done"))
        pid = int(re.search(r"up (\d+)", read_until(job, "up")).group(1))
        if subprocess.run(["fsfreeze", "-f", str(mount)], capture_output=True, env=place.environment).returncode != 0:
            raise Skip("the file system cannot be frozen")
        try:
            wait_for(lambda: state_of(pid) == "D", 60)
            start = time.monotonic()
            job.terminate()
            err = job.communicate(timeout=60)[1].decode()
            took = time.monotonic() - start
            expect("could not end" in err and "state D" in err, err)
            expect(took > 1 + told(9, ", () s after SIGKILL"), f"ended after {took:.1f} s, of which 1 s is the grace period")
            return f"launcher ended after {took:.1f} s and named the process in state D"
        finally:
            subprocess.run(["fsfreeze", "-u", str(mount)], env=place.environment)
            place.gone_after(30)
    finally:
        subprocess.run(["umount", "-l", str(mount)])


def memory_group(name, limit):
    """A control group with at most so many bytes."""
    root = pathlib.Path("/sys/fs/cgroup/memory")
    group = (root if root.exists() else pathlib.Path("/sys/fs/cgroup")) / f"{name}-{os.getpid()}"
    try:
        group.mkdir()
        (group / ("memory.limit_in_bytes" if root.exists() else "memory.max")).write_text(str(limit))
    except OSError as error:
        raise Skip(f"no memory control group can be made ({error.strerror})") from None
    return group


@row(28, "the kernel kills a rank for memory", "the card says so")
def oom(place):
    group = memory_group("muster-fault", 64 << 20)
    try:
        (place.folder / "eat.sh").write_text("x=$(head -c 200000000 /dev/zero | tr '\\0' x)\n")
        run = f"exec {place.muster} run -q -n 1 sh eat.sh"
        job = place.start("-c", f"echo $$ >{group}/cgroup.procs; {run}", program="sh")
        err = job.communicate(timeout=60)[1].decode()
        expect("out of memory" in err and job.returncode == 137, err)
        return f"'{re.search('out of memory[^(]*', err).group(0).strip()}', exit code {job.returncode}"
    finally:
        place.gone_after(30)
        remove_group(group)


@row(39, "the clock jumps an hour", "nothing happens")
def clock_jump(place):
    clock = FakedClock(place, monotonic=False)
    job = place.start("run", "-q", "-n", "2", "--timeout", "5m", *sh(
        "echo up $(date +%s); while [ ! -e end ]; do sleep 0.1; done; echo then $(date +%s)"), env=clock.environment)
    first = int(re.search(r"up (\d+)", read_until(job, "up")).group(1))
    for seconds in (3600, -3600):
        clock.jump_to(seconds)
        time.sleep(1)  # for the launcher to do something about it, which it must not
    (place.folder / "end").touch()
    out, err = job.communicate(timeout=60)
    then = int(re.search(rb"then (\d+)", out).group(1))
    expect(job.returncode == 0 and then - first < -3000, f"{then - first} s; {err.decode()}")
    return f"its clock went an hour forth and {first - then} s back; --timeout 5m did not end it"


@row(44, "a fork bomb under pids.max", "ended, nothing left")
def fork_bomb(place):
    root = pathlib.Path("/sys/fs/cgroup/pids")
    group = (root if root.exists() else pathlib.Path("/sys/fs/cgroup")) / f"muster-bomb-{os.getpid()}"
    try:
        group.mkdir()
        (group / "pids.max").write_text("200")
    except OSError as error:
        raise Skip(f"no pids control group can be made ({error.strerror})") from None
    try:
        run = f"exec {place.muster} run -q -n 1 --shutdown-timeout 1 --timeout 2 perl -e 'fork while 1'"
        job = place.start("-c", f"echo $$ >{group}/cgroup.procs; {run}", program="sh", stderr=subprocess.DEVNULL)
        code = job.wait(timeout=60)
        wait_for(lambda: not (group / "cgroup.procs").read_text().split(), 30)
        expect(code == 124, f"ended with {code}")
        return f"ended with {code}, nothing left in its control group"
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        remove_group(group)
