"""What PyTorch calls at the end of its import (entry point "torch.backends"). It is a module of its own, so that a program
that knows nothing of muster imports no more than this."""
import os
import sys
import warnings


def register() -> None:
    """Tells the module muster of torch, where a program has imported muster first. A rank of `muster run` whose program has not
    is warned of a group that is smaller than its world. An error here would fail the import of torch, and so it is a warning."""
    try:
        if "muster" in sys.modules:
            from muster import _torch
            _torch.meet_torch()
        elif os.environ.get("MUSTER_ATTEMPT"):  # which `muster run` gives each rank
            from muster import _worlds
            _worlds.guard()
    except Exception as error:  # noqa: BLE001
        warnings.warn(f"muster: the backend \"muster\" is not registered: {error}", stacklevel=2)
