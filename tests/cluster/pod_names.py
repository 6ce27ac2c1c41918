"""The names of a cluster's pods, as the DNS of Kubernetes tells them: those in a file, as they are at the moment.

    pod_names.py ADDRESS FILE      serves until it is killed; FILE has "name address" lines
"""

import pathlib
import socket
import struct
import sys

A, IN, NO_SUCH_NAME = 1, 1, 3
SECONDS_TO_KEEP = 0  # the address of a pod that is started again is another one


def name_of(query):
    """The name that a query asks for, and where it ends."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode("ascii").lower())
        at += 1 + query[at]
    return ".".join(labels), at + 1


def answer(query, addresses):
    name, end = name_of(query)
    kind = struct.unpack("!H", query[end:end + 2])[0]
    known = name in addresses
    records = b""
    if known and kind == A:
        records = struct.pack("!HHHIH", 0xC00C, A, IN, SECONDS_TO_KEEP, 4) + socket.inet_aton(addresses[name])
    flags = 0x8580 | (0 if known else NO_SUCH_NAME)  # an answer, of the one who knows
    return query[:2] + struct.pack("!HHHHH", flags, 1, 1 if records else 0, 0, 0) + query[12:end + 4] + records


def main(address, file):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind((address, 53))
        while True:
            query, sender = here.recvfrom(512)
            lines = pathlib.Path(file).read_text(encoding="ascii").splitlines()
            here.sendto(answer(query, dict(line.split() for line in lines)), sender)


if __name__ == "__main__":
    main(*sys.argv[1:])
