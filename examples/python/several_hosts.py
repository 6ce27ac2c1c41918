"""One script, several hosts over ssh: python several_hosts.py a:4,b:8. Without hosts, two ranks here."""
import socket
import sys

import muster


def work():
    ctx = muster.init()
    return f"rank {ctx.rank} on {socket.gethostname()}, local rank {ctx.local_rank} of {ctx.local_world_size}"


if __name__ == "__main__":
    hosts = sys.argv[1] if len(sys.argv) > 1 else None
    for line in muster.spawn(work, n=None if hosts else 2, hosts=hosts, quiet=True):
        print(line)
