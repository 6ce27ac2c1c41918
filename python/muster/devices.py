"""The GPUs of a machine."""
from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Mapping, Optional, Union

from muster import _abi


@dataclass(frozen=True)
class MigInstance:
    """A part of a GPU that is split by MIG. Processes use it as a device of its own."""

    uuid: str
    profile: str
    memory: Optional[int]


@dataclass(frozen=True)
class DeviceProcess:
    """A process that computes on a GPU."""

    pid: int
    memory: int


@dataclass(frozen=True)
class Device:
    """A GPU, or a CPU slot of a plan.

    `index` is the driver's number, as nvidia-smi prints it; `uuid` is the identity. Memory is in bytes. `health` is "ok",
    or what is wrong. What is not known is None, or empty.
    """

    index: int
    uuid: str
    model: str = ""
    memory: Optional[int] = 0
    free: Optional[int] = 0
    numa: Optional[int] = None
    mig: tuple[MigInstance, ...] = ()
    health: str = "ok"
    processes: tuple[DeviceProcess, ...] = ()
    kind: str = "cuda"
    vendor: str = "nvidia"
    pci: str = ""
    host: str = ""
    near_cpus: str = ""
    utilization: Optional[int] = None
    temperature: Optional[int] = None
    power: Optional[float] = None
    compute_capability: str = ""
    ordinal: Optional[int] = None

    @property
    def id(self) -> str:
        """The UUID, or "cpu:<slot>"."""
        return self.uuid if self.kind == "cuda" else f"cpu:{self.index}"

    @property
    def used(self) -> Optional[int]:
        """Bytes of memory that are in use; None where the device has not told its memory, as a GB10."""
        return None if self.memory is None or self.free is None else self.memory - self.free

    def __str__(self) -> str:
        if self.kind == "cpu":
            return self.id
        parts = [f"GPU {self.index}", self.model, self.uuid]
        if self.memory and self.used is not None:
            parts.append(f"{self.used / 2**30:.1f} of {self.memory / 2**30:.1f} GiB used")
        if self.health != "ok":
            parts.append(self.health)
        return ", ".join(part for part in parts if part)


def devices(inventory: Union[None, str, "os.PathLike[str]"] = None) -> list[Device]:
    """The GPUs of this machine, with what they do now; of the machine in the file `inventory` where one is named.

    >>> [device.index for device in muster.devices() if device.health == "ok" and not device.processes]
    [1, 3]

    The list is empty where there are none: `muster devices` and `muster doctor` say why.
    """
    return devices_of(_abi.ask("muster_devices", {"inventory": inventory}))


def devices_of(document: Mapping[str, Any]) -> list[Device]:
    """The GPUs of a document of the schema "muster.devices/1"."""
    return [_device(host["name"], gpu) for host in document["hosts"] for gpu in host["gpus"]]


def _device(host: str, gpu: Mapping[str, Any]) -> Device:
    return Device(
        index=gpu["index"], uuid=gpu["uuid"], model=gpu["model"], memory=gpu["memory_total_bytes"], free=gpu["memory_free_bytes"],
        numa=gpu["numa_node"], health=gpu["health"], vendor=gpu["vendor"], pci=gpu["pci"], host=host, near_cpus=gpu["near_cpus"],
        utilization=gpu["utilization_percent"], temperature=gpu["temperature_celsius"], power=gpu["power_watts"],
        compute_capability=gpu["compute_capability"],
        mig=tuple(MigInstance(one["uuid"], one["profile"], one["memory_total_bytes"]) for one in gpu["mig"]),
        processes=tuple(DeviceProcess(one["pid"], one["used_memory_bytes"]) for one in gpu["processes"]))
