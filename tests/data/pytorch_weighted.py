"""What torch.utils.data.WeightedRandomSampler draws, as JSON."""

import json
import sys

try:
    import torch
    from torch.utils.data import WeightedRandomSampler
except ImportError:
    sys.exit(77)

weights = [0.1, 0.9, 0.4, 0, 3, 0.3]
lines = []
for seed in (0, 7):
    for epoch in (0, 1, 5):
        for samples, replacement in ((40, True), (5, False)):
            generator = torch.Generator()
            generator.manual_seed(seed + epoch)
            sampler = WeightedRandomSampler(weights, samples, replacement, generator)
            lines.append(dict(seed=seed, epoch=epoch, samples=samples, replacement=replacement, indices=list(sampler)))
print(json.dumps(lines))
