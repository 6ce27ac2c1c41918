"""What a folder's event files say: by TensorBoard's own reader where it is installed, else by a parser of the format."""

import glob
import pathlib
import struct
import sys

from pytorch import say


def by_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(folder)
    events.Reload()
    say("tensorboard", [1])
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


assert masked_crc32c(b"123456789") == (((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    while data:
        (length,), (crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        body, (body_crc,) = data[12:12 + length], struct.unpack("<I", data[12 + length:16 + length])
        assert crc == masked_crc32c(data[:8]) and body_crc == masked_crc32c(body) and len(body) == length
        yield body
        data = data[16 + length:]


def fields(message):
    """Every (number, value) of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        length = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, message[at:at + length]
        at += length
        assert at <= len(message)


def by_hand(folder):
    found = {}
    for path in sorted(glob.glob(f"{folder}/events.out.tfevents.*")):
        for number, body in enumerate(records(pathlib.Path(path).read_bytes())):
            event = dict(fields(body))
            assert struct.unpack("<d", event[1])[0] > 1e9
            assert (number == 0) == (event.get(3) == b"brain.Event:2")
            step = event[2]
            if 7 in event and dict(fields(event[7])) == {1: 1}:
                found = {tag: [pair for pair in pairs if pair[0] < step] for tag, pairs in found.items()}
            for _, value in fields(event.get(5, b"")):
                value = dict(fields(value))
                found.setdefault(value[1].decode(), []).append((step, struct.unpack("<f", value[2])[0]))
    return found


try:
    scalars = by_tensorboard(sys.argv[1])
except ImportError:
    scalars = by_hand(sys.argv[1])
for tag, pairs in scalars.items():
    assert [step for step, _ in pairs] == list(range(1, 41)), (tag, pairs)
    say(tag, [value for _, value in pairs])
