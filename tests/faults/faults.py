"""Injects faults into jobs of the real `muster` and prints what was expected and what was seen.

    faults.py MUSTER [--probe run_probe] [--rows 1,3,27] [--json]

Each row is a fault that users of launchers have met, by the number under which docs/faults.md lists it. Exits with
1 when a row is not as expected. Rows that cannot be injected here say so (root, a package, a file system).
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from hosts import SKIPPED, Hosts, missing, wait_for

ARGS = None
ROWS = []


class Skip(Exception):
    pass


def row(number, injected, expected):
    def add(function):
        ROWS.append((number, injected, expected, function))
        return function
    return add


def expect(condition, seen):
    if not condition:
        raise AssertionError(seen)


class Place:
    """A folder and environment of a row's own, and a job in it."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-fault-"))
        (self.folder / "runtime").mkdir(mode=0o700)
        self.environment = {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "HOME": str(self.folder),
                            "XDG_RUNTIME_DIR": str(self.folder / "runtime"), "CUDA_VISIBLE_DEVICES": "",
                            "OMP_NUM_THREADS": "1"}
        self.running = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.running:
            if process.poll() is None:
                process.kill()
        for pid in self.left():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, *args, program=None, env=None, **more):
        more.setdefault("stdout", subprocess.PIPE)
        more.setdefault("stderr", subprocess.PIPE)
        more.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen([program or ARGS.muster, *args], env=dict(self.environment, **(env or {})),
                                   cwd=self.folder, start_new_session=True, **more)
        self.running.append(process)
        timer = threading.Timer(80, process.kill)  # so that no row hangs
        timer.daemon = True
        timer.start()
        return process

    def run(self, *args, timeout=60, **more):
        process = self.start(*args, **more)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, (out or b"").decode(errors="replace"), (err or b"").decode(errors="replace")

    def left(self):
        """Processes that came from this row: by their working folder."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if str(self.folder) in os.readlink(entry / "cwd") and (entry / "stat").read_text().split(") ")[1][0] != "Z":
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def gone_after(self, seconds):
        start = time.monotonic()
        wait_for(lambda: not self.left(), seconds)
        return time.monotonic() - start


def sh(script):
    return ["sh", "-c", script]


def read_until(process, text):
    seen = b""
    while text.encode() not in seen:
        line = process.stdout.readline()
        if not line:
            said = process.stderr.read().decode(errors="replace")
            raise AssertionError(f"no '{text}' but: {seen.decode(errors='replace')} {said}")
        seen += line
    return seen.decode(errors="replace")


def two_agents(place, script, first=(), second=(), nnodes="2"):
    """Two hosts' agents on loopback; the port is held by a socket that never listens."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    place.holder = holder
    common = ["run", "-q", "-n", "1", "--nnodes", nnodes, "--rdzv-endpoint", f"127.0.0.1:{holder.getsockname()[1]}"]
    if ":" in nnodes:
        common += ["--rdzv-backend", "c10d", "--rdzv-conf", "last_call_timeout=0,keep_alive_interval=1,keep_alive_max_attempt=5"]
    return [place.start(*common, *(["--node-rank", str(i)] if ":" not in nnodes else []), *more, *sh(script))
            for i, more in enumerate((first, second))]


def server_first(place, first, second):
    """The two agents, the one that serves the rendezvous first: whichever listens on its port."""
    port = place.holder.getsockname()[1]
    listening = subprocess.run(["ss", "-ltnpH", f"sport = :{port}"], capture_output=True, text=True).stdout
    return (second, first) if f"pid={second.pid}," in listening else (first, second)


def probe():
    if not ARGS.probe:
        raise Skip("built without LibTorch")
    return ARGS.probe


# --- ranks ---------------------------------------------------------------------------------------------------

