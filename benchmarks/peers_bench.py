#!/usr/bin/env python3
"""One task as each launcher's user writes it in Python: how many lines, and what comes of it. A markdown table.

    PYTHONPATH=python MUSTER_PROGRAM=build/release/bin/muster MUSTER_LIBRARY=build/release/lib/libmuster.so.0 \\
        PYTHON benchmarks/peers_bench.py [PEER...]

PYTHON has torch, and those of the peers that are to run: accelerate, lightning-fabric, torchrunx, submitit, joblib, ray[train].
A peer that is not installed is skipped, with a line. The programs are in benchmarks/peers: `fit` and `evaluate` at the same time on
a device each, with their results, and a training of two ranks with rank 0's value. Lines are those of a program that are
neither empty nor comments. Then rank 1 of the training is killed: does the program end, does it say which rank died of what, and how many of its processes are there ten seconds later?
PEERS_SHOW=1 shows what it says.
"""
import importlib.metadata
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple, Optional

PROGRAMS = pathlib.Path(__file__).resolve().parent / "peers"
LIMIT_SECONDS = 200
LINGER_SECONDS = 10
# What is installed for it, and what a user calls it.
PEERS = {
    "muster": ("muster", "`muster`"),
    "torchrun": ("torch", "torchrun"),
    "elastic_launch": ("torch", "torchrun's `elastic_launch`"),
    "accelerate": ("accelerate", "Accelerate's `notebook_launcher`"),
    "fabric": ("lightning-fabric", "Lightning Fabric's `launch`"),
    "torchrunx": ("torchrunx", "torchrunx"),
    "submitit": ("submitit", "submitit, `local`"),
    "joblib": ("joblib", "joblib"),
    "ray": ("ray[train]", "Ray"),
}
FUNCTIONS = "['slope 3.00', 'sum 45']"
RANK_1 = re.compile(r"rank[ :_-]*1\b|process 1\b|local_rank: 1\b|worker 1\b", re.IGNORECASE)
DEATH = re.compile(r"error|fail|terminat|kill|died", re.IGNORECASE)
SIGKILL = re.compile(r"SIGKILL|Signal 9\b|exit ?code:? *-9\b", re.IGNORECASE)


def version_of(peer):
    """None where it is not installed."""
    try:
        if peer == "muster":
            import muster
            return muster.__version__
        return importlib.metadata.version(PEERS[peer][0].partition("[")[0])
    except ImportError:  # PackageNotFoundError is one
        return None


def lines_of(name):
    lines = (PROGRAMS / f"{name}.py").read_text(encoding="utf-8").splitlines()
    return sum(1 for line in lines if line.strip() and not line.strip().startswith("#"))


def command_of(peer, task):
    starts = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if peer == "torchrun" else []
    return [sys.executable, "-B", *starts, str(PROGRAMS / f"{peer}_{task}.py")]


def processes_of(folder):
    """Those that were started with this folder, and their children."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"PYTHON_PEERS_FOLDER={folder}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:  # it has ended, or is another user's
            pass
    return found


def end_what_is_left(folder):
    """How many processes outlive the program; they are ended."""
    until = time.monotonic() + LINGER_SECONDS
    while processes_of(folder) and time.monotonic() < until:
        time.sleep(0.1)
    left = processes_of(folder)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return len(left)


class Run(NamedTuple):
    """What came of a program."""
    code: Optional[int]  # None: it did not end
    last: str  # of the lines that it printed
    said: str
    killed: bool  # whether rank 1 was
    left: int  # processes


def run(peer, task, kills=False):
    with tempfile.TemporaryDirectory(prefix="muster-peers-", ignore_cleanup_errors=True) as folder:
        path = os.pathsep.join(filter(None, [str(PROGRAMS), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHON_PEERS_FOLDER": folder, "OMP_NUM_THREADS": "1"}
        if kills:
            pathlib.Path(folder, "kill").touch()
        process = subprocess.Popen(command_of(peer, task), cwd=folder, env=environment, stdin=subprocess.DEVNULL, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        try:
            out, err = process.communicate(timeout=LIMIT_SECONDS)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            code = None
        last = ([""] + [line for line in out.splitlines() if line.strip()])[-1]
        return Run(code, last, out + err, pathlib.Path(folder, "killed").exists(), end_what_is_left(folder))


def right(peer, task, expected):
    """What it printed, which must be what the others print."""
    done = run(peer, task)
    if done.code != 0 or (expected and done.last != expected):
        sys.exit(f"{peer}, {task}: expected {expected or 'a loss'}, got exit code {done.code} and '{done.last}'\n{done.said[-3000:]}")
    return done.last


def row(peer, loss):
    right(peer, "functions", FUNCTIONS)
    loss = right(peer, "training", loss)
    done = run(peer, "training", kills=True)
    if not done.killed or done.code == 0:
        sys.exit(f"{peer}: expected a death of rank 1 and an exit code, got {done.code}\n{done.said[-3000:]}")
    of_death = "\n".join(line for line in done.said.splitlines() if DEATH.search(line))
    names = [what for what, sign in (("the rank", RANK_1), ("the signal", SIGKILL)) if sign.search(of_death)]
    cells = [PEERS[peer][1], version_of(peer), lines_of(f"{peer}_functions"), lines_of(f"{peer}_training"),
             "no" if done.code is None else "yes", " and ".join(names) or "neither", done.left]
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
    if os.environ.get("PEERS_SHOW"):
        print(done.said, file=sys.stderr)
    return loss


def main():
    wanted = sys.argv[1:] or list(PEERS)
    unknown = [peer for peer in wanted if peer not in PEERS]
    if unknown:
        sys.exit(f"peers_bench.py: expected {', '.join(PEERS)}, got '{unknown[0]}'")
    if version_of("torchrun") is None:
        sys.exit(f"peers_bench.py: expected a Python with torch, got {sys.executable}; start it with another")
    print(f"torch {version_of('torchrun')}, Python {sys.version.split()[0]}, {os.cpu_count()} cores\n")
    print("| | version | lines: two functions | lines: training | a rank is killed: the program ends | it names | processes left |")
    print("|---|---|---|---|---|---|---|", flush=True)
    loss = None
    for peer in wanted:
        if version_of(peer) is None:
            print(f"skipped: {peer}: '{PEERS[peer][0]}' is not installed", file=sys.stderr)
            continue
        loss = row(peer, loss)


if __name__ == "__main__":
    main()
