#!/usr/bin/env python3
"""From the death of a rank to the training's next step: in place (`muster run --on-failure replace`), by a restart of all ranks
(`muster run --max-restarts`), and torchrun's restart of a Python script that does the same work. They take turns; the ratios are printed
last. The steps that a restart does again, since its checkpoint is older, are in the second number.

    in_place_bench.py BUILD [--python PYTHON] [--ranks 2,4] [--rounds 5] [--every 5]
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

KILLED_AFTER = 13  # steps; a checkpoint is 5 steps' work away at most
STEPS = 16
LONGEST = 30  # seconds


def be_a_rank(every):
    """elastic_probe's training, with what a careful script has: a checkpoint of model, optimizer, schedule and place."""
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    sampler = torch.utils.data.DistributedSampler(data, ranks, rank)
    done, file = 0, pathlib.Path("checkpoint.pt")
    if file.exists():
        saved = torch.load(file)
        done = saved["step"]
        for part in ("net", "optimizer", "schedule"):
            {"net": net, "optimizer": optimizer, "schedule": schedule}[part].load_state_dict(saved[part])
    model = torch.nn.parallel.DistributedDataParallel(net)
    epoch = 0
    while done < STEPS:
        sampler.set_epoch(epoch)
        epoch += 1
        for x, y in torch.utils.data.DataLoader(data, 4, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
            done += 1
            if done == KILLED_AFTER and rank == ranks - 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                print(f"killed at {time.time():.6f}", flush=True)
                os.kill(os.getpid(), 9)
            if done % every == 0 and rank == 0:
                torch.save({"step": done, "net": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}, "next.pt")
                os.rename("next.pt", file)
            first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
            if rank == 0 and not (first and done >= KILLED_AFTER):  # which is lost
                print(f"step {done} at {time.time():.6f}", flush=True)
            if done == STEPS:
                break
    dist.destroy_process_group()


def commands(args, ranks):
    muster, probe = f"{args.build}/bin/muster", f"{args.build}/tests/elastic_probe"
    work = [probe, "--steps", str(STEPS), "--every", str(args.every), "--kill", f"{ranks - 1}@{KILLED_AFTER}"]
    run = [muster, "run", "-q", "-n", str(ranks), "--run-dir", "run"]
    found = {"in place, shm": ([*run, "--on-failure", "replace", *work], {}),
             "in place, gloo": ([*run, "--on-failure", "replace", *work], {"MUSTER_BACKEND": "gloo"}),
             "restart, shm": ([*run, "--max-restarts", "1", *work], {}),
             "restart, gloo": ([*run, "--max-restarts", "1", *work], {"MUSTER_BACKEND": "gloo"})}
    if args.python:
        found["torchrun"] = ([args.python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--max-restarts", "1", "--monitor-interval",
                              "0.1", "--standalone", os.path.abspath(__file__), args.build, "--be", "--every", str(args.every)], {})
    return found


def seconds(command, env):
    """From the kill to the first step after it, and to the first that had not been done; nothing where a restart does not succeed."""
    with tempfile.TemporaryDirectory(prefix="muster-in-place-bench-") as folder:
        job = subprocess.Popen(command, cwd=folder, env=dict(os.environ, OMP_NUM_THREADS="1", MUSTER_RUNTIME_DIR=folder, **env),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = job.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            job.terminate()
            job.communicate()
            return None
    if job.returncode != 0 and "torch.distributed.run" in command:  # its second attempt may meet what the first has left
        return None
    if job.returncode != 0:
        sys.exit(f"{command}: exit code {job.returncode}\n{out}{err}")
    killed = float(re.search(r"killed at ([\d.]+)", out)[1])
    after = [(int(step), float(at)) for step, at in re.findall(r"step (\d+) at ([\d.]+)", out) if float(at) > killed]
    return min(at for _, at in after) - killed, min(at for step, at in after if step >= KILLED_AFTER) - killed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--python", default="", help="with torch; without, torchrun is left out")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints on the disk")
    parser.add_argument("--be", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be:
        return be_a_rank(args.every)
    args.build = os.path.abspath(args.build)  # each job runs in a folder of its own
    args.python = args.python and os.path.abspath(args.python)
    for program in (f"{args.build}/bin/muster", f"{args.build}/tests/elastic_probe", args.python):
        if program and not os.access(program, os.X_OK):
            parser.error(f"expected the program '{program}', got none that can be run")
    ratios = []
    for ranks in map(int, args.ranks.split(",")):
        times = {}
        for _ in range(args.rounds):
            for name, (command, env) in commands(args, ranks).items():
                times.setdefault(name, []).append(seconds(command, env))
        for name in list(times):
            taken = [pair for pair in times[name] if pair]
            if len(taken) < len(times[name]):
                print(f"{ranks} ranks, {name}: {len(times[name]) - len(taken)} of {len(times[name])} failed again, or had not ended after {LONGEST} s")
            times[name] = taken
            if not taken:
                del times[name]
                continue
            first, new = ([pair[i] for pair in taken] for i in (0, 1))
            print(f"{ranks} ranks, {name}: from the kill to the next step {statistics.median(first):.3f} s (min {min(first):.3f}, max {max(first):.3f}), "
                  f"to a new step {statistics.median(new):.3f} s, median of {len(taken)}", flush=True)
        mine = statistics.median(new for _, new in times["in place, shm"])
        for name, taken in times.items():
            if not name.startswith("in place"):
                ratios.append(f"{ranks} ranks: to a new step, {name} / in place, shm: {statistics.median(new for _, new in taken) / mine:.1f}")
    print("\n".join(ratios))


if __name__ == "__main__":
    main()
