"""How ranks find each other, for torch.distributed: where the launcher has told no address, by a file."""
from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any, Mapping

from muster.errors import FailedPrecondition, TimedOut

_LOOK_EVERY = 0.02

_kept: Any = None  # the store of this process, and for whom
_rounds = 0  # how often the ranks have met in it


def store_for(facts: Mapping[str, Any], timeout: timedelta) -> Any:
    """The store of all ranks. Rank 0 serves it. One process has one store: a rank that calls init() again would else connect to
    rank 0's earlier one, before it is gone."""
    global _kept, _rounds
    import torch.distributed as dist
    if facts["world_size"] == 1:
        return dist.HashStore()
    whose = [facts[name] for name in ("rank", "world_size", "master_addr", "master_port", "meeting")]
    if _kept is None or _kept[0] != whose:
        _kept, _rounds = (whose, _new_store(facts, timeout)), 0
    _rounds += 1
    return _kept[1] if _rounds == 1 else dist.PrefixStore(f"muster/round {_rounds}", _kept[1])


def forget() -> None:
    """At the end of the process."""
    global _kept
    _kept = None


def _new_store(facts: Mapping[str, Any], timeout: timedelta) -> Any:
    import torch.distributed as dist
    rank, size = facts["rank"], facts["world_size"]
    if facts["meeting"] is None and not (facts["master_addr"] and facts["master_port"]):
        raise FailedPrecondition(
            f"muster.init: expected MASTER_ADDR and MASTER_PORT for {size} ranks, got '{facts['master_addr']}' and "
            f"{facts['master_port']} (rank {rank}); set them to the host of rank 0 and a free port there, or start the ranks with "
            "`muster run`")
    try:
        if facts["meeting"] is None:
            return next(dist.rendezvous("env://", rank, size, timeout=timeout))[0]
        return _by_file(facts["meeting"], rank, size, timeout)
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        raise TimedOut(f"muster.init: expected {size} ranks to meet within {timeout}, got: {error} (rank {rank}); see whether all "
                       "of them run, and whether rank 0 can be reached") from error


def _by_file(meeting: Mapping[str, str], rank: int, size: int, timeout: timedelta) -> Any:
    """Rank 0 listens at a free port, and writes it where the others can see it."""
    import torch.distributed as dist
    path = meeting["path"]
    if rank == 0:
        store = dist.TCPStore(meeting["address"], 0, size, True, timeout=timeout, wait_for_workers=False)
        _write(path, f"{meeting['address']} {store.port}")
    else:
        address, port = _read(path, rank, timeout)
        store = dist.TCPStore(address, port, size, False, timeout=timeout)
    store.add("met", 1)
    if rank == 0:
        _wait_for_all(store, size, timeout)
        os.unlink(path)
    return store


def _write(path: str, text: str) -> None:
    beside = f"{path}.{os.getpid()}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(beside, path)


def _read(path: str, rank: int, timeout: timedelta) -> tuple[str, int]:
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        try:
            with open(path, encoding="utf-8") as file:
                if os.fstat(file.fileno()).st_uid == os.getuid():  # a stranger's is none
                    address, port = file.read().split()
                    return address, int(port)
        except FileNotFoundError:
            pass
        time.sleep(_LOOK_EVERY)
    raise TimedOut(f"muster.init: expected rank 0 to write '{path}' within {timeout}, got no file (rank {rank}); "
                   "see whether rank 0 runs, and whether the hosts share that folder")


def _wait_for_all(store: Any, size: int, timeout: timedelta) -> None:
    deadline = time.monotonic() + timeout.total_seconds()
    while store.add("met", 0) < size:
        if time.monotonic() > deadline:
            raise TimedOut(f"muster.init: expected {size} ranks within {timeout}, got {store.add('met', 0)}; see whether all run")
        time.sleep(_LOOK_EVERY)


def local_places(store: Any, facts: Mapping[str, Any], visible: list[str], timeout: timedelta) -> dict[str, Any]:
    """Where this rank stands on its host, when nobody has told it: the ranks tell each other their hosts and what GPUs they
    see. `gpu_rank` counts the ranks of the host that see the same GPUs."""
    import torch.distributed as dist
    met = dist.PrefixStore("muster/places", store)
    size, rank = facts["world_size"], facts["rank"]
    met.set(str(rank), f"{facts['host_identity']} {','.join(visible)}")
    met.wait([str(other) for other in range(size)], timeout)
    told = [tuple(met.get(str(other)).decode().split(" ", 1)) for other in range(size)]
    hosts = list(dict.fromkeys(host for host, _ in told))
    mates = [other for other in range(size) if told[other][0] == told[rank][0]]
    alike = [other for other in mates if told[other] == told[rank]]
    return {"local_rank": mates.index(rank), "local_world_size": len(mates), "group_rank": hosts.index(told[rank][0]),
            "group_world_size": len(hosts), "gpu_rank": alike.index(rank), "gpu_world_size": len(alike)}
