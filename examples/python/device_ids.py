"""Use only these GPUs: indices, UUIDs, ranges, or a rule such as free:2 or mem>=20GiB."""
import sys

import muster


def work():
    ctx = muster.init()
    return f"rank {ctx.rank} of {ctx.world_size}: {ctx.device}"


if __name__ == "__main__":
    gpus = sys.argv[1] if len(sys.argv) > 1 else None  # "2,4,7"
    for line in muster.spawn(work, n=None if gpus else 2, gpus=gpus, quiet=True):
        print(line)
