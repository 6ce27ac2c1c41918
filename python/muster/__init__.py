"""After `import muster`, torch.distributed.init_process_group("cpu:muster,cuda:nccl"), or "muster" alone, makes groups
whose CPU tensors go through the memory that the ranks of one host share."""
import datetime
import socket

import torch.distributed as dist

from muster._backend import host_identity, make_shm


def _wait_until_all_have_read(store, rank, size):
    """The rank that serves the store may end of the error that follows: not before the others know it too."""
    keys = [f"read/{i}" for i in range(size)]
    try:
        store.set(keys[rank], "")
        store.wait(keys, datetime.timedelta(seconds=20))
    except RuntimeError:
        pass  # it has gone, so all have read; or somebody died, who needs to know no more


def _make(store, rank, size, timeout):
    """Collective. RuntimeError on every rank when they are not on one host."""
    # A store may be used again after destroy_process_group: nobody is to read what an earlier group has left in it.
    store = dist.PrefixStore(str(store.add(f"made/{rank}", 1)), store)
    keys = [f"host/{i}" for i in range(size)]
    store.set(keys[rank], f"{host_identity()} {socket.gethostname()}")
    try:
        store.wait(keys, timeout)
    except dist.DistStoreError as error:
        missing = ", ".join(str(i) for i in range(size) if not store.check([keys[i]]))
        raise RuntimeError(f"muster: expected {size} ranks within {timeout}, missing rank(s) {missing}") from error
    hosts = {}
    for i, host in enumerate(store.multi_get(keys)):
        identity, name = host.decode().rsplit(" ", 1)
        hosts.setdefault(identity, (name, []))[1].append(str(i))
    if len(hosts) > 1:
        _wait_until_all_have_read(store, rank, size)
        got = " and ".join(f"rank(s) {', '.join(ranks)} on {name} ({host})" for host, (name, ranks) in hosts.items())
        raise RuntimeError(f"muster: expected all ranks on one host, got {got}; use gloo")
    return make_shm(store, rank, size, timeout)


dist.Backend.register_backend("muster", _make, devices=["cpu"])