@row(1, "SIGKILL a rank in mid all-reduce", "others end, card names it, all start again")
def kill_in_all_reduce(place):
    job = place.start("run", "-q", "-n", "2", "--max-restarts", "1", probe(), "reduce")
    pids = dict(re.findall(r"rank (\d) pid (\d+)", read_until(job, "reduces") + read_until(job, "reduces")))
    start = time.monotonic()
    os.kill(int(pids["1"]), signal.SIGKILL)
    again = read_until(job, "reduces")
    took = time.monotonic() - start
    rank0 = int(pids["0"])
    expect(not pathlib.Path(f"/proc/{rank0}").exists(), "the other rank lives on")
    job.terminate()
    err = job.communicate(timeout=30)[1].decode()
    expect("rank 1 failed: killed by SIGKILL" in err, err)
    return f"rank 1 named, {len(re.findall('reduces', again))} rank reduces again after {took:.2f} s"


@row(2, "SIGKILL in a sub-group's first collective", "the same")
def kill_in_subgroup(place):
    code, _, err = place.run("run", "-q", "-n", "3", "--cpu-slots", "3", probe(), "subgroup")
    expect(code == 137 and "rank 1 failed first: killed by SIGKILL" in err, err)
    return "rank 1 named, exit code 137"


@row(3, "SIGKILL the launcher", "no process left in 1 s")
def kill_launcher(place):
    job = place.start("run", "-q", "-n", "2", *sh("sleep 1000 & setsid sleep 1000 & echo up; sleep 1000"))
    read_until(job, "up"), read_until(job, "up")
    job.kill()
    took = place.gone_after(5)
    expect(took < 1, f"{took:.2f} s")
    return f"all gone after {took * 1000:.0f} ms"


@row(4, "SIGTERM to an elastic agent", "the others go on without it")
def term_elastic(place):
    first, second = two_agents(
        place, "echo world $WORLD_SIZE; [ $MUSTER_ATTEMPT -gt 0 ] && [ $WORLD_SIZE = 1 ] && exit 0; sleep 1000", nnodes="1:2")
    read_until(first, "world 2"), read_until(second, "world 2")
    server, victim = server_first(place, first, second)
    victim.terminate()
    expect(victim.wait(timeout=30) == 143, f"exit code {victim.returncode}")
    out, err = server.communicate(timeout=30)
    expect(server.returncode == 0 and b"world 1" in out, out + err)
    return "it ended with 143, the other went on alone and ended with 0"


@row(5, "the host of the store dies", "clean exit of the others")
def store_dies(place):
    first, second = two_agents(place, "echo up; sleep 1000")
    read_until(first, "up"), read_until(second, "up")
    first.kill()
    start = time.monotonic()
    out, err = second.communicate(timeout=30)
    expect(second.returncode == 1 and b"the host that serves the rendezvous is gone" in err, err)
    took = time.monotonic() - start
    place.gone_after(2)
    return f"exit code 1, said so, after {took:.2f} s; nothing left"


@row(6, "the store's node finishes early", "the others are not affected")
def store_ends_early(place):
    first, second = two_agents(place, "[ $RANK = 0 ] && exit 0; sleep 1; echo rank 1 is done")
    out, err = second.communicate(timeout=30)
    first.wait(timeout=30)
    expect((first.returncode, second.returncode) == (0, 0) and b"is done" in out, err)
    return "both ended with 0"


@row(7, "restart", "no key of the attempt before is read")
def stale_keys(place):
    code, out, err = place.run("run", "-q", "-n", "2", "--max-restarts", "1", "sh", "-c",
                               f"{probe()} place && [ $MUSTER_ATTEMPT = 1 ] || exit 1", timeout=60)
    expect(code == 0 and out.count("rank 0 local 0 of 2") == 2, out + err)
    return "the second attempt met anew under its own keys"


@row(8, "one node crashes", "all end")
def node_crashes(place):
    first, second = two_agents(place, "echo up; sleep 1000")
    read_until(first, "up"), read_until(second, "up")
    second.kill()
    start = time.monotonic()
    err = first.communicate(timeout=30)[1]
    expect(first.returncode == 1 and b"is gone" in err, err)
    took = time.monotonic() - start
    place.gone_after(2)
    return f"the other ended {took:.2f} s later, exit code 1, host named"


