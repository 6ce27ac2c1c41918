"""A rank on one of several hosts (TEST_HOSTS, a letter a rank): all_reduce, and what stays with Gloo; DDP's step."""
import datetime
import os

import torch
import torch.distributed as dist

import layouts
import muster
import unlike_messages

os.environ["MUSTER_HOST_ID"] = os.environ["TEST_HOSTS"][int(os.environ["RANK"])]
dist.init_process_group("muster")
rank, size = dist.get_rank(), dist.get_world_size()
for count in (1, 40_009, 3_000_017):
    place = torch.arange(count, dtype=torch.float32) % 101
    got = place + rank
    dist.all_reduce(got)
    assert got.equal(place * size + size * (size - 1) / 2), count
    several = [got.clone() for _ in range(3)]
    works = [dist.all_reduce(one, dist.ReduceOp.AVG, async_op=True) for one in several]
    for work, one in zip(works, several):
        work.wait()
        torch.testing.assert_close(one, place * size + size * (size - 1) / 2)
halves = torch.full((1000,), 40_000.0, dtype=torch.float16)  # whose sum is more than their type has
dist.all_reduce(halves, dist.ReduceOp.AVG)
assert halves.eq(40_000).all(), halves
part = torch.empty(4, dtype=torch.float16)
work = dist.reduce_scatter_tensor(part, torch.full((4 * size,), 40_000.0, dtype=torch.float16), dist.ReduceOp.AVG, async_op=True)
work.wait(datetime.timedelta(seconds=60))
assert part.eq(40_000).all(), part
parts = [torch.empty(r + 2 * rank) for r in range(size)]  # rank r sends r + 2 n elements to rank n
work = dist.all_to_all(parts, [torch.full((rank + 2 * r,), float(rank)) for r in range(size)], async_op=True)
assert work.wait(datetime.timedelta(seconds=60))
for r, part in enumerate(parts):
    assert part.eq(r).all(), (r, part)
assert dist.group.WORLD._get_backend(torch.device("cpu")).name() == "muster"
parts = [torch.empty(2) for _ in range(size)]
dist.all_gather(parts, torch.full((2,), float(rank)))
assert torch.stack(parts)[:, 0].tolist() == list(range(size))

layouts.check(rank, size)
unlike_messages.check(rank, size)
torch.manual_seed(1)
model = torch.nn.Linear(300, 7)
alone = torch.nn.Linear(300, 7)
alone.load_state_dict(model.state_dict())
ddp = torch.nn.parallel.DistributedDataParallel(model)
batch = torch.randn(size, 4, 300)
ddp(batch[rank]).square().mean().backward()
alone(batch.view(-1, 300)).square().mean().backward()
torch.testing.assert_close(model.weight.grad, alone.weight.grad)
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} of {size}: ok")
