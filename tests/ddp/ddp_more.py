"""The runs of ddp_more.cc by PyTorch's own DistributedDataParallel: a line each, `name: result`."""
import contextlib
import os
import struct
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from twin import join_ranks  # noqa: E402

warnings.simplefilter("ignore", FutureWarning)  # torch.jit is what LibTorch reads
STEPS, BATCH = 6, 8
FOLDER = os.environ["LOSSES_FOLDER"]


def make_net(norm=False):
    torch.manual_seed(11)
    layers = [nn.Linear(12, 16), *([nn.BatchNorm1d(16)] if norm else []), nn.Tanh(), nn.Linear(16, 5)]
    return nn.Sequential(*layers)


class Scripted(nn.Module):
    """Its second output is not part of the loss."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 16)
        self.b = nn.Linear(16, 5)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h), h


def batch(step):
    begin = (step * size + rank) * BATCH % 192
    return features[begin : begin + BATCH], labels[begin : begin + BATCH]


def line(losses, parameters):
    total = sum(parameter.detach().double().sum().item() for parameter in parameters)
    return " ".join([*(struct.pack(">f", loss.item()).hex() for loss in losses), f"{total:.9f}"])


def ddp(net, **options):
    return DistributedDataParallel(net.to(device), gradient_as_bucket_view=True, **options)


def mean_over_ranks(loss):
    """What LBFGS decides by: all ranks take the same number of forwards."""
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean / size


def with_optimizer(make):
    def run():
        model = ddp(make_net())
        optimizer = make(model.parameters())
        losses = []
        for step in range(STEPS):
            x, y = batch(step)

            def closure():
                optimizer.zero_grad()
                loss = cross_entropy(model(x), y)
                loss.backward()
                return mean_over_ranks(loss) if isinstance(optimizer, torch.optim.LBFGS) else loss

            losses.append(optimizer.step(closure))
        return line(losses, model.parameters())

    return run


def ignoring():
    net = make_net(norm=True)
    with torch.no_grad():
        net[0].weight.mul_(1 + rank)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["0.weight", "0.bias", "1.running_mean"])
    return plain(ddp(net))


def plain(model, output=lambda value: value):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        optimizer.zero_grad()
        loss = cross_entropy(output(model(x)), y)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return line(losses, model.parameters())


def scripted(**options):
    def run():
        return plain(ddp(torch.jit.load(f"{FOLDER}/script.pt"), **options), output=lambda value: value[0])

    return run


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(11)
        self.a = nn.Parameter(torch.randn(12, 16) * 0.3)
        self.b = nn.Parameter(torch.randn(16, 5) * 0.3)

    def forward(self, x):
        return torch.tanh(x.mm(self.a)).mm(self.b)


def uneven(initial=True, norm=False, first_ends_first=True, accumulates=False, hook=None, **options):
    def run():
        model = ddp(make_net(norm), **options)
        if hook:
            model.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        with model.join(divide_by_initial_world_size=initial):
            for step in range(2 + 2 * (rank if first_ends_first else size - 1 - rank)):
                x, y = batch(step)
                local = accumulates and step % 2 == 0
                with model.no_sync() if local else contextlib.nullcontext():
                    loss = cross_entropy(model(x), y)
                    loss.backward()
                losses.append(loss)
                if local:
                    continue
                optimizer.step()
                optimizer.zero_grad()
        return line(losses, model.parameters())

    return run


RUNS = {
    "sgd": with_optimizer(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False)),
    "sgd nesterov": with_optimizer(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=False)),
    "rmsprop": with_optimizer(lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=False)),
    "adagrad": with_optimizer(lambda p: torch.optim.Adagrad(p, lr=0.1, foreach=False)),
    "adam": with_optimizer(lambda p: torch.optim.Adam(p, lr=0.01, foreach=False)),
    "adamw": with_optimizer(lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False)),
    "lbfgs": with_optimizer(lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4)),
    "ignored": ignoring,
    "script": scripted(),
    "script unused": scripted(find_unused_parameters=True),
    "script static": scripted(static_graph=True),
    "list": lambda: plain(ddp(Listed())),
    "join": uneven(),
    "join remaining": uneven(initial=False),
    "join rank 0 last": uneven(first_ends_first=False),
    "join remaining rank 0 last": uneven(initial=False, first_ends_first=False),
    "join buffers": uneven(norm=True),
    "join buffers rank 0 last": uneven(norm=True, first_ends_first=False),
    "join unused": uneven(find_unused_parameters=True),
    "join buckets": uneven(bucket_cap_mb=0.0005),
    "join fp16": uneven(hook=default_hooks.fp16_compress_hook),
    "join accumulate": uneven(accumulates=True),
}

rank, size, device = join_ranks()
torch.manual_seed(3)
features = torch.randn(200, 12).to(device)
labels = torch.randint(5, (200,)).to(device)
if rank == 0:
    torch.manual_seed(11)
    torch.jit.script(Scripted()).save(f"{FOLDER}/script.pt")
dist.barrier()
with open(f"{FOLDER}/python-{rank}", "w") as file:
    for name, run in RUNS.items():
        print(f"{name}: {run()}", file=file, flush=True)
dist.barrier()
os._exit(0)  # a thread of PyTorch's Gloo may need the interpreter when that is no more
