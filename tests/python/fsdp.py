"""A rank: PyTorch's two FSDPs over "muster" lose what one process loses with the same global batch."""
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import muster

dist.init_process_group("muster")
rank, size = dist.get_rank(), dist.get_world_size()


def train(model, parts):
    """The losses of 5 steps, each on this rank's one of `parts` of the batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    torch.manual_seed(1)
    losses = []
    for _ in range(5):
        batch = torch.randn(8, 20)
        features, labels = (whole.chunk(parts)[rank % parts] for whole in (batch, (batch[:, 0] > 0).long()))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def mean(losses):
    dist.all_reduce(losses, dist.ReduceOp.AVG)
    return losses


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Sequential(nn.Linear(33, 33), nn.ReLU()), nn.Linear(33, 10))
expected = train(copy.deepcopy(net), 1)
assert expected[-1] < expected[0] - 0.1, expected

whole = FullyShardedDataParallel(copy.deepcopy(net), device_id=torch.device("cpu"), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
torch.testing.assert_close(mean(train(whole, size)), expected, rtol=1e-4, atol=1e-5)

sharded = copy.deepcopy(net)
mesh = init_device_mesh("cpu", (size,))
fully_shard(sharded[2], mesh=mesh)
fully_shard(sharded, mesh=mesh)
assert sharded[0].weight.to_local().shape[0] < 33
torch.testing.assert_close(mean(train(sharded, size)), expected, rtol=1e-4, atol=1e-5)
dist.destroy_process_group()
print(f"rank {rank} of {size}: ok")
