#!/usr/bin/env python3
"""A pipeline's step by pipeline_bench over shared memory beside torch.distributed.pipelining over Gloo, in turns.

    pipeline_bench.py MUSTER PIPELINE_BENCH PYTHON [--rounds 3] [--steps 100]

4 ranks, 8 micro-batches, one thread each, 2 layers of 256 a stage. The least of a schedule's medians counts.
"""
import argparse
import os
import re
import subprocess
import sys
import time

RANKS, MICRO_BATCHES, WIDTH, ROWS = 4, 8, 256, 256


def as_rank(steps):
    """One rank of PyTorch's."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    for name, kind in (("gpipe", ScheduleGPipe), ("one_f_one_b", Schedule1F1B)):
        module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
        schedule = kind(PipelineStage(module, rank, RANKS, torch.device("cpu")), MICRO_BATCHES,
                        loss_fn=nn.functional.mse_loss)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
        took = []
        for step in range(steps):
            dist.barrier()
            start = time.perf_counter()
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(x)
            elif rank == RANKS - 1:
                schedule.step(target=y, losses=[])
            else:
                schedule.step()
            optimizer.step()
            dist.barrier()
            if step >= steps // 5:
                took.append(time.perf_counter() - start)
        if rank == 0:
            print(f"{name} {sorted(took)[len(took) // 2] * 1e3:.3f} ms a step", flush=True)
    dist.barrier()
    os._exit(0)  # a thread of PyTorch's Gloo may need the interpreter when that is no more


def times_of(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300,
                          env=dict(os.environ, OMP_NUM_THREADS="1", **more))
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return {name: float(ms) for name, ms in re.findall(r"(\w+) ([\d.]+) ms a step", done.stdout)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("muster")
    parser.add_argument("bench")
    parser.add_argument("python")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    run = [args.muster, "run", "--quiet", "--nproc-per-node", str(RANKS), "--cpu-slots", str(RANKS)]
    ours, theirs = {}, {}
    for _ in range(args.rounds):
        for best, measured in (
                (ours, times_of([*run, args.bench, "steps", str(args.steps)])),
                (theirs, times_of([*run, os.path.abspath(__file__), "--as-rank", str(args.steps)],
                                  PYTHON_EXEC=args.python))):
            for name, ms in measured.items():
                best[name] = min(ms, best.get(name, ms))
    print(f"# {RANKS} ranks, {MICRO_BATCHES} micro-batches, one thread each; least median of {args.rounds} rounds")
    for name, ms in ours.items():
        peer = theirs.get(name)
        beside = f"   PyTorch over Gloo {peer:8.2f} ms   ratio {ms / peer:.2f}" if peer else ""
        print(f"{name:12} muster over shm {ms:8.2f} ms{beside}")


if sys.argv[1:2] == ["--as-rank"]:
    as_rank(int(sys.argv[2]))
else:
    main()
