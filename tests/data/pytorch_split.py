"""torch.utils.data.random_split, to compare with (random_split_test.cc): one JSON array."""

import json
import sys

try:
    import torch
except ImportError:
    sys.exit(77)
from torch.utils.data import random_split

CASES = [
    {"size": 10, "lengths": [7, 3], "seed": 0},
    {"size": 101, "fractions": [0.8, 0.1, 0.1], "seed": 7},
    {"size": 103, "fractions": [1 / 3, 1 / 3, 1 / 3], "seed": 1},
    {"size": 1000, "fractions": [0.5, 0.25, 0.125, 0.125], "seed": 42},
]
for case in CASES:
    parts = random_split(range(case["size"]), case.get("fractions") or case["lengths"],
                         generator=torch.Generator().manual_seed(case["seed"]))
    case["parts"] = [list(part.indices) for part in parts]
print(json.dumps(CASES))
