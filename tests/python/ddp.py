"""A rank: PyTorch's DistributedDataParallel over "muster" and over "gloo" gives the same bits (on two ranks, as a + b = b + a)."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import muster

dist.init_process_group("muster")
rank, size = dist.get_rank(), dist.get_world_size()
gloo = dist.new_group(backend="gloo")


def train(group, **options):
    """The losses of 10 steps, and the parameters and where the gradients were at the end."""
    torch.manual_seed(rank)  # the first rank's parameters are sent to all
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 500), nn.ReLU(), nn.Linear(500, 10))
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.3, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(100 + rank)
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(4 + rank, 1, 8, 8)), torch.randint(10, (4 + rank,)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in net.parameters()], [p.grad.data_ptr() for p in net.parameters()]


def is_shared(address):
    with open("/proc/self/maps", encoding="utf-8") as file:
        for line in file:
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            if begin <= address < end:
                return "memfd:muster" in line
    return False


def compare(**options):
    losses, parameters, gradients = train(dist.group.WORLD, **options)
    expected_losses, expected_parameters, _ = train(gloo, **options)
    assert losses == expected_losses, f"{options}: {losses} and with gloo {expected_losses}"
    assert all(map(torch.equal, parameters, expected_parameters)), options
    return gradients


assert size == 2
compare()
compare(gradient_as_bucket_view=True)
compare(static_graph=True)
os.environ["DDP_DISABLE_COMM_MEM"] = "0"  # buckets in the memory that the backend gives
gradients = compare(gradient_as_bucket_view=True)
if torch.__version__ >= (2, 15):
    assert all(map(is_shared, gradients)), "the gradients are not in shared memory"
dist.destroy_process_group()
print(f"rank {rank} of {size}: ok")
