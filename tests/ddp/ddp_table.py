"""The cases of ddp_table.cc by PyTorch's own DistributedDataParallel: a line each, `row column: result`."""
import os
import struct
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from twin import join_ranks  # noqa: E402

STEPS, BATCH = 6, 8


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 16)
        self.b = nn.Linear(16, 5)

    def forward(self, x, pick):
        return self.b(torch.tanh(self.a(x)))

    def loss(self, output, x, y):
        return cross_entropy(output, y)

    def before(self, step):
        pass

    def wrapped(self, group, options):
        pass

    @staticmethod
    def pick(step, rank):
        return 0


class Branches(Mlp):
    """One of two branches, the same on all ranks: 0, 0, 1, 0, 1, 1."""

    def __init__(self):
        super().__init__()
        self.c = nn.Linear(16, 5)

    def forward(self, x, pick):
        return (self.c if pick else self.b)(torch.tanh(self.a(x)))

    @staticmethod
    def pick(step, rank):
        return [0, 0, 1, 0, 1, 1][step]


class Experts(Branches):
    """Each rank another one; in the last steps both the same."""

    @staticmethod
    def pick(step, rank):
        return (step + rank) % 2 if step < 4 else 1


class Shared(nn.Module):
    """A layer that is used twice, and one weight that two layers have."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(12, 12)
        self.b = nn.Linear(12, 5)
        self.c = nn.Linear(12, 5)
        self.c.weight = self.b.weight

    def forward(self, x, pick):
        hidden = torch.tanh(self.a(torch.tanh(self.a(x))))
        return self.b(hidden) + self.c(hidden)

    loss, before, wrapped, pick = Mlp.loss, Mlp.before, Mlp.wrapped, staticmethod(Mlp.pick)


class Frozen(Mlp):
    def __init__(self):
        super().__init__()
        self.a.requires_grad_(False)


class Freezing(Mlp):
    """Frozen after it was wrapped, for two steps."""

    def before(self, step):
        self.a.requires_grad_(step not in (2, 3))


class FrozenWhole(Mlp):
    """Nothing is trained for two steps, but gradients flow through: a discriminator while its generator trains."""

    def before(self, step):
        self.requires_grad_(step not in (2, 3))

    def forward(self, x, pick):
        return super().forward(x.requires_grad_(), pick)


class TwoOutputs(Mlp):
    """The loss looks at the first alone."""

    def __init__(self):
        super().__init__()
        self.aux = nn.Linear(16, 2)

    def forward(self, x, pick):
        hidden = torch.tanh(self.a(x))
        return self.b(hidden), self.aux(hidden)

    def loss(self, output, x, y):
        return cross_entropy(output[0], y)


class Nested(TwoOutputs):
    def forward(self, x, pick):
        logits, aux = super().forward(x, pick)
        return {"logits": (logits, [aux])}

    def loss(self, output, x, y):
        logits, [aux] = output["logits"]
        return cross_entropy(logits, y) + aux.square().mean()


class Checkpointed(Mlp):
    def forward(self, x, pick):
        return self.b(checkpoint(lambda h: torch.tanh(self.a(h)), x.requires_grad_(), use_reentrant=True))


class CheckpointedTwice(Mlp):
    def __init__(self):
        super().__init__()
        self.m = nn.Linear(16, 16)

    def forward(self, x, pick):
        h = torch.tanh(self.a(x))
        for _ in range(2):
            h = checkpoint(lambda h: torch.tanh(self.m(h)), h, use_reentrant=True)
        return self.b(h)


class Penalty(Mlp):
    """A gradient penalty: torch.autograd.grad with respect to the input, before backward."""

    def forward(self, x, pick):
        return super().forward(x.requires_grad_(), pick)

    def loss(self, output, x, y):
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return cross_entropy(output, y) + slope.square().sum(1).mean()


class InPlace(Mlp):
    def loss(self, output, x, y):
        return cross_entropy(output.mul_(2), y)


class Norm(Mlp):
    def __init__(self):
        super().__init__()
        self.n = nn.BatchNorm1d(16)

    def forward(self, x, pick):
        return self.b(torch.tanh(self.n(self.a(x))))


class Evaluated(Norm):
    """Rank 0 alone runs a forward without gradients between two steps, on the model itself."""


class TwoWrapped(Mlp):
    """Another wrapped model has the first layer too, and is in the same backward. Python needs copies for that."""

    def wrapped(self, group, options):
        other = nn.Sequential(self.a, nn.Linear(16, 5)).to(self.a.weight.device)
        self.other = [DistributedDataParallel(other, process_group=group, **options)]  # no part of this one

    def loss(self, output, x, y):
        self.other[0].module[1].zero_grad()
        return cross_entropy(output, y) + cross_entropy(self.other[0](x), y)


ROWS = {
    "mlp": Mlp, "branches": Branches, "experts": Experts, "shared": Shared, "frozen": Frozen,
    "freezing": Freezing, "frozen_whole": FrozenWhole, "two_outputs": TwoOutputs, "nested": Nested,
    "checkpointed": Checkpointed, "checkpointed_twice": CheckpointedTwice, "penalty": Penalty,
    "in_place": InPlace, "norm": Norm, "evaluated": Evaluated, "two_wrapped": TwoWrapped,
}  # fmt: skip
COLUMNS = {
    "plain": {}, "unused": {"find_unused_parameters": True}, "static": {"static_graph": True},
    "copies": {"gradient_as_bucket_view": False}, "buckets": {"bucket_cap_mb": 0.0005}, "accumulate": {},
    "unused_accumulate": {"find_unused_parameters": True},
}  # fmt: skip


def train(row, column, rank, size, features, labels):
    torch.manual_seed(11)
    options = {"gradient_as_bucket_view": row != "two_wrapped", **COLUMNS[column]}
    group = dist.new_group()
    model = DistributedDataParallel(ROWS[row]().to(device), process_group=group, **options)
    net = model.module
    net.wrapped(group, options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    accumulate, losses = column.endswith("accumulate"), []
    for step in range(STEPS):
        net.before(step)
        for micro in range(2 if accumulate else 1):
            begin = ((step + micro) * size + rank) * BATCH % (len(features) - BATCH)
            x, y = features[begin : begin + BATCH].clone(), labels[begin : begin + BATCH]
            if accumulate and micro == 0:
                with model.no_sync():
                    net.loss(model(x, net.pick(step, rank)), x, y).backward()
                continue
            loss = net.loss(model(x, net.pick(step, rank)), x, y)
            loss.backward()
        if row == "evaluated" and rank == 0:
            with torch.no_grad():
                net(features[:BATCH], 0)
        optimizer.step()
        for parameter in net.parameters():
            parameter.grad = None
        losses.append(struct.pack(">f", loss.item()).hex())  # its bits
    total = sum(parameter.detach().double().sum().item() for parameter in net.parameters())
    return " ".join(losses) + f" {total:.9f}"


rank, size, device = join_ranks()
torch.manual_seed(3)
features = torch.randn(200, 12).to(device)
labels = torch.randint(5, (200,)).to(device)
with open(os.path.join(os.environ["LOSSES_FOLDER"], f"python-{rank}"), "w") as file:
    for row in ROWS:
        for column in COLUMNS:
            try:
                result = train(row, column, rank, size, features, labels)
            except RuntimeError as error:
                result = "refused: " + str(error).splitlines()[0]
            print(f"{row} {column}: {result}", file=file, flush=True)
os._exit(0)  # a refused case's all_reduces may still be under way
