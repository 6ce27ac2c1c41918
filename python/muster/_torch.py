"""What muster does once torch is there: the backend "muster" of torch.distributed, and DDP's buckets. It never imports torch
itself."""
from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import Any

from muster import _mp_spawn, _stacks, _worlds
from muster.errors import Unavailable

HOW = "pip install --no-build-isolation 'muster[torch]'"
_met = False


def missing(what: str) -> Unavailable:
    """The error for a backend that is not installed."""
    return Unavailable(f"{what}: expected the package muster-torch, which has the backend \"muster\", got none; {HOW}")


def has_backend() -> bool:
    """Whether muster-torch is installed."""
    return importlib.util.find_spec("muster_torch") is not None


def meet_torch() -> None:
    """Registers the backend, once. Called where torch has been imported."""
    global _met
    torch = sys.modules["torch"]
    if _met or not hasattr(torch, "distributed"):
        return
    _met = True
    if not torch.distributed.is_available():
        return
    if has_backend():
        importlib.import_module("muster_torch").register()
    elif not hasattr(torch.distributed.Backend, "MUSTER"):
        torch.distributed.Backend.register_backend("muster", _refuse, devices=["cpu"])
    if torch.cuda.device_count() == 0:  # which asks NVML: forked children may still use the GPUs
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")  # DDP takes its buckets from the shared memory
    _stacks.answer_requests()
    _mp_spawn.guard()
    _worlds.guard()


def _refuse(*_: Any) -> Any:
    raise missing('init_process_group("muster")')
