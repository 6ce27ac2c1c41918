"""What ranks print: too much of it, not text, and nowhere to put it."""

import os
import pathlib
import subprocess
import time

import time_limit
from agents import two_agents
from hosts import cmdline, wait_for
from page import told
from place import Skip, expect, rss, sh
from table import row


def peak_with_line(place, size):
    """The launcher's memory at most, with a line of so many bytes without an end."""
    job = place.start("run", "-q", "-n", "2", *sh(
        f"[ $RANK = 0 ] && head -c {size} /dev/zero | tr '\\0' x; exit 0"), seconds=200)
    counter = place.start("-c", "tr -cd x | wc -c", program="sh", stdin=job.stdout, seconds=200)
    job.stdout.close()
    most = 0
    while job.poll() is None:
        try:
            most = max(most, rss(job.pid))
        except (OSError, AttributeError):
            pass
        time.sleep(0.01)  # between samples
    came = int(counter.communicate(timeout=60)[0])
    expect(job.returncode == 0 and came == size, f"exit code {job.returncode}, {came} of {size} bytes came out")
    return most


@row(41, "a line of 1 GiB without an end", "memory bounded")
def endless_line(place):
    short, most = (peak_with_line(place, size) for size in (32 << 20, 1 << 30))
    most_told = told(41, "takes less than () MiB") * (1 << 20)
    expect(most < min(most_told, short + (16 << 20)), f"{most >> 20} MiB, {short >> 20} with one of 32 MiB")
    return f"the launcher took {most / (1 << 20):.1f} MiB at most"


@row(42, "output that is no UTF-8", "the same bytes")
def bytes_pass(place):
    (place.folder / "bytes").write_bytes(bytes(b for b in range(256) if b not in (10, 13)) + b"\n")
    job = place.start("run", "-q", "-n", "1", "cat", "bytes")
    out, _ = job.communicate(timeout=30)
    expect(out == (place.folder / "bytes").read_bytes(), repr(out))
    return "all 254 came through"


@row(43, "log disk full", "the rank goes on")
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
    return "warned, and output went on"


@row(93, "a reader that stops", "a pipe loses nothing; a signal and a time limit end the job")
def stopped_reader(place):
    write = "head -c 8000000 /dev/zero | tr '\\0' x; touch written"
    job = place.start("run", "-q", "-n", "1", *sh(write), bufsize=0)
    expect(len(job.stdout.read(1)) == 1 and not (place.folder / "written").exists(), "the pipe holds 8 MB?")
    out, _ = job.communicate(timeout=60)  # it is read on
    expect(job.returncode == 0 and len(out) == 7999999, f"exit code {job.returncode}, {len(out)} bytes")
    (place.folder / "written").unlink()
    ends_without_a_reader(place, write)
    hosts_end_without_readers(place, write)
    return "it got all when it went on; a signal and a time limit ended the job, a death its ranks"


def has_written(job):
    """Whether the job writes a byte before it ends; no more of it is read."""
    return len(job.stdout.read(1)) == 1


def limited_job(place, *arguments):
    """A job that has written a byte before its time limit."""
    def begin(limit):
        job = place.start("run", "-q", "--timeout", str(limit), *arguments, bufsize=0)
        return job if has_written(job) else None

    return time_limit.after(begin)


def ends_without_a_reader(place, write):
    """Jobs of whose output a byte is read, and no more: a signal and a time limit end them, a death ends their ranks."""
    stopped = place.start("run", "-q", "-n", "1", *sh(write), bufsize=0)
    dies = f"[ $RANK = 1 ] || {{ {write}; }}; until [ -e dies ]; do sleep 0.02; done; kill -9 $$"
    failed = place.start("run", "-q", "-n", "2", *sh(dies), bufsize=0)
    for job in (stopped, failed):
        expect(has_written(job), "nothing was written")
    limited = limited_job(place, "-n", "1", *sh(write))
    late = limited_job(place, "-n", "2", *sh(dies))
    stopped.terminate()
    (place.folder / "dies").touch()
    for job, codes in ((stopped, (143,)), (limited, (124,)), (late, (137, 124))):  # the limit may come first
        said = job.stderr.read().decode()
        place.hear(said)
        expect(job.wait(timeout=30) in codes, f"exit code {job.returncode}, not of {codes}: {said}")
        expect("of output not shown on standard output: the reader has stopped" in said, said)
    wait_for(lambda: not ranks_of(failed.pid), 30)
    expect(failed.poll() is None, "nothing of a pipe is lost")
    out, err = failed.communicate(timeout=30)
    expect(failed.returncode == 137 and out, f"exit code {failed.returncode} {err}")


def hosts_end_without_readers(place, write):
    """One host does not wait for who reads the output of another."""
    def begin(script, *flags):
        agents = two_agents(place, f"echo up; {script}", first=flags, second=flags)
        have_written = [has_written(agent) for agent in agents]
        return agents if all(have_written) else None

    dies = f"[ $RANK = 1 ] || {{ {write}; }}; until [ -e ends ]; do sleep 0.02; done; exit 3"
    limited = time_limit.after(lambda limit: begin(write, "--timeout", str(limit)))
    failed = begin(dies)
    expect(failed, "nothing was written")
    (place.folder / "ends").touch()
    for agents, code in ((limited, 124), (failed, 3)):
        for agent in agents:
            said = agent.stderr.read().decode()
            place.hear(said)
            expect(agent.wait(timeout=30) == code, f"exit code {agent.returncode}, not {code}: {said}")


def ranks_of(pid):
    """The processes that this launcher has started and that are still there, but for its sentinel, a copy of it."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if cmdline(child) != cmdline(pid)]


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
