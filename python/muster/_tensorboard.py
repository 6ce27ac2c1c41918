"""An event file of TensorBoard: TFRecords of hand-encoded protobuf messages, without TensorBoard."""
from __future__ import annotations

import itertools
import os
import socket
import struct
import time
from typing import Mapping

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # protobuf's wire types
_PREFIX = "events.out.tfevents."
_numbers = itertools.count()
_table: list[int] = []


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _field(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(value)) + value


def _masked_crc32c(data: bytes) -> int:
    """TFRecord's: masked, so that a checksum over data with checksums is none of zeros."""
    if not _table:
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
            _table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    return length + struct.pack("<I", _masked_crc32c(length)) + event + struct.pack("<I", _masked_crc32c(event))


def _event(step: int) -> bytes:
    return _key(1, _EIGHT_BYTES) + struct.pack("<d", time.time()) + _key(2, _VARINT) + _varint(step)


def _time_for_name(folder: str) -> int:
    """Later than that of the other files, as TensorBoard reads them in the order of their names, also where the clock was set back."""
    names = [name[len(_PREFIX):].split(".")[0] for name in os.listdir(folder) if name.startswith(_PREFIX)]
    return max([int(time.time()), *(int(name) + 1 for name in names if name.isdecimal())])


class EventFile:
    """Scalars for TensorBoard, in a new file of the folder."""

    def __init__(self, folder: str) -> None:
        name = f"{_PREFIX}{_time_for_name(folder)}.{socket.gethostname()}.{os.getpid()}.{next(_numbers)}"
        self.path = os.path.join(folder, name)
        with open(self.path, "xb"):
            pass
        self._unwritten = _record(_event(0) + _field(3, b"brain.Event:2"))  # the version, without which readers stop

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """The numbers of a step, of which TensorBoard keeps 32 bits each."""
        summary = b"".join(
            _field(1, _field(1, name.encode()) + _key(2, _FOUR_BYTES) + _float32(value)) for name, value in values.items())
        self._write(_event(step) + _field(5, summary))

    def continue_after(self, step: int) -> None:
        """What is later than this step, in earlier files of the folder, a reader drops."""
        self._write(_event(step + 1) + _field(7, _key(1, _VARINT) + _varint(1)))

    def _write(self, event: bytes) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(self._unwritten + _record(event))
        self._unwritten = b""


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))
