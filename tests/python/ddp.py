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


class Spectrum(nn.Module):
    """A layer of complex parameters."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 10, dtype=torch.complex64))
        self.bias = nn.Parameter(torch.randn(10, dtype=torch.complex64))

    def forward(self, x):
        return (x.to(torch.complex64) @ self.weight + self.bias).abs()


def train(group, hook=None, more=(), **options):
    """The losses of 10 steps, and the parameters and where the gradients were at the end."""
    torch.manual_seed(rank)  # the first rank's parameters are sent to all
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 500), nn.ReLU(), nn.Linear(500, 10),
                        *(layer() for layer in more))
    model = DistributedDataParallel(net, process_group=group, bucket_cap_mb=0.3, **options)
    if hook:
        model.register_comm_hook(group, hook)
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


def averaged(group, values):
    return dist.all_reduce(values.div_(size), group=group, async_op=True).get_future()


def grow(group, bucket):
    """Sends one number more beside the gradients."""
    buffer, count = bucket.buffer(), bucket.buffer().numel()
    buffer.resize_(count + 1)[count] = 0
    return averaged(group, buffer).then(lambda sent: sent.value()[0][:count])


def free_meanwhile(group, bucket):
    """Keeps no memory for the bucket while a copy is under way."""
    buffer, count = bucket.buffer(), bucket.buffer().nbytes
    copy = buffer.clone()
    buffer.untyped_storage().resize_(0)

    def back(sent):
        buffer.untyped_storage().resize_(count)
        return buffer.copy_(sent.value()[0])
    return averaged(group, copy).then(back)


def replace(group, bucket):
    bucket.set_buffer(bucket.buffer().clone())
    return averaged(group, bucket.buffer()).then(lambda sent: sent.value()[0])


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
for views in False, True:
    compare(more=[Spectrum], gradient_as_bucket_view=views)
    for hook in grow, free_meanwhile, replace:
        compare(hook=hook, gradient_as_bucket_view=views)
dist.destroy_process_group()
print(f"rank {rank} of {size}: ok")