@row(9, "a rank in D state", "bounded end, process named")
def d_state(place):
    if os.geteuid() != 0 or not shutil.which("fsfreeze", path=place.environment["PATH"]):
        raise Skip("needs root and fsfreeze")
    image, mount = place.folder / "disk", place.folder / "mnt"
    mount.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 32 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", str(image)], capture_output=True, env=place.environment)
    if made.returncode != 0 or subprocess.run(["mount", "-o", "loop", str(image), str(mount)], capture_output=True).returncode != 0:
        raise Skip("no loop mounts here")
    try:
        job = place.start("run", "-q", "-n", "1", "--shutdown-timeout", "1", *sh(f"echo up; while :; do echo x >{mount}/f; done"))
        read_until(job, "up")
        if subprocess.run(["fsfreeze", "-f", str(mount)], capture_output=True, env=place.environment).returncode != 0:
            raise Skip("the file system cannot be frozen")
        try:
            time.sleep(0.3)
            start = time.monotonic()
            job.terminate()
            err = job.communicate(timeout=30)[1].decode()
            took = time.monotonic() - start
            expect("could not end" in err and "state D" in err, err)
            return f"launcher ended after {took:.1f} s and named the process in state D"
        finally:
            subprocess.run(["fsfreeze", "-u", str(mount)], env=place.environment)
            place.gone_after(5)
    finally:
        subprocess.run(["umount", "-l", str(mount)])


@row(10, "a rank's grandchildren", "ended with it")
def grandchildren(place):
    code, _, err = place.run("run", "-q", "-n", "2", *sh("(setsid sleep 1000 &) ; (sh -c 'trap \"\" TERM; sleep 1000' &); sleep 0.2"))
    took = place.gone_after(1)
    expect(code == 0, err)
    return "a daemonised one and one that ignores SIGTERM: gone"


@row(11, "SIGSTOP a rank", "it is named; --stopped-timeout ends it")
def stopped_rank(place):
    job = place.start("run", "-q", "-n", "2", "--stopped-timeout", "3", *sh("echo $$; exec sleep 1000"))
    pid = int(re.search(r"\[1\] (\d+)", read_until(job, "[1] ")).group(1))
    os.kill(pid, signal.SIGSTOP)
    err = job.communicate(timeout=30)[1].decode()
    expect("rank 1" in err and "is stopped" in err and "ending it" in err and job.returncode == 137, err)
    return "named within 1 s, ended after 3 s, exit code 137"


@row(13, "the port is taken", "the holder is named")
def port_taken(place):
    holder = socket.socket()
    holder.bind(("0.0.0.0", 0))
    holder.listen()
    port = holder.getsockname()[1]
    code, _, err = place.run("run", "-q", "-n", "1", "--master-port", str(port), "true")
    expect(code != 0 and f"process {os.getpid()}" in err, err)
    return f"exit code {code}; named process and port"


# --- the store -----------------------------------------------------------------------------------------------

def store_port(place, *flags):
    """A job whose store's port is known; the job sleeps."""
    job = place.start("run", "-q", "-n", "1", *flags, *sh("echo $MUSTER_STORE; sleep 1000"))
    return job, int(re.search(r":(\d+)", read_until(job, "tcp://")).group(1))


@row(16, "the store out of descriptors", "a client is refused, the server lives")
def out_of_descriptors(place):
    job = place.start("-c", f"ulimit -n 64; exec {ARGS.muster} run -q -n 1 sh -c 'echo $MUSTER_STORE; sleep 1000'", program="sh")
    port = int(re.search(r":(\d+)", read_until(job, "tcp://")).group(1))
    strangers = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(100)]
    expect(job.poll() is None, "the launcher ended")
    for stranger in strangers:
        stranger.close()
    late = socket.create_connection(("127.0.0.1", port), 5)
    greeting = late.recv(8)
    expect(greeting == b"muster1\n", f"greeting {greeting!r}")
    job.terminate()
    expect(job.wait(timeout=30) == 143, "it did not end")
    return "100 connections at a limit of 64: the job lives and greets the next one"


