"""Gradient accumulation: gradients travel once in four batches."""
import contextlib

import torch
from torch.nn.parallel import DistributedDataParallel

import muster

ACCUMULATE = 4


def train(batches):
    ctx = muster.init()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(1, batches + 1):
        inputs = torch.full((4, 8), float(number), device=ctx.device)
        last = number % ACCUMULATE == 0
        with contextlib.nullcontext() if last else model.no_sync(), muster.span("forward and backward"):
            (model(inputs).square().mean() / ACCUMULATE / 100).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            ctx.note(step=number // ACCUMULATE, samples=4 * ACCUMULATE)
    return [round(float(weight), 4) for weight in model.module.weight[0, :2]]


if __name__ == "__main__":
    first, second = muster.spawn(train, args=(8,), n=2, quiet=True)
    print(first == second, first)
