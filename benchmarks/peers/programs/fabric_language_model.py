"""Trains a small GPT on a file of tokens."""

import glob
import os
from itertools import islice

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

VOCABULARY, CONTEXT, WIDTH, STEPS = 65, 32, 32, 120


class TokenFile(Dataset):
    def __init__(self, path):
        self.tokens = np.memmap(path, np.uint16, "r")

    def __len__(self):
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index):
        begin = torch.randint(len(self.tokens) - CONTEXT, ()).item()
        window = torch.from_numpy(self.tokens[begin : begin + CONTEXT + 1].astype(np.int64))
        return window[:-1], window[1:]


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.embedding(tokens) + self.positions(places)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=tokens.device)
        return self.head(self.encoder(x, mask))


fabric = Fabric()
fabric.seed_everything(1 + fabric.global_rank)
text = TokenFile("text.bin")
sampler = DistributedSampler(text, fabric.world_size, fabric.global_rank)
loader = DataLoader(text, batch_size=8, sampler=sampler)

model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
warmup = LinearLR(optimizer, 0.01, total_iters=20)
schedule = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, STEPS - 20)], [20])
model, optimizer = fabric.setup(model, optimizer)
state = {"model": model, "optimizer": optimizer, "schedule": schedule, "step": 0}
saved = glob.glob("runs/lm/*.ckpt")
if saved:
    fabric.load(max(saved, key=os.path.getmtime), state)

losses = []
steps_of_epoch = (len(loader) + 1) // 2
while state["step"] < STEPS:
    epoch, done = divmod(state["step"], steps_of_epoch)
    sampler.set_epoch(epoch)
    for index, batch in enumerate(islice(loader, 2 * done, None), 2 * done + 1):
        tokens, targets = fabric.to_device(batch)
        is_last = index % 2 == 0 or index == len(loader)
        with fabric.no_backward_sync(model, enabled=not is_last):
            loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            fabric.backward(loss / 2)
        losses.append(loss.detach())
        if not is_last:
            continue
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        state["step"] += 1
        if state["step"] % 10 == 0:
            mean = fabric.all_reduce(torch.stack(losses).mean()).item()
            fabric.print({"step": state["step"], "lr": schedule.get_last_lr()[0], "loss": mean})
            losses.clear()
        if state["step"] % 30 == 0:
            fabric.save(f"runs/lm/step-{state['step']}.ckpt", state)
        if state["step"] == STEPS:
            break