@row(17, "port scan and garbage at the store", "dropped, memory bounded")
def garbage(place):
    job, port = store_port(place)
    before = rss(job.pid)
    chance = random.Random(7)
    for i in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as stranger:
                stranger.sendall(chance.randbytes(chance.choice([0, 1, 63, 64, 65, 100_000])))
        except (ConnectionResetError, BrokenPipeError):
            pass
    half_open = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(300)]
    grown = rss(job.pid) - before
    expect(job.poll() is None and grown < 8 << 20, f"grew by {grown >> 10} KiB")
    for connection in half_open:
        connection.close()
    job.terminate()
    expect(job.wait(timeout=30) == 143, "it did not end")
    return f"200 garbled and 300 half-open connections: alive, grew by {grown >> 10} KiB"


def rss(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) << 10


@row(18, "two hosts with one number", "the second is refused")
def duplicate_rank(place):
    first, second = two_agents(place, "true", nnodes="3")
    third = place.start(*[a for a in second.args[1:]])
    ended = []
    wait_for(lambda: ended.extend(p for p in (second, third) if p.poll() is not None) or ended, 20)
    err = ended[0].communicate()[1].decode()
    expect(ended[0].returncode == 1 and "expected one host with 1" in err, err)
    for process in (first, second, third):
        process.terminate()
    return "refused with both hosts named"


@row(19, "hosts that were told different sizes", "both are printed")
def world_sizes(place):
    first, second = two_agents(place, "true")
    other = [a if a != "2" else "3" for a in second.args[1:]]
    second.kill()
    third = place.start(*other)
    out, err = third.communicate(timeout=30)
    expect(third.returncode == 1 and b"got 3 on host" in err and b"and 2 on the host" in err, err)
    first.terminate()
    return "got 3 on one host and 2 on the other: refused"


@row(20, "a host never comes", "the missing one is listed")
def missing_host(place):
    first, second = two_agents(place, "true", first=["--rdzv-conf", "join_timeout=2"], nnodes="3")
    out, err = first.communicate(timeout=30)
    expect(first.returncode == 1 and b"missing: node rank 2" in err, err)
    return "after 2 s: 'got 2 ..., missing: node rank 2'"


# --- failures and restarts -----------------------------------------------------------------------------------

@row(26, "an exception in the user's function", "message and rank in the card")
def exception(place):
    code, _, err = place.run("run", "-q", "-n", "2", probe(), "throw")
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


@row(28, "the kernel kills a rank for memory", "the card says so")
def oom(place):
    root = pathlib.Path("/sys/fs/cgroup/memory")
    unified = pathlib.Path("/sys/fs/cgroup/cgroup.controllers")
    group = (root if root.exists() else pathlib.Path("/sys/fs/cgroup")) / f"muster-fault-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if root.exists() else "memory.max")
        limit.write_text("64M" if unified.exists() else str(64 << 20))
    except OSError as error:
        raise Skip(f"no memory control group can be made ({error.strerror})") from None
    try:
        (place.folder / "eat.sh").write_text("x=$(head -c 200000000 /dev/zero | tr '\\0' x)\n")
        job = place.start("-c", f"echo $$ >{group}/cgroup.procs; exec {ARGS.muster} run -q -n 1 sh eat.sh", program="sh")
        err = job.communicate(timeout=60)[1].decode()
        expect("out of memory" in err and job.returncode != 0, err)
        return f"'{re.search('out of memory[^(]*', err).group(0).strip()}', exit code {job.returncode}"
    finally:
        place.gone_after(5)
        group.rmdir()


@row(29, "a rank ends with 0 while others run", "told, and bounded")
def early_end(place):
    job = place.start("run", "-q", "-n", "2", "--timeout", "14", *sh("[ $RANK = 0 ] || sleep 1000"))
    err = job.communicate(timeout=60)[1].decode()
    expect("rank 0 has ended with exit code 0" in err and job.returncode == 124, err)
    return "told after 10 s; --timeout ended the job with 124"


