"""Prints, as JSON lines, what PyTorch's DistributedSampler gives over a grid of arguments."""

import itertools
import json
import sys

try:
    from torch.utils.data import DistributedSampler
except Exception:  # no numpy, or only the CPU part of the wheel
    sys.exit(77)

lengths = [1, 2, 3, 5, 8, 17, 100, 1438]
replicas = [1, 2, 3, 4, 7, 16]
seeds = [0, 1, 42, 2**40 + 3]
for n, r, seed, drop, shuffle in itertools.product(lengths, replicas, seeds, [False, True], [False, True]):
    if n > 100 and (seed not in (0, 42) or r == 16):
        continue
    if not shuffle and seed != 0:
        continue
    for rank in sorted({0, r // 2, r - 1}):
        sampler = DistributedSampler(range(n), r, rank, shuffle, seed, drop)
        for epoch in (0, 1, 5):
            sampler.set_epoch(epoch)
            print(json.dumps({"n": n, "replicas": r, "rank": rank, "seed": seed, "drop_last": drop, "shuffle": shuffle,
                              "epoch": epoch, "size": len(sampler), "indices": list(sampler)}))
