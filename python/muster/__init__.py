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
from muster.devices import Device, devices
from muster.errors import Error, FailedPrecondition, InvalidArgument, TimedOut, Unavailable
from muster.plan import Plan, RankPlan, plan

__all__ = ["Device", "Error", "FailedPrecondition", "InvalidArgument", "Plan", "RankPlan", "TimedOut", "Unavailable",
           "__version__", "devices", "plan"]

if hasattr(_sys.modules.get("torch"), "distributed"):
    from muster import _torch
    _torch.meet_torch()
