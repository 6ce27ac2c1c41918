"""Texts of unequal length: each global batch is divided so that the ranks have equally much to do."""
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import muster


def train():
    ctx = muster.init()
    torch.manual_seed(0)
    texts = [torch.randint(100, (int(length),)) for length in torch.randint(1, 60, (200,))]
    sampler = muster.CostBalancedSampler([len(text) for text in texts], global_batch=20)
    loader = DataLoader(texts, batch_sampler=sampler, collate_fn=lambda batch: torch.nn.utils.rnn.pad_sequence(batch, batch_first=True))
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 1)).to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = 0
    for batch in loader:
        optimizer.zero_grad()
        model(batch.to(ctx.device)).square().mean().backward()
        optimizer.step()
        tokens += int((batch > 0).sum())
    return tokens


if __name__ == "__main__":
    print(muster.spawn(train, n=2, quiet=True))
