"""Which rank would get which device, and why."""
from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Optional, Union, overload

from muster import _abi
from muster._flags import DeviceName, gpus_text, memory_texts, mesh_text, scores_table
from muster._keywords import by_keywords
from muster._plain import plain_value
from muster.devices import Device, devices_of
from muster.errors import Error, InvalidArgument, Unavailable

MapFunction = Callable[[int, "list[Device]"], DeviceName]


@dataclass(frozen=True)
class RankPlan:
    """A rank's place: its device, and in `reason` why it got that."""

    rank: int
    local_rank: int
    host: str
    device: Device
    reason: str
    more_devices: tuple[Device, ...] = ()
    numa: Optional[int] = None
    cpus: str = ""
    batch_share: Optional[int] = None


class Plan(Sequence[RankPlan]):
    """The ranks in order. It prints as the table of `muster run`.

    >>> plan = muster.plan(n=4)
    >>> plan[0].device.index, plan[0].reason
    (0, 'sequential: 1 of 8 GPUs')
    >>> open("plan.json", "w").write(plan.to_json())    # for muster run --plan plan.json
    """

    def __init__(self, document: Mapping[str, Any], devices: Iterable[Device] = ()) -> None:
        self._document = document
        known = {(device.host, device.uuid): device for device in devices}
        self._ranks = tuple(_rank(rank, known) for rank in document["ranks"])

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """A plan of a file, such as plan.json of a run's folder."""
        if not isinstance(text, str):
            raise InvalidArgument(f"Plan.from_json: expected a text, got {type(text).__name__}; decode it, or read the file as text")
        _abi.ask_text("muster_plan_table", text)  # finds what is wrong with it
        return cls(json.loads(text))

    def to_json(self) -> str:
        """As `muster run --plan` reads it."""
        return json.dumps(self._document, indent=1) + "\n"

    @property
    def policy(self) -> str:
        """The policy that made it."""
        return str(self._document["policy"])

    @property
    def notes(self) -> list[str]:
        """What there is to say of it beside the ranks."""
        return list(self._document.get("notes", ()))

    @overload
    def __getitem__(self, index: int) -> RankPlan: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RankPlan, ...]: ...
    def __getitem__(self, index: Union[int, slice]) -> Union[RankPlan, tuple[RankPlan, ...]]:
        return self._ranks[index]

    def __len__(self) -> int:
        return len(self._ranks)

    def __iter__(self) -> Iterator[RankPlan]:
        return iter(self._ranks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._document == other._document

    def __str__(self) -> str:
        return _abi.ask_text("muster_plan_table", self.to_json()).rstrip("\n")

    def __repr__(self) -> str:
        return f"<muster.Plan of {len(self)} rank{'' if len(self) == 1 else 's'}, policy {self.policy}>\n{self}"


def plan(n: Union[None, int, str] = None, *,
         gpus: Union[None, DeviceName, Iterable[DeviceName]] = None,
         gpus_per_rank: Optional[int] = None,
         policy: Optional[str] = None,
         map: Union[None, MapFunction, Iterable[DeviceName], Mapping[int, DeviceName]] = None,
         scores: Optional[Mapping[DeviceName, float]] = None,
         rank_memory: Union[None, int, str, Iterable[Union[int, str]]] = None,
         mesh: Union[None, str, Mapping[str, int]] = None,
         global_batch: Optional[int] = None,
         surplus: Optional[str] = None,
         visibility: Optional[str] = None,
         numa_binding: Optional[str] = None,
         cpu_slots: Optional[int] = None,
         inventory: Union[None, str, "os.PathLike[str]"] = None) -> Plan:
    """Plans `n` ranks on this machine, or on the machine in the file `inventory`. Nothing is started or leased.

    Every argument is the flag of `muster run` with that name. `n` may also be "auto" (one rank a device), "gpu" or "cpu".

    >>> print(muster.plan(n=4, policy="topology"))
    >>> muster.plan(n=4, scores={0: 100, 1: 90, 2: 80, 3: 110})             # the fastest first
    >>> muster.plan(n=4, map=[3, 1, 0, 2])                                  # the GPU of each rank
    >>> muster.plan(n=4, map=lambda rank, devices: devices[-1 - rank])      # an index, a UUID or a Device
    """
    request: dict[str, Any] = {
        "n": plain_value(n), "gpus": gpus_text(gpus), "gpus_per_rank": gpus_per_rank, "policy": policy, "scores": scores_table(scores),
        "rank_memory": memory_texts(rank_memory), "mesh": mesh_text(mesh), "global_batch": global_batch, "surplus": surplus, "visibility": visibility,
        "numa_binding": numa_binding, "cpu_slots": cpu_slots, "inventory": inventory}
    if map is not None:
        request["map"] = map_indices(map, request)
    answer = _asked(request)
    return Plan(answer["plan"], devices_of(answer["devices"]))


def _asked(request: Mapping[str, Any]) -> Any:
    """The library's answer. Its errors name flags."""
    for name, value in request.items():
        if isinstance(value, str) and not value.strip():
            raise InvalidArgument(f"{name}: expected a value, got {value!r}; give one, or leave it out")
    try:
        return _abi.ask("muster_plan", request)
    except Error as error:
        raise type(error)(by_keywords(str(error)).replace("size: ", "rank_memory: ", 1)) from None


def map_indices(map: Union[MapFunction, Iterable[DeviceName], Mapping[int, DeviceName]], request: Mapping[str, Any]) -> list[int]:
    """The index of each local rank's GPU. A function is asked for every rank; it sees the GPUs that the request selects."""
    if not callable(map):
        told = _told(map)
        indices = [one for one in told if isinstance(one, int) and not isinstance(one, bool)]
        if len(indices) == len(told):
            return indices
        selected = _selected(request)
        return [_index(one, selected, rank) for rank, one in enumerate(told)]
    selected = _selected(request)
    ranks = request.get("n")
    ranks = ranks if isinstance(ranks, int) else len(selected)
    return [_index(plain_value(map(rank, list(selected))), selected, rank) for rank in range(ranks)]


def _told(map: Union[Iterable[DeviceName], Mapping[int, DeviceName]]) -> list[DeviceName]:
    """Of each local rank, from 0; a Mapping has these as its keys."""
    if isinstance(map, Mapping):
        if sorted(map, key=repr) != sorted(range(len(map)), key=repr):
            raise InvalidArgument(f"map: expected the local ranks from 0 to {max(0, len(map) - 1)} as keys, got {dict(map)!r}; name each once")
        told = [map[rank] for rank in range(len(map))]
    else:
        told = list(map) if isinstance(map, Iterable) and not isinstance(map, (str, bytes)) else []
    told = [plain_value(one) for one in told]
    if not told:
        raise InvalidArgument(f"map: expected the GPU of each local rank, got {map!r}; name them, or leave it out")
    return told


def _selected(request: Mapping[str, Any]) -> list[Device]:
    """The GPUs that `gpus` selects, in its order; of several hosts those of the first, as a map is for every host."""
    asked = {key: request.get(key) for key in ("gpus", "inventory", "scores")}
    try:
        planned = _asked({**asked, "n": "gpu"})
    except Unavailable as error:  # it names what is asked for here, and not what the caller wrote
        raise Unavailable(str(error).replace('n="gpu"', "map", 1)) from None
    ranks = Plan(planned["plan"], devices_of(planned["devices"]))
    return [rank.device for rank in ranks if rank.host == ranks[0].host]


def _index(told: DeviceName, selected: Sequence[Device], rank: int) -> int:
    if isinstance(told, Device):
        return told.index
    if isinstance(told, int) and not isinstance(told, bool):
        return told
    found = [device.index for device in selected if isinstance(told, str) and told and device.uuid.startswith(told)]
    if len(found) != 1:
        raise InvalidArgument(f"map: expected an index, a UUID or a Device of GPUs {', '.join(str(one.index) for one in selected)}, "
                              f"got {told!r} (rank {rank}); correct it")
    return found[0]


def rank_plan(entry: Mapping[str, Any]) -> RankPlan:
    """A rank's entry of a plan."""
    return _rank(entry, {})


def _rank(rank: Mapping[str, Any], known: Mapping[tuple[str, str], Device]) -> RankPlan:
    host = rank["host"]
    return RankPlan(
        rank=rank["rank"], local_rank=rank["local_rank"], host=host, device=_device(rank["device"], host, known),
        reason=rank["reason"], more_devices=tuple(_device(more, host, known) for more in rank.get("more_devices", ())),
        numa=rank.get("numa_node"), cpus=rank.get("cpus", ""), batch_share=rank.get("batch_share"))


def _device(told: Mapping[str, Any], host: str, known: Mapping[tuple[str, str], Device]) -> Device:
    if told["kind"] == "cpu":
        return Device(index=told["cpu_slot"], uuid="", kind="cpu", vendor="", host=host)
    plain = Device(index=told["index"], uuid=told["uuid"], model=told["model"], vendor=told.get("vendor", "nvidia"),
                   pci=told.get("pci", ""), host=host)
    return replace(known.get((host, told["uuid"]), plain), ordinal=told["ordinal"])
