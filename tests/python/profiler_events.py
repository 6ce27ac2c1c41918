"""A rank: what PyTorch's profiler shows of an operation, on one host or (TEST_HOSTS) several: its name, shapes and whole time,
its wait for another rank included."""
import datetime
import os
import time

import torch
import torch.distributed as dist

import muster

if "TEST_HOSTS" in os.environ:
    os.environ["MUSTER_HOST_ID"] = os.environ["TEST_HOSTS"][int(os.environ["RANK"])]
dist.init_process_group("muster", timeout=datetime.timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
LATE = 0.3  # seconds


def events(*names):
    """All events of these names that a profiler has seen of `all_reduce`, whose last rank is late."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        if rank == size - 1:
            store.wait([f"begun/{other}" for other in range(size - 1)])
            began = time.monotonic()
            while time.monotonic() - began < LATE:  # has other things to do
                pass
        work = dist.all_reduce(torch.ones(7, 5), async_op=True)
        store.set(f"begun/{rank}", "")
        work.wait()
        parts = [torch.empty(rank + 1) for _ in range(size)]
        dist.all_to_all(parts, [torch.empty(other + 1) for other in range(size)])
        dist.barrier()
        dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * size))
    return [[event for event in profiler.events() if event.name == name] for name in names]


(reduced,), (exchanged,), (met,), (scattered,) = events("muster:all_reduce", "muster:all_to_all", "muster:barrier", "muster:reduce_scatter")
assert reduced.input_shapes == [[7, 5]] and reduced.is_async, reduced
assert exchanged.input_shapes == [[other + 1] for other in range(size)], exchanged.input_shapes
if rank < size - 1:
    seconds = reduced.time_range.elapsed_us() / 1e6
    assert LATE <= seconds < LATE + 10, seconds
dist.destroy_process_group()
print(f"rank {rank} of {size}: ok")
