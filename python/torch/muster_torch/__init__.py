"""The backend "muster" of torch.distributed: process groups whose CPU tensors go through the memory that the ranks of a host
share, and over Gloo between hosts.

PyTorch registers it by itself when it is imported; `torch.distributed.init_process_group("muster")`, or
"cpu:muster,cuda:nccl", makes such a group. MUSTER_BACKEND=shm, shm+gloo or gloo decides instead of the choice by hosts."""
import datetime
import os
import sys

_FOREVER = datetime.timedelta(days=36_500)  # datetime.timedelta.max is more than C++ counts
_BACKENDS = ("auto", "shm", "shm+gloo", "gloo")
_said = False
_registered = False


def register():
    """Makes "muster" known to torch.distributed. PyTorch calls it at the end of its import, and so does `import muster`; what
    is compiled is imported with the first group."""
    global _registered
    import torch.distributed as dist  # it is there: torch is at the end of its import
    if not _registered and dist.is_available() and not hasattr(dist.Backend, "MUSTER"):
        dist.Backend.register_backend("muster", make, devices=["cpu"])
    _registered = True


def _backend_asked():
    asked = os.environ.get("MUSTER_BACKEND", "auto")
    if asked not in _BACKENDS:
        raise ValueError(f"MUSTER_BACKEND: expected {', '.join(_BACKENDS)} for a Python program, got '{asked}'")
    return asked


def _choose(asked, hosts):
    if asked == "shm" and len(set(hosts)) > 1:
        raise ValueError(f"MUSTER_BACKEND=shm: expected all ranks on one host, got {len(set(hosts))} hosts; "
                         "use shm+gloo or auto, which use Gloo between hosts")
    from muster_torch._compiled import choose_host_backend
    return choose_host_backend(hosts) if asked == "auto" else asked


def _say_once(rank, size, backend):
    global _said
    if rank == 0 and not _said:
        print(f"[rank 0] info: process group: {size} rank{'' if size == 1 else 's'} over {backend}", file=sys.stderr)
    _said = True


def _warn_of_a_small_world(dist, size):
    """Where the launcher has started more ranks than the program's first group has, each may train alone."""
    started = os.environ.get("WORLD_SIZE", "")
    if not dist.is_initialized() and started.isdigit() and int(started) > size:
        print(f"[rank {os.environ.get('RANK', '?')}] warning: process group: expected the {started} ranks that were started, got a group of {size}; "
              "give init_process_group no rank and no world size, or those of RANK and WORLD_SIZE", file=sys.stderr)


def _limit(dist, timeout):
    """What the launcher tells comes before what the program gives its first group, and before PyTorch's limit of further ones."""
    from muster.rank import facts
    told = facts()["collective_timeout"] if "MUSTER_COLLECTIVE_TIMEOUT" in os.environ else None
    is_own = dist.is_initialized() and timeout != dist.default_pg_timeout
    return min(timeout if told is None or is_own else datetime.timedelta(seconds=told), _FOREVER)


def make(store, rank, size, timeout):
    """A group's backend. Collective."""
    import torch.distributed as dist
    _warn_of_a_small_world(dist, size)
    from muster_torch._compiled import host_identity, make_hierarchical, make_shm, over_gloo
    asked = _backend_asked()
    patience, timeout = min(timeout, _FOREVER), _limit(dist, timeout)
    # A store may be used again after destroy_process_group: nobody is to read what an earlier group has left in it.
    store = dist.PrefixStore(str(store.add(f"made/{rank}", 1)), store)
    keys = [f"host/{i}" for i in range(size)]
    store.set(keys[rank], f"{asked} {host_identity()}")
    try:
        store.wait(keys, patience)
    except dist.DistStoreError as error:
        missing = ", ".join(str(i) for i in range(size) if not store.check([keys[i]]))
        raise RuntimeError(f"muster: expected {size} ranks within {patience}, missing rank(s) {missing}") from error
    told = [value.decode().split(" ", 1) for value in store.multi_get(keys)]
    for other, (theirs, _) in enumerate(told):
        if theirs != asked:
            raise ValueError(f"MUSTER_BACKEND: expected the same on every rank, got {asked} on rank {rank} and "
                             f"{theirs} on rank {other}")
    hosts = [host for _, host in told]
    backend = _choose(asked, hosts)
    _say_once(rank, size, backend)
    if backend == "shm":
        return make_shm(store, rank, size, timeout)
    if backend == "gloo":
        return over_gloo(dist.ProcessGroupGloo(store, rank, size, timeout=timeout))
    return make_hierarchical(store, rank, hosts, timeout, lambda *ranks: dist.ProcessGroupGloo(*ranks, timeout=timeout))
