"""muster: the right GPUs, started and guarded ranks, and many tasks over devices.

    import muster

    for device in muster.devices():            # the GPUs of this machine
        print(device)
    print(muster.plan(n=4))                    # which rank would get which

`muster` on the command line, and `python -m muster`, are the program behind this module. Importing the module loads
neither torch nor numpy.
"""
from __future__ import annotations

import sys as _sys

from muster._version import __version__
from muster.context import STOPPED, Context, init
from muster.devices import Device, devices
from muster.errors import Error, FailedPrecondition, InvalidArgument, TimedOut, Unavailable
from muster.metrics import metrics
from muster.plan import Plan, RankPlan, plan
from muster.rank import attempt, batch_share, is_main, local_rank, local_world_size, rank, run_dir, world_size
from muster.spans import span

__all__ = ["STOPPED", "Context", "Device", "Error", "FailedPrecondition", "InvalidArgument", "Plan", "RankPlan", "TimedOut",
           "Unavailable", "__version__", "attempt", "batch_share", "devices", "init", "is_main", "local_rank",
           "local_world_size", "metrics", "plan", "rank", "run_dir", "span", "world_size"]

if hasattr(_sys.modules.get("torch"), "distributed"):
    from muster import _torch
    _torch.meet_torch()