@row(30, "a rank fails again and again", "the budget is the job's")
def budget(place):
    code, out, err = place.run("run", "-q", "-n", "2", "--max-restarts", "2", *sh("echo attempt; [ $RANK = $((MUSTER_ATTEMPT % 2)) ] && exit 3; sleep 100"))
    expect(code == 3 and out.count("attempt") == 6 and "restart 2 of 2" in err, err)
    return "3 attempts in all, whichever rank failed; exit code 3"


# --- networks ------------------------------------------------------------------------------------------------

class Network:
    """Two hosts with a network between them, made once for all rows that need one."""

    lock = threading.Lock()

    def __enter__(self):
        self.lock.acquire()
        try:
            if why := missing():
                raise Skip(why)
            self.hosts = Hosts(["a", "b"]).__enter__()
            return self.hosts
        except BaseException:
            self.lock.release()
            raise

    def __exit__(self, *_):
        self.hosts.__exit__()
        self.lock.release()


def elastic_over(hosts, script, conf="keep_alive_interval=1,keep_alive_max_attempt=4"):
    return hosts["a"].start([ARGS.muster, "run", "-q", "--hosts", "a:1,b:1", "--nnodes", "1:2", "--rdzv-conf",
                             f"last_call_timeout=20,{conf}", "sh", "-c", script])


GOES_ON = "echo world $WORLD_SIZE; [ $WORLD_SIZE = 1 ] && exit 0; sleep 1000"


@row(36, "a partition, A|B", "one side goes on, the other is fenced")
def partition(_):
    with Network() as hosts:
        job = elastic_over(hosts, GOES_ON)
        job.stdout.readline(), job.stdout.readline()
        start = time.monotonic()
        hosts["b"].cut()
        out, err = job.communicate(timeout=60)
        took = time.monotonic() - start
        expect(job.returncode == 0 and "world 1" in out, out + err)
        wait_for(lambda: not any(b"sleep" in cmdline(pid) for pid in hosts["b"].processes()), 20)
        return f"A alone after {took:.1f} s; B has ended its rank"


@row(37, "an asymmetric partition: B hears, is not heard", "the same")
def asymmetric(_):
    with Network() as hosts:
        job = elastic_over(hosts, GOES_ON)
        job.stdout.readline(), job.stdout.readline()
        hosts["b"].run(["ip", "route", "add", "blackhole", "10.77.0.1/32"])
        out, err = job.communicate(timeout=90)
        expect(job.returncode == 0 and "world 1" in out, out + err)
        wait_for(lambda: not any(b"sleep" in cmdline(pid) for pid in hosts["b"].processes()), 30)
        return "A went on alone, B ended its rank"


@row(38, "a slow link", "no false death")
def slow_link(_):
    with Network() as hosts:
        for host in hosts:
            host.slow_down("64kbit")
        job = elastic_over(hosts, "echo world $WORLD_SIZE; sleep 12; exit 0", "keep_alive_interval=1,keep_alive_max_attempt=5")
        out, err = job.communicate(timeout=120)
        expect(job.returncode == 0 and out.count("world 2") == 2 and "world 1" not in out, out + err)
        return "64 kbit/s for 12 s: both stayed"


