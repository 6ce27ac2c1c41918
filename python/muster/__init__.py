"""After `import muster`, torch.distributed.init_process_group("cpu:muster,cuda:nccl"), or "muster" alone, makes groups
whose CPU tensors go through the memory that the ranks of a host share, and over Gloo between hosts."""
import torch.distributed as dist

from muster._backend import host_identity, make_hierarchical, make_shm


def _make(store, rank, size, timeout):
    """Collective."""
    # A store may be used again after destroy_process_group: nobody is to read what an earlier group has left in it.
    store = dist.PrefixStore(str(store.add(f"made/{rank}", 1)), store)
    keys = [f"host/{i}" for i in range(size)]
    store.set(keys[rank], host_identity())
    try:
        store.wait(keys, timeout)
    except dist.DistStoreError as error:
        missing = ", ".join(str(i) for i in range(size) if not store.check([keys[i]]))
        raise RuntimeError(f"muster: expected {size} ranks within {timeout}, missing rank(s) {missing}") from error
    hosts = [host.decode() for host in store.multi_get(keys)]
    if len(set(hosts)) > 1:
        return make_hierarchical(store, rank, hosts, timeout, lambda *ranks: dist.ProcessGroupGloo(*ranks, timeout=timeout))
    return make_shm(store, rank, size, timeout)


dist.Backend.register_backend("muster", _make, devices=["cpu"])
