"""What the scripts here share: PyTorch, or the end with 77; lines of a name and numbers that lose no bit."""

import sys

try:
    import torch
except Exception:  # only the CPU part of the wheel
    sys.exit(77)

torch.set_num_threads(1)


def say(name, values):
    if isinstance(values, torch.Tensor):
        values = values.detach().double().reshape(-1).tolist()
    print(name, *(float(value).hex() for value in values))
