"""What PyTorch calls at the end of its import (entry point "torch.backends"). It is a module of its own, so that a program
that knows nothing of muster imports no more than this."""
import sys


def register() -> None:
    """Tells the module muster of torch, where a program has imported muster first."""
    if "muster" in sys.modules:
        from muster import _torch
        _torch.meet_torch()
