"""Several hosts' agents, all on loopback: hosts that come, differ, leave and die."""

import os
import re
import signal
import socket
import subprocess
import time

from failures import all_wait_for_one
from hosts import wait_for
from place import at_once, expect, read_until, sh
from table import row

# No last call; and a host that is only slow is not given up: connections tell of those that die.
SOON = "last_call_timeout=0,keep_alive_interval=60,keep_alive_max_attempt=10"


def two_agents(place, script, first=(), second=(), nnodes="2", second_nnodes=None, envs=(None, None)):
    """Two hosts' agents; the port is held by a socket that never listens."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    place.holder = holder
    common = ["run", "-q", "-n", "1", "--rdzv-endpoint", f"127.0.0.1:{holder.getsockname()[1]}"]
    if ":" in nnodes:
        common += ["--rdzv-backend", "c10d", "--rdzv-conf", SOON]
    return [place.start(*common, "--nnodes", size, *(["--node-rank", str(i)] if ":" not in nnodes else []), *more, *sh(script), env=envs[i])
            for i, (size, more) in enumerate(((nnodes, first), (second_nnodes or nnodes, second)))]


def server_first(place, first, second):
    """The two agents, the one that serves the rendezvous first: whichever listens on its port."""
    port = place.holder.getsockname()[1]
    listening = subprocess.run(["ss", "-ltnpH", f"sport = :{port}"], capture_output=True, text=True).stdout
    return (second, first) if f"pid={second.pid}," in listening else (first, second)


@row(4, "SIGTERM to an elastic agent", "the others go on without it")
def term_elastic(place):
    script = "trap 'sleep 0.5; echo saved >>saved; exit 0' TERM; echo world $WORLD_SIZE; " \
             "[ $MUSTER_ATTEMPT -gt 0 ] && [ $WORLD_SIZE = 1 ] && exit 0; while :; do sleep 0.02; done"
    first, second = two_agents(place, script, nnodes="1:2")
    read_until(first, "world 2"), read_until(second, "world 2")
    server, victim = server_first(place, first, second)
    before = saved(place)
    victim.terminate()
    victim.communicate(timeout=60)
    expect(victim.returncode == 143, f"exit code {victim.returncode}")
    out, err = server.communicate(timeout=60)
    expect(server.returncode == 0 and b"world 1" in out, out + err)
    expect(saved(place) == before + 2, "the ranks of both hosts had time to save")
    first, second = two_agents(place, "echo world $WORLD_SIZE; exec sleep 1000", nnodes="1:2")
    read_until(first, "world 2"), read_until(second, "world 2")
    server, other = server_first(place, first, second)
    server.terminate()
    server.communicate(timeout=60), other.communicate(timeout=60)
    expect(server.returncode == 143 and other.returncode not in (0, None), f"{server.returncode} {other.returncode}")
    place.gone_after(30)
    return "it ended with 143, the other went on alone and ended with 0; the one that serves ends the job"


def saved(place):
    """How many ranks have saved by now."""
    file = place.folder / "saved"
    return len(file.read_text().split()) if file.exists() else 0


@row(5, "the host of the store dies", "clean exit of the others")
def store_dies(place):
    first, second = two_agents(place, "echo up; sleep 1000")
    read_until(first, "up"), read_until(second, "up")
    first.kill()
    start = time.monotonic()
    out, err = second.communicate(timeout=60)
    expect(second.returncode == 1 and b"the host that serves the rendezvous is gone" in err, err)
    took = time.monotonic() - start
    at_once(took)
    place.gone_after(30)
    return f"exit code 1, said so, after {took:.2f} s; nothing left"


@row(6, "the store's node finishes early", "the others are not affected")
def store_ends_early(place):
    first, second = two_agents(place, "[ $RANK = 0 ] && exit 0; sleep 1; echo rank 1 is done")
    out, err = second.communicate(timeout=60)
    first.wait(timeout=60)
    expect((first.returncode, second.returncode) == (0, 0) and b"is done" in out, err)
    return "both ended with 0"


@row(8, "one node crashes", "all end")
def node_crashes(place):
    first, second = two_agents(place, "echo up; sleep 1000")
    read_until(first, "up"), read_until(second, "up")
    second.kill()
    start = time.monotonic()
    err = first.communicate(timeout=60)[1]
    expect(first.returncode == 1 and b"is gone" in err, err)
    took = time.monotonic() - start
    at_once(took)
    place.gone_after(30)
    resumed_with_another(place)
    return f"the other ended {took:.2f} s later, exit code 1, host named; with --max-restarts, another took its place"


def resumed_with_another(place):
    """The same, and the job goes on when the host is there again."""
    script = "echo up $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT = 1 ] || exec sleep 1000"
    restarts = ["--max-restarts", "1"]
    first, second = two_agents(place, script, first=restarts, second=restarts)
    read_until(first, "up 0"), read_until(second, "up 0")
    second.kill()
    read_until(first, "waiting for another", first.stderr)
    third = place.start(*second.args[1:])
    for job in (first, third):
        out, err = job.communicate(timeout=60)
        expect(job.returncode == 0 and b"up 1" in out, out + err)


@row(80, "a rank aborts, and ranks of another host fail of that", "the cards of both hosts name it")
def cause_of_another_host(place):
    for ends_by, code, cause in (("kill -ABRT $$", 134, "killed by SIGABRT"), ("exit 3", 3, "exit code 3")):
        script = all_wait_for_one(place, 5, ends_by)
        agents = two_agents(place, script, first=["-n", "4"], second=["-n", "4"])
        for agent in agents:
            err = agent.communicate(timeout=60)[1].decode()
            expect(agent.returncode == code and re.search(f"rank 5 .*{cause}", err), f"{agent.returncode} {err}")
            expect(not re.search(r"rank [^5] failed first", err), err)
    return "by SIGABRT and by an exit code, on both"


@row(18, "two hosts with one number", "the second is refused")
def duplicate_rank(place):
    first, second = two_agents(place, "true", nnodes="3")
    third = place.start(*second.args[1:])
    ended = []
    wait_for(lambda: ended.extend(p for p in (second, third) if p.poll() is not None) or ended, 60)
    err = ended[0].communicate()[1].decode()
    expect(ended[0].returncode == 1 and "expected a different number on every host, got 1" in err, err)
    others = [process for process in (first, second, third) if process is not ended[0]]
    expect(all(process.poll() is None for process in others), "the job goes on")
    for process in others:
        process.terminate()
    return "refused with both hosts named"


@row(19, "hosts that were told different sizes", "both are printed")
def world_sizes(place):
    first, second = two_agents(place, "true", second_nnodes="3")
    out, err = second.communicate(timeout=60)
    expect(second.returncode == 1 and b"got 3 on host" in err and b"and 2 on the host" in err, err)
    first.terminate()
    return "got 3 on one host and 2 on the other: refused"


@row(20, "a host never comes", "the missing one is listed")
def missing_host(place):
    first, second = two_agents(place, "true", first=["--rdzv-conf", "join_timeout=10"], nnodes="3")
    for host in (first, second):
        err = host.communicate(timeout=60)[1]
        expect(host.returncode == 1 and b"missing: node rank 2" in err, err)
    return "both: 'expected 3 hosts within 10.0s, got 2 ..., missing: node rank 2'"


@row(51, "a host lost below the minimum", "waits, then all start together")
def below_minimum(place):
    script = "echo world $WORLD_SIZE; [ $MUSTER_ATTEMPT = 1 ] && exit 0; sleep 1000"
    first, second = two_agents(place, script, nnodes="2:3")
    read_until(first, "world 2"), read_until(second, "world 2")
    server, victim = server_first(place, first, second)
    victim.kill()
    read_until(server, "is gone; ", server.stderr)
    expect(server.poll() is None, "it ended")
    third = place.start(*victim.args[1:])
    for job in (server, third):
        out, err = job.communicate(timeout=60)
        expect(job.returncode == 0 and b"world 2" in out, out + err)
    return "waited; with a new host both started as one world of 2"


@row(52, "a worker killed in an elastic job", "the others go on")
def worker_killed(place):
    script = "echo world $WORLD_SIZE $RANK $$; [ $MUSTER_ATTEMPT -gt 0 ] && [ $WORLD_SIZE = 2 ] && [ -e end ] && exit 0; " \
             "exec sleep 1000"
    restarts = ["--max-restarts", "2"]
    first, second = two_agents(place, script, nnodes="1:2", first=restarts, second=restarts)
    said = [read_until(job, "world 2") for job in (first, second)]
    pids = dict(re.search(r"world 2 (\d+) (\d+)", text).groups() for text in said)  # of ranks
    (place.folder / "end").touch()
    os.kill(int(pids["1"]), signal.SIGKILL)
    for job in (first, second):
        out, err = job.communicate(timeout=60)
        expect(job.returncode == 0 and b"world 2" in out, out + err)
    return "all ranks started again as a world of 2 and ended with 0"
