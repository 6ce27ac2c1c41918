"""Which devices of a machine are free for tasks. Values only; starts nothing."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence

WHOLE = 1000  # units of a device; a task with gpus=0.5 takes 500


@dataclass
class Place:
    """A GPU, or a CPU slot where there is no GPU."""

    index: int
    uuid: str  # empty: a CPU slot
    name: str  # as `Future.devices` has it
    memory: int = 0  # bytes that were free in the beginning; 0: unknown
    units_left: int = WHOLE
    memory_left: int = 0
    held_units: int = 0  # by other jobs
    held_by: str = ""

    @property
    def free_units(self) -> int:
        return min(self.units_left, WHOLE - self.held_units)


@dataclass
class Share:
    """What a task has: so much of each of these."""

    places: List[Place] = field(default_factory=list)
    units: int = WHOLE
    memory: int = 0


@dataclass(frozen=True)
class Need:
    """What a task asks for: `devices` whole ones, or one and a share of it."""

    devices: int = 1
    units: int = WHOLE
    memory: int = 0


class Places:
    """The devices of one machine, and who has what of them."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.all = list(places)

    def num_that_fit(self, need: Need) -> int:
        """Devices that have what is needed of each when nothing else runs. One whose memory is unknown counts."""
        return sum(not need.memory or not place.memory or place.memory >= need.memory for place in self.all)

    def take(self, need: Need) -> Optional[Share]:
        """A share, or None for now. Shared devices are filled before others are begun."""
        fitting = [place for place in self.all if _fits(place, need)]
        if len(fitting) < need.devices:
            return None
        if need.units < WHOLE:
            fitting.sort(key=lambda place: (place.free_units, place.index))
        chosen = fitting[: need.devices]
        for place in chosen:
            place.units_left -= need.units
            place.memory_left -= need.memory
        return Share(chosen, need.units, need.memory)

    def give_back(self, share: Share) -> None:
        for place in share.places:
            place.units_left += share.units
            place.memory_left += share.memory

    def set_held(self, uuid: str, units: int, by: str) -> None:
        """Other jobs have so much of this GPU now."""
        for place in self.all:
            if place.uuid == uuid:
                place.held_units, place.held_by = units, by

    def held(self) -> List[str]:
        """The GPUs of which other jobs have something, and who these are."""
        return [f"{place.name} {place.held_by}" for place in self.all if place.held_units]


def _fits(place: Place, need: Need) -> bool:
    enough_memory = not need.memory or not place.memory or place.memory_left >= need.memory
    return place.free_units >= need.units and enough_memory


def places_of(inventory: Dict[str, Any], wanted: Optional[Sequence[str]], cpu_slots: Optional[int]) -> Places:
    """The places of a machine: its GPUs (of these UUIDs), or CPU slots where it has none."""
    host = inventory["hosts"][0]
    gpus = [device for gpu in host.get("gpus", ()) if gpu.get("health", "ok") == "ok" for device in _devices_of(gpu)]
    if wanted is not None:
        gpus = [gpu for uuid in wanted for gpu in gpus if gpu.uuid == uuid]
    if gpus and cpu_slots is None:
        return Places(gpus)
    slots = cpu_slots or host.get("cpu_slots") or 1
    return Places([Place(index=slot, uuid="", name=f"cpu:{slot}") for slot in range(slots)])


def why_no_gpu(inventory: Dict[str, Any]) -> str:
    """Of a machine whose GPUs can all not be used; empty for others."""
    health = [str(gpu.get("health", "ok")) for gpu in inventory["hosts"][0].get("gpus", ())]
    if not health or "ok" in health:
        return ""
    return f"none of {len(health)} GPUs can be used ({', '.join(dict.fromkeys(health))})"


def _devices_of(gpu: Dict[str, Any]) -> List[Place]:
    """The GPU, or the instances that MIG has split it into."""
    parts = gpu.get("mig") if gpu.get("mig_enabled") else [gpu]
    return [_gpu_place(int(gpu["index"]), part) for part in parts or ()]


def _gpu_place(index: int, device: Dict[str, Any]) -> Place:
    memory = int(device.get("memory_free_bytes") or device.get("memory_total_bytes") or 0)  # of a MIG instance all is its own
    return Place(index=index, uuid=str(device["uuid"]), name=str(device["uuid"]), memory=memory, memory_left=memory)
