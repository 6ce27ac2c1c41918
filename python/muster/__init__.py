"""muster: the right GPUs, started and guarded ranks, and many tasks over devices.

    import muster

    for device in muster.devices():            # the GPUs of this machine
        print(device)
    print(muster.plan(n=4))                    # which rank would get which
    muster.spawn(train, args=(3,), gpus="2,4") # a function as the ranks of a job; help(muster.spawn)
    muster.Executor(gpus="0-3")                # functions on devices of their own; help(muster.Executor)

`muster` on the command line, and `python -m muster`, are the program behind this module. Importing the module loads
neither torch nor numpy.
"""
from __future__ import annotations

import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING, Any as _Any

from muster import _environment as _environment  # before the program changes its folder
from muster._version import __version__
from muster.context import STOPPED, Context, init
from muster.devices import Device, devices
from muster.errors import Error, FailedPrecondition, InvalidArgument, TimedOut, Unavailable
from muster.metrics import continue_metrics, metrics
from muster.plan import Plan, RankPlan, plan
from muster.rank import attempt, batch_share, is_main, local_rank, local_world_size, rank, run_dir, world_size
from muster.spans import span

if _TYPE_CHECKING:
    from muster._task import TaskFuture
    from muster.executor import Executor
    from muster.failed import RanksFailed, TaskFailed
    from muster.samplers import CostBalancedSampler, DistributedSampler, WeightedSampler
    from muster.spawning import spawn

__all__ = ["STOPPED", "Context", "CostBalancedSampler", "Device", "DistributedSampler", "Error", "Executor", "FailedPrecondition", "InvalidArgument", "Plan", "RankPlan",
           "RanksFailed", "TaskFailed", "TaskFuture", "TimedOut", "Unavailable", "WeightedSampler", "__version__", "attempt", "batch_share", "continue_metrics",
           "devices", "init", "is_main", "local_rank", "local_world_size", "metrics", "plan", "rank", "run_dir", "span", "spawn", "world_size"]

# What is imported when it is first used.
_LATER = {"CostBalancedSampler": "samplers", "DistributedSampler": "samplers", "Executor": "executor", "RanksFailed": "failed",
          "TaskFailed": "failed", "TaskFuture": "_task", "WeightedSampler": "samplers", "spawn": "spawning"}


def __getattr__(name: str) -> _Any:
    if name not in _LATER:
        raise AttributeError(f"module 'muster' has no attribute '{name}'")
    import importlib
    found = getattr(importlib.import_module(f"muster.{_LATER[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)


if hasattr(_sys.modules.get("torch"), "distributed"):
    from muster import _torch
    _torch.meet_torch()
if _os.environ.get("MUSTER_LEASE_FD"):
    from muster import _leases
    _leases.pass_on()
