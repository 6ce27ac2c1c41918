"""Who this process is in its job. All of it works without torch, under every launcher, and in a process that was started
alone, which is rank 0 of 1."""
from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional, overload

from muster import _abi, _loaders

_facts: Optional[dict[str, Any]] = None


def facts() -> Mapping[str, Any]:
    """All that the launcher told, by the names of muster_rank() in muster/c_api.h. They are read once."""
    global _facts
    if _facts is None:
        _facts = _abi.ask("muster_rank")
    return _facts


def correct(**known: Any) -> None:
    """Sets facts that the ranks have found out together, as a local rank that nobody told."""
    facts()
    assert _facts is not None
    _facts.update(known)


def rank() -> int:
    """This process's number in the job, from 0.

    >>> muster.rank(), muster.world_size()
    (0, 4)
    """
    return int(facts()["rank"])


def world_size() -> int:
    """How many ranks the job has."""
    return int(facts()["world_size"])


def local_rank() -> int:
    """This process's number among the job's ranks on this host."""
    return int(facts()["local_rank"])


def local_world_size() -> int:
    """How many ranks the job has on this host."""
    return int(facts()["local_world_size"])


def is_main() -> bool:
    """Whether this is rank 0, which prints and saves."""
    return rank() == 0


def run_dir() -> Optional[str]:
    """The folder of this run, to write to, or of this task of an Executor or of `muster tasks`; None where there is none, as under
    another launcher."""
    return facts()["run_dir"] or os.environ.get("MUSTER_TASK_DIR") or None


def attempt() -> int:
    """How often the ranks, or this task, have been started before, from 0: after a failure it is 1."""
    told = os.environ.get("MUSTER_ATTEMPT", "")
    return int(told) if told.isdigit() else int(facts()["attempt"])


@overload
def batch_share(otherwise: int) -> int: ...
@overload
def batch_share(otherwise: None = None) -> Optional[int]: ...
def batch_share(otherwise: Optional[int] = None) -> Optional[int]:
    """How many samples of each batch are this rank's, by `muster run --global-batch`; `otherwise` without it. Give one for a
    DataLoader, to which a batch size of None means single samples.

    >>> loader = DataLoader(data, batch_size=muster.batch_share(32), sampler=muster.DistributedSampler(data))
    """
    shares = facts()["batch_shares"]
    _loaders.guard_shares(unequal_shares())
    return int(shares[rank()]) if shares else otherwise


def unequal_shares() -> List[int]:
    """How many samples of each batch are each rank's, where `muster run --global-batch` does not give all the same; else empty."""
    shares = [int(share) for share in facts()["batch_shares"] or ()]
    return shares if len(set(shares)) > 1 else []
