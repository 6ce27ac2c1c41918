"""Texts of unequal length: each global batch is divided so that the ranks have equally much to do."""
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import muster


def train():
    ctx = muster.init()
    torch.manual_seed(0)
    texts = [torch.randint(1, 100, (int(length),)) for length in torch.randint(1, 60, (200,))]
    sampler = muster.CostBalancedSampler([len(text) for text in texts], global_batch=20)
    loader = DataLoader(texts, batch_sampler=sampler, collate_fn=lambda batch: torch.nn.utils.rnn.pad_sequence(batch, batch_first=True))
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 1)).to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    tokens = 0
    for number, batch in enumerate(loader):
        optimizer.zero_grad()
        batch = batch.to(ctx.device)
        there = batch > 0  # the rest pads
        losses = (model(batch)[:, :, 0].square() * there).sum(1) / there.sum(1)
        (losses.mean() * sampler.weight(number)).backward()  # a rank with longer texts has fewer of them
        optimizer.step()
        tokens += int(there.sum())
    return tokens, model.module[1].bias.item()


if __name__ == "__main__":
    print(muster.spawn(train, n=2, quiet=True))
