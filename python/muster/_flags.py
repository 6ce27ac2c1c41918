"""Values of Python as the flags of the program spell them."""
from __future__ import annotations

import math
import numbers
from typing import Any, Iterable, Mapping, Optional, Union

from muster._plain import index_of, plain_value
from muster._streams import say
from muster.devices import Device
from muster.errors import InvalidArgument

# An index, a UUID, or a Device.
DeviceName = Union[int, str, Device]
_LEAST_MEMORY = 2**20  # bytes


def device_text(device: DeviceName, what: str = "gpus") -> str:
    """As --gpus names it.

    >>> device_text(2), device_text("GPU-8f3c")
    ('2', 'GPU-8f3c')
    """
    if isinstance(device, Device):
        return device.uuid or str(device.index)
    text = device if isinstance(device, str) else index_of(device)
    if text is None:
        raise InvalidArgument(f"{what}: expected an index, a UUID or a Device, got {device!r}; correct it")
    return str(text)


def gpus_text(gpus: Union[None, DeviceName, Iterable[DeviceName]], what: str = "gpus") -> Optional[str]:
    """A selection: text is passed on, and a list names each device.

    >>> gpus_text([2, 4, 7]), gpus_text("free:2")
    ('2,4,7', 'free:2')
    """
    if gpus is None:
        return None
    text = gpus if isinstance(gpus, str) else _names(gpus, what)
    if not text.strip():  # the program takes an empty text for all
        raise InvalidArgument(f"{what}: expected one GPU or more, got {gpus!r}; name them, or leave it out for all")
    return text


def _names(gpus: Union[DeviceName, Iterable[DeviceName]], what: str) -> str:
    told = [gpus] if _is_one(gpus) else list(gpus)  # type: ignore[arg-type]
    return ",".join(device_text(device, what) for device in told)  # type: ignore[arg-type]


def _is_one(gpus: object) -> bool:
    """An array or a tensor without dimensions is a number that cannot be gone through."""
    return isinstance(gpus, Device) or not isinstance(gpus, Iterable) or getattr(gpus, "ndim", None) == 0


def tell_of_one_gpu(where: str, gpus: object) -> None:
    """A plain number names one GPU, and whoever means as many would get one in silence. A list or a text says which is meant."""
    index = index_of(gpus) if _is_one(gpus) else None
    if index is not None and index > 1:
        say(f"{where}: info: gpus={index} is GPU {index} alone; write gpus=[{index}] for it, and gpus='free:{index}' for as many that are free")


def mesh_text(mesh: Union[None, str, Mapping[str, int]]) -> Optional[str]:
    """Axes of a mesh.

    >>> mesh_text({"dp": 2, "tp": 4})
    'dp=2,tp=4'
    """
    if mesh is None or isinstance(mesh, str):
        return mesh
    if not isinstance(mesh, Mapping) or not mesh:
        raise InvalidArgument(f"mesh: expected the axes and their sizes, got {mesh!r}; write mesh={{'dp': 2, 'tp': 2}}")
    return ",".join(f"{axis}={size}" for axis, size in mesh.items())


def refuse_too_few_bytes(what: str, told: object, number: float) -> None:
    """A number without a unit is one of bytes, and whoever means GiB would ask for nothing."""
    if 0 < number < _LEAST_MEMORY:
        raise InvalidArgument(f"{what}: expected 1MiB or more, got {told!r}, which is {number:.7g} bytes; write the unit, as in {what}='8GiB'")


def memory_texts(told: Union[None, int, str, Iterable[Union[int, str]]]) -> Optional[list[str]]:
    """The memory of each rank.

    >>> memory_texts(["20GiB", 2**30])
    ['20GiB', '1073741824B']
    """
    if told is None:
        return None
    plain = plain_value(told)
    return [_memory_text(one, told) for one in (plain if isinstance(plain, list) else [plain])]


def _memory_text(one: object, told: object) -> str:
    if isinstance(one, str):
        return one
    number = index_of(one)
    if number is None:
        raise InvalidArgument(f"rank_memory: expected bytes, or a text such as 40GiB, of each rank, got {told!r}; correct it")
    refuse_too_few_bytes("rank_memory", one, number)
    return f"{number}B"


def scores_table(scores: Optional[Mapping[DeviceName, float]]) -> Optional[dict[str, float]]:
    """Scores as --scores reads them.

    >>> scores_table({0: 100, "NVIDIA A100": 90})
    {'0': 100.0, 'NVIDIA A100': 90.0}
    """
    if scores is None:
        return None
    if not isinstance(scores, Mapping) or not scores:
        raise InvalidArgument(f"scores: expected the speed of each GPU, got {scores!r}; write scores={{0: 100, 1: 90}}")
    return {device_text(device, "scores"): _score(device, score) for device, score in scores.items()}


def _score(device: DeviceName, score: Any) -> float:
    if not isinstance(score, numbers.Real) or not math.isfinite(score):
        raise InvalidArgument(f"scores: expected a number for {device!r}, got {score!r}; correct it")
    return float(score)
