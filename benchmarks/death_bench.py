#!/usr/bin/env python3
"""How soon the other ranks of a group know that one was killed in the middle of an all_reduce: muster's backend and
PyTorch's Gloo, in one run, taking turns. The worst of the survivors counts.

    PYTHONPATH=FOLDER_OF_THE_MODULE death_bench.py [--python PYTHON] [--ranks 2,4] [--rounds 5]
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time


def be_a_rank(backend):
    import torch
    import torch.distributed as dist
    if backend == "muster":
        import muster  # noqa: F401
    dist.init_process_group(backend)
    last, data, calls = dist.get_world_size() - 1, torch.ones(1 << 18), 0
    if dist.get_rank() == last:
        for _ in range(20):
            dist.all_reduce(data)
        # The others are in their next call by then.
        time.sleep(0.2)
        print(time.monotonic(), flush=True)
        os.kill(os.getpid(), 9)
    try:
        for calls in range(21):
            dist.all_reduce(data)
    except RuntimeError as error:
        print(time.monotonic(), str(error).splitlines()[0], flush=True)
        os._exit(0)
    sys.exit(f"expected an error in call 21, got none in {calls + 1}")


def seconds_to_know(args, ranks, backend):
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        place = dict(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(held.getsockname()[1]), OMP_NUM_THREADS="1")
        started = [subprocess.Popen([args.python, __file__, "--be", backend], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=dict(os.environ, **place, RANK=str(rank))) for rank in range(ranks)]
        texts = [rank.communicate(timeout=300) for rank in started]
    for rank, (out, err) in zip(started, texts):
        if not out:
            sys.exit(f"a rank over {backend} said nothing, and ended with {rank.returncode}: {err}")
    died = float(texts[-1][0])
    known = [out.split(" ", 1) for out, _ in texts[:-1]]
    return max(float(at) for at, _ in known) - died, known[0][1].strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="with torch and muster [this one]")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--be", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be:
        return be_a_rank(args.be)
    print(f"{'ranks':>5} {'backend':>8} {'median ms':>10} {'worst ms':>9}  what a survivor is told")
    for ranks in map(int, args.ranks.split(",")):
        times, told = {"gloo": [], "muster": []}, {}
        for _ in range(args.rounds):
            for backend in times:
                seconds, told[backend] = seconds_to_know(args, ranks, backend)
                times[backend].append(1e3 * seconds)
        for backend, found in times.items():
            print(f"{ranks:5} {backend:>8} {statistics.median(found):10.1f} {max(found):9.1f}  {told[backend][:110]}")
        print(f"muster / gloo, {ranks} ranks: {statistics.median(times['muster']) / statistics.median(times['gloo']):.2f}")


main()
