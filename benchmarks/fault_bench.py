#!/usr/bin/env python3
"""How soon a death is known, made good and cleaned up after: muster and its peers, in one run, taking turns.

    fault_bench.py MUSTER [--python PYTHON] [--rounds 5]

death -> all gone: one of two ranks is killed; until the other rank and the launcher have ended.
death -> restarted: the same with one restart; until a new rank runs.
launcher killed -> ranks gone: SIGKILL to the launcher. A peer whose ranks live on for 5 s is given "never".
RSS: of the launcher, with its ranks running (all of its processes that are no ranks).
"""

import argparse
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

RANK = '#!/bin/sh\ntouch "$1/$$"\nexec sleep 1000\n'  # a file: torchrun replaces dollar signs in arguments
GIVE_UP = 5.0


def launchers(args):
    python = args.python
    script = pathlib.Path(tempfile.mkdtemp(prefix="muster-fault-bench-")) / "rank.sh"
    script.write_text(RANK)
    script.chmod(0o755)
    sleeper = [str(script)]
    found = {"muster": ([args.muster, "run", "-q", "-n", "2"], ["--max-restarts", "1"], sleeper)}
    torch = subprocess.run([python, "-c", "import torch.distributed.run"], capture_output=True).returncode == 0
    if torch:
        found["torchrun"] = ([python, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"],
                             ["--max-restarts", "1"], sleeper)
    if shutil.which("mpiexec.hydra"):
        found["hydra"] = (["mpiexec.hydra", "-n", "2"], None, sleeper)
    if shutil.which("mpirun.openmpi"):
        found["Open MPI"] = (["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2"], None, sleeper)
    return found


class Job:
    def __init__(self, command, program):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-fault-bench-"))
        self.pids_folder = self.folder / "pids"
        self.pids_folder.mkdir()
        env = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
        self.launcher = subprocess.Popen([*command, *program, str(self.pids_folder)], cwd=self.folder, env=env,
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         start_new_session=True)
        self.wait_for_ranks(2)

    def ranks(self):
        return sorted(int(name) for name in os.listdir(self.pids_folder))

    def wait_for_ranks(self, count):
        end = time.monotonic() + 60
        while len(self.ranks()) < count:
            if time.monotonic() > end:
                raise RuntimeError("ranks did not start")
            time.sleep(0.001)

    def close(self):
        for pid in [self.launcher.pid, *self.ranks()]:
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.launcher.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def until(condition):
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > GIVE_UP:
            return None
        time.sleep(0.0005)
    return (time.monotonic() - start) * 1000


def death_to_gone(command, program):
    job = Job(command, program)
    try:
        killed, other = job.ranks()
        os.kill(killed, signal.SIGKILL)
        return until(lambda: not alive(other) and job.launcher.poll() is not None)
    finally:
        job.close()


def death_to_restart(command, program):
    job = Job(command, program)
    try:
        os.kill(job.ranks()[0], signal.SIGKILL)
        return until(lambda: len(job.ranks()) == 4)
    finally:
        job.close()


def launcher_to_gone(command, program):
    job = Job(command, program)
    try:
        ranks = job.ranks()
        job.launcher.kill()
        return until(lambda: not any(alive(pid) for pid in ranks))
    finally:
        job.close()


def launcher_rss(command, program):
    job = Job(command, program)
    try:
        ranks = set(job.ranks())
        total = 0
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in ranks:
                continue
            try:
                ours = os.getsid(int(entry.name)) == job.launcher.pid or int(entry.name) == job.launcher.pid
                if ours:
                    status = (entry / "status").read_text()
                    total += int(status.split("VmRSS:")[1].split()[0])
            except (OSError, IndexError):
                pass
        return total / 1024
    finally:
        job.close()


def show(values):
    good = [value for value in values if value is not None]
    return f"{min(good):.1f} / {statistics.median(good):.1f}" if len(good) == len(values) else "never"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("muster")
    parser.add_argument("--python", default="python3")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.muster = str(pathlib.Path(args.muster).resolve())
    if os.sep in args.python:  # jobs run in folders of their own; a name alone is looked for in PATH
        args.python = os.path.abspath(args.python)  # not resolve(): a link to a python makes another of it
    found = launchers(args)
    measures = [("death -> all gone, ms", death_to_gone, False), ("death -> restarted, ms", death_to_restart, True),
                ("launcher killed -> ranks gone, ms", launcher_to_gone, False), ("RSS of the launcher, MiB", launcher_rss, False)]
    results = {}
    print(f"{'min / median of ' + str(args.rounds):36}" + "".join(f"{name:>22}" for name in found))
    for title, measure, restarts in measures:
        samples = {name: [] for name, (_, flags, _) in found.items() if not restarts or flags}
        for _ in range(args.rounds):
            for name in samples:
                command, flags, program = found[name]
                samples[name].append(measure(command + (flags if restarts else []), program))
        results[title] = samples
        print(f"{title:36}" + "".join(f"{show(samples[name]) if name in samples else '-':>22}" for name in found), flush=True)
    gone = results["death -> all gone, ms"]
    if "hydra" in gone and None not in gone["hydra"]:
        print(f"death -> all gone: {statistics.median(gone['muster']) - statistics.median(gone['hydra']):+.1f} ms of hydra (bar: +10)")
    again = results["death -> restarted, ms"]
    if "torchrun" in again:
        print(f"death -> restarted, ours ÷ torchrun: "
              f"{statistics.median(again['muster']) / statistics.median(again['torchrun']):.2f} (bar: 0.5)")


if __name__ == "__main__":
    main()
