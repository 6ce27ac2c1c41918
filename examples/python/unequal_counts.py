"""Devices of unequal speed: each rank takes its share of a global batch, and the gradients are those of the whole batch."""
import torch
from torch.nn.parallel import DistributedDataParallel

import muster


def train(steps, global_batch):
    ctx = muster.init()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    share = ctx.batch_share(global_batch // ctx.world_size)
    for step in range(steps):
        inputs = torch.randn(share, 8, device=ctx.device)
        loss = model(inputs).square().sum() * ctx.world_size / global_batch  # DDP divides by the ranks
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return share


if __name__ == "__main__":
    print(muster.spawn(train, args=(5, 32), n=2, global_batch=32, quiet=True))
