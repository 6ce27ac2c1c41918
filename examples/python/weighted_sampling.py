"""Rare classes as often as common ones: all ranks draw the same, and each takes its part."""
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import muster


def train():
    ctx = muster.init()
    torch.manual_seed(0)
    labels = (torch.arange(1000) % 10 == 0).long()  # one in ten
    data = TensorDataset(torch.randn(1000, 4) + labels[:, None], labels)
    weights = 1 / torch.bincount(labels)[labels]
    loader = DataLoader(data, batch_size=25, sampler=muster.WeightedSampler(weights.tolist(), num_samples=400))
    model = DistributedDataParallel(torch.nn.Linear(4, 2).to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen = 0
    for inputs, targets in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs.to(ctx.device)), targets.to(ctx.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += int(targets.sum())
    return seen  # of 200: about a half


if __name__ == "__main__":
    print(muster.spawn(train, n=2, quiet=True))
