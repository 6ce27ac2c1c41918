"""The median start time of 8 ranks that end at once: with NVML asked for the GPUs, without, and by torchrun."""
import os
import statistics
import subprocess
import sys
import time

MUSTER, PYTHON = os.environ["BUILD"] + "/bin/muster", os.environ["PYTHON"]
RUN = [MUSTER, "run", "--quiet", "--run-dir", os.environ["OUT"] + "/runs/launch"]
WAYS = {
    "muster, 8 ranks of one GPU": [*RUN, "--gpus", "0", "--surplus", "share", "--nproc-per-node", "8", "/bin/true"],
    "muster, 8 CPU ranks": [*RUN, "--nproc-per-node", "cpu", "--cpu-slots", "8", "/bin/true"],
    "torchrun, 8 ranks": [PYTHON, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "8", "/bin/true"],
}


def seconds(command):
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}: {done.stderr}")
    return time.perf_counter() - begin


times = {name: [] for name in WAYS}
for _ in range(5):  # in turns
    for name, command in WAYS.items():
        times[name].append(seconds(command))
for name, measured in times.items():
    print(f"{name:30} {statistics.median(measured) * 1e3:8.1f} ms")
ours, _, theirs = (statistics.median(measured) for measured in times.values())
print(f"muster ÷ torchrun {ours / theirs:.3f}")