def cmdline(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@row(39, "the clock jumps an hour", "nothing happens")
def clock_jump(place):
    libraries = list(pathlib.Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        raise Skip("no libfaketime (package faketime)")
    (place.folder / "time").write_text("+0")
    env = {"LD_PRELOAD": str(libraries[0]), "FAKETIME_TIMESTAMP_FILE": str(place.folder / "time"),
           "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    job = place.start("run", "-q", "-n", "2", "--timeout", "5m", *sh("echo up $(date +%s); while [ ! -e end ]; do sleep 0.1; done; echo then $(date +%s)"), env=env)
    first = int(re.search(r"up (\d+)", read_until(job, "up")).group(1))
    (place.folder / "time").write_text("+3600")
    time.sleep(1)
    (place.folder / "end").touch()
    out, err = job.communicate(timeout=60)
    then = int(re.search(rb"then (\d+)", out).group(1))
    expect(job.returncode == 0 and then - first >= 3600, f"{then - first} s; {err.decode()}")
    return f"its clock went {then - first} s; --timeout 5m did not end it"


@row(40, "the host's name means 127.0.1.1", "an address by the route, and said")
def loopback_name(_):
    with Network() as hosts:
        for host in hosts:
            names = pathlib.Path(f"/etc/netns/{host.namespace}/hosts")
            names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n" + "".join(
                f"{other.address} {other.name}\n" for other in hosts if other is not host))
        secret = hosts.folder / "secret"
        secret.write_text(os.urandom(32).hex())
        secret.chmod(0o600)
        flags = ["--nnodes", "2", "--rdzv-endpoint", "a:29400", "--secret-file", str(secret), "-q", "-n", "1"]
        jobs = [hosts[name].start([ARGS.muster, "run", *flags, "--node-rank", str(i), "sh", "-c", "echo $MASTER_ADDR"])
                for i, name in enumerate("ab")]
        ends = [job.communicate(timeout=60) for job in jobs]
        expect(all(job.returncode == 0 for job in jobs), str(ends))
        expect(all("10.77.0.1" in out for out, _ in ends) and "means 127.0.1.1 here" in ends[0][1], str(ends))
        return "MASTER_ADDR 10.77.0.1 on both; warned of /etc/hosts"


# --- output --------------------------------------------------------------------------------------------------

@row(41, "a line of 1 GiB without an end", "memory bounded")
def endless_line(place):
    job = place.start("run", "-q", "-n", "2", *sh("[ $RANK = 0 ] && head -c 1073741824 /dev/zero | tr '\\0' x; exit 0"), stdout=subprocess.DEVNULL)
    most = 0
    while job.poll() is None:
        try:
            most = max(most, rss(job.pid))
        except (OSError, AttributeError):
            pass
        time.sleep(0.01)
    expect(job.returncode == 0 and most < 32 << 20, f"{most >> 20} MiB, exit code {job.returncode}")
    return f"the launcher took {most / (1 << 20):.1f} MiB at most"


@row(42, "output that is no UTF-8", "the same bytes")
def bytes_pass(place):
    (place.folder / "bytes").write_bytes(bytes(b for b in range(256) if b not in (10, 13)) + b"\n")
    job = place.start("run", "-q", "-n", "1", "cat", "bytes")
    out, _ = job.communicate(timeout=30)
    expect(out == (place.folder / "bytes").read_bytes(), repr(out))
    return "all 254 came through"


@row(43, "log disk full; a reader that stops", "the rank never blocks for ever")
def full_disk(place):
    mount = place.folder / "logs"
    mount.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mount)], capture_output=True).returncode != 0:
        raise Skip("no tmpfs can be mounted")
    try:
        code, _, err = place.run("run", "-q", "-n", "1", "--tee", "1", "--log-dir", "logs", *sh("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end >&2"))
        expect(code == 0 and "ends here: No space left" in err and "end" in err, err[-500:])
    finally:
        subprocess.run(["umount", "-l", str(mount)])
    job = place.start("run", "-q", "-n", "1", *sh("head -c 8000000 /dev/zero | tr '\\0' x; touch written; sleep 0.1"))
    wait_for(lambda: (place.folder / "written").exists(), 30)  # nobody reads its standard output
    job.terminate()
    job.communicate(timeout=30)
    return "full disk: warned, output went on; stopped reader: the rank wrote all and ended"


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
        bomb = place.folder / "bomb.sh"
        bomb.write_text("#!/bin/sh\n$0 & $0 & wait\n")
        bomb.chmod(0o755)
        job = place.start("-c", f"echo $$ >{group}/cgroup.procs; exec {ARGS.muster} run -q -n 1 --shutdown-timeout 1 --timeout 2 ./bomb.sh", program="sh",
                          stderr=subprocess.DEVNULL)
        code = job.wait(timeout=60)
        wait_for(lambda: not (group / "cgroup.procs").read_text().split(), 10)
        return f"ended with {code}, nothing left in its control group"
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        wait_for(lambda: not (group / "cgroup.procs").read_text().split(), 10)
        group.rmdir()


# --- patience ------------------------------------------------------------------------------------------------

