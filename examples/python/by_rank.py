"""Assign GPUs by rank: rank 0 gets GPU 3, rank 1 GPU 1, ... Shows the plan first; starts one rank for each entry."""
import sys

import muster


def work():
    return f"rank {muster.rank()} has {muster.init().assignment.device}"


if __name__ == "__main__":
    order = [int(index) for index in sys.argv[1:]] or None
    if order:
        print(muster.plan(n=len(order), map=order))
    for line in muster.spawn(work, n=len(order) if order else 2, map=order, quiet=True):
        print(line)
