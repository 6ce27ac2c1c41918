#!/usr/bin/env python3
"""Agents of one job, each of which stands for a host, all on this machine: how long until they have met, planned, run a
program that does nothing, and ended. Prints what they took, and what limits how many there can be.

    agents_bench.py MUSTER [--agents 100,300,1000] [--program true]
"""

import argparse
import os
import resource
import socket
import sys
import tempfile
import time

BAR_AGENTS, BAR_SECONDS = 1000, 10
PATIENT = "join_timeout=120,keep_alive_interval=60,keep_alive_max_attempt=10"  # a busy machine loses no agent


class Watched:
    """What one process has at most, looked at now and then."""

    def __init__(self, pid):
        self.folder, self.descriptors, self.threads = f"/proc/{pid}", 0, 0

    def look(self):
        try:
            self.descriptors = max(self.descriptors, len(os.listdir(f"{self.folder}/fd")))
            self.threads = max(self.threads, len(os.listdir(f"{self.folder}/task")))
        except OSError:  # it has ended
            pass


def start(args, agents, number, endpoint, folder, environment):
    """The agent writes its own folder and log, so that a failure can be read afterwards."""
    with open(f"{folder}/{number}.log", "wb") as log:
        place = f"{folder}/{number}"
        os.mkdir(place)
        command = [args.muster, "run", "--nnodes", str(agents), "--node-rank", str(number), "--rdzv-endpoint", endpoint,
                   "--rdzv-conf", PATIENT, "-n", "1", "-q", "--run-dir", f"{place}/run", args.program]
        out = [(os.POSIX_SPAWN_DUP2, log.fileno(), 1), (os.POSIX_SPAWN_DUP2, log.fileno(), 2)]
        return os.posix_spawn(args.muster, command, environment, file_actions=out)


def measure(args, agents):
    with socket.socket() as held, tempfile.TemporaryDirectory() as folder:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{held.getsockname()[1]}"
        held.close()
        os.mkdir(f"{folder}/runtime", 0o700)
        environment = dict(os.environ, MUSTER_RUNTIME_DIR=f"{folder}/runtime")
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        running = {start(args, agents, number, endpoint, folder, environment): number for number in range(agents)}
        started = time.monotonic()
        first, failed = Watched(next(iter(running))), []
        while running:
            first.look()
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                time.sleep(0.02)
                continue
            number = running.pop(pid)
            if status != 0:
                failed.append(number)
        took = time.monotonic() - began
        for number in failed[:3]:
            with open(f"{folder}/{number}.log", encoding="utf-8", errors="replace") as log:
                print(f"agent {number}: {log.read()[-500:]}", file=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    print(f"  {agents:6d} {started - began:9.2f} {took:9.2f} {user:9.2f} {system:9.2f} {1e3 * (user + system) / agents:12.1f}"
          f" {after.ru_maxrss / 1024:10.1f} {first.descriptors:12d} {first.threads:8d}", flush=True)
    if failed:
        sys.exit(f"expected {agents} agents to end well, got {len(failed)} that did not")
    if agents == BAR_AGENTS:
        print(f"{BAR_AGENTS} agents against the bar of {BAR_SECONDS} s: ratio {took / BAR_SECONDS:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("muster")
    parser.add_argument("--agents", default="100,300,1000")
    parser.add_argument("--program", default="true")
    args = parser.parse_args()
    args.muster = os.path.abspath(args.muster)
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    print(f"descriptors a process: {most} of {hard}; processes: {resource.getrlimit(resource.RLIMIT_NPROC)[0]}")
    print("  agents  started     ended      user    system  ms an agent   MB (most)  descriptors  threads   of the first agent")
    for agents in args.agents.split(","):
        measure(args, int(agents))


if __name__ == "__main__":
    main()
