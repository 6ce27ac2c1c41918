"""The runs of sharded_losses.cc by PyTorch's ZeroRedundancyOptimizer and fully_shard over Gloo: `name: losses`."""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH = 20, 8


def make_net():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(13, 37), nn.Tanh(), nn.Linear(37, 29), nn.Tanh(), nn.Linear(29, 7))


def train(name, model, optimizer, clip=None):
    losses = []
    for step in range(STEPS):
        begin = (step * size + rank) * BATCH % 192
        optimizer.zero_grad()
        output = model(features[begin : begin + BATCH]).float()
        loss = cross_entropy(output, labels[begin : begin + BATCH])
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    file.write(f"{name}: {' '.join(f'{loss:.9g}' for loss in losses)}\n")


KINDS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01)),
    "adam": (torch.optim.Adam, dict(lr=0.01, foreach=False)),
    "adamw": (torch.optim.AdamW, dict(lr=0.01, foreach=False)),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.05, foreach=False)),
    "rmsprop": (torch.optim.RMSprop, dict(lr=0.01, foreach=False)),
}


def sharded(**options):
    net = make_net()
    for layer in (net[0], net[2], net[4]):
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)
    return net


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(3)
features, labels = torch.randn(200, 13), torch.randint(7, (200,))
mesh = init_device_mesh("cpu", (size,))
with open(f"{os.environ['LOSSES_FOLDER']}/python-{rank}", "w") as file:
    for kind, (optimizer, options) in KINDS.items():
        net = make_net()
        train(f"zero {kind}", DistributedDataParallel(net), ZeroRedundancyOptimizer(net.parameters(), optimizer, **options))
    for kind, (optimizer, options) in KINDS.items():
        net = sharded()
        train(f"full {kind}", net, optimizer(net.parameters(), **options))
    net = sharded()
    train("full clipped", net, torch.optim.SGD(net.parameters(), lr=0.1), clip=0.1)
    net = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    train("full bf16", net, torch.optim.SGD(net.parameters(), lr=0.1))
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # Gloo's threads may outlive the interpreter
