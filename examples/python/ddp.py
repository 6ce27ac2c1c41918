"""DistributedDataParallel in one script: python ddp.py. Under `muster run`, torchrun or srun, call train() itself."""
import sys

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import muster


def train(epochs):
    ctx = muster.init()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
    sampler = muster.DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(ctx.device))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs.to(ctx.device)), targets.to(ctx.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            ctx.note(step=step, samples=len(inputs), loss=loss)
            if ctx.should_stop():
                sys.exit(muster.STOPPED)
    return round(loss.item(), 3)


if __name__ == "__main__":
    print(muster.spawn(train, args=(2,), n=None if muster.devices() else 2, quiet=True))