@row(50, "a grace longer than 30 s", "it is given")
def long_grace(place):
    job = place.start("run", "-q", "-n", "1", "--shutdown-timeout", "40", *sh("trap 'sleep 31; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"))
    read_until(job, "up")
    job.terminate()
    out, err = job.communicate(timeout=60)
    expect(b"saved" in out, err)
    return "31 s to save were given"


@row(51, "a host lost below the minimum", "waits, then all start together")
def below_minimum(place):
    script = "echo world $WORLD_SIZE; [ $MUSTER_ATTEMPT = 1 ] && exit 0; sleep 1000"
    first, second = two_agents(place, script, nnodes="2:3", first=["--rdzv-conf", "last_call_timeout=0,keep_alive_interval=1,keep_alive_max_attempt=5"])
    read_until(first, "world 2"), read_until(second, "world 2")
    server, victim = server_first(place, first, second)
    victim.kill()
    time.sleep(2)
    expect(server.poll() is None, "it ended")
    third = place.start(*victim.args[1:])
    for job in (server, third):
        out, err = job.communicate(timeout=30)
        expect(job.returncode == 0 and b"world 2" in out, out + err)
    return "waited; with a new host both started as one world of 2"


@row(52, "a worker killed in an elastic job", "the others go on")
def worker_killed(place):
    script = "echo world $WORLD_SIZE $$; [ $MUSTER_ATTEMPT -gt 0 ] && [ $WORLD_SIZE = 2 ] && [ -e end ] && exit 0; exec sleep 1000"
    first, second = two_agents(place, script, nnodes="1:2", first=["--max-restarts", "2"], second=["--max-restarts", "2"])
    read_until(first, "world 2")
    pid = int(re.search(r"world 2 (\d+)", read_until(second, "world 2")).group(1))
    (place.folder / "end").touch()
    os.kill(pid, signal.SIGKILL)
    for job in (first, second):
        out, err = job.communicate(timeout=30)
        expect(job.returncode == 0 and b"world 2" in out, out + err)
    return "all ranks started again as a world of 2 and ended with 0"


def run_row(entry):
    number, injected, expected, function = entry
    start = time.monotonic()
    try:
        with Place() as place:
            seen, state = function(place), "ok"
    except Skip as why:
        seen, state = f"skipped: {why}", "skipped"
    except Exception as error:  # whatever went wrong, the other rows are still of interest
        seen, state = f"{type(error).__name__}: {str(error)[:1500]}", "failed"
        if not isinstance(error, AssertionError):
            seen += "\n" + traceback.format_exc()[-800:]
    return {"row": number, "injected": injected, "expected": expected, "seen": seen, "state": state,
            "seconds": round(time.monotonic() - start, 1)}


def main():
    global ARGS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("muster")
    parser.add_argument("--probe", default="")
    parser.add_argument("--rows", default="")
    parser.add_argument("--json", action="store_true")
    ARGS = parser.parse_args()
    ARGS.muster = str(pathlib.Path(ARGS.muster).resolve())
    ARGS.probe = ARGS.probe and str(pathlib.Path(ARGS.probe).resolve())
    wanted = [int(number) for number in ARGS.rows.split(",") if number]
    rows = [entry for entry in ROWS if not wanted or entry[0] in wanted]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run_row, rows))
    if ARGS.json:
        print(json.dumps({"schema": "muster.faults/1", "rows": results}, indent=1))
    else:
        widths = [max(len(r["injected"]) for r in results), max(len(r["expected"]) for r in results)]
        print(f"row  {'injected':{widths[0]}}  {'expected':{widths[1]}}  seen")
        for r in results:
            mark = {"ok": " ", "skipped": "-", "failed": "!"}[r["state"]]
            print(f"{r['row']:3}{mark} {r['injected']:{widths[0]}}  {r['expected']:{widths[1]}}  {r['seen']}")
    failed = [r["row"] for r in results if r["state"] == "failed"]
    print(f"{len(results) - len(failed)} of {len(results)} rows as expected"
          + (f"; not: {failed}" if failed else ""), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
