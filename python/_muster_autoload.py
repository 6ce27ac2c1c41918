"""What PyTorch calls at the end of its import (entry point "torch.backends"). It is a module of its own, so that a program
that knows nothing of muster imports no more than this."""
import sys
import warnings


def register() -> None:
    """Tells the module muster of torch, where a program has imported muster first. An error here would fail the import of torch,
    and so it is a warning."""
    if "muster" not in sys.modules:
        return
    try:
        from muster import _torch
        _torch.meet_torch()
    except Exception as error:  # noqa: BLE001
        warnings.warn(f"muster: the backend \"muster\" is not registered: {error}", stacklevel=2)
