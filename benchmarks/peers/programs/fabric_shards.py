"""Trains on tar shards, which are read from beginning to end."""

import glob
import os
from itertools import islice

import torch
import webdataset
from lightning_fabric import Fabric
from network import Network, normalized
from torch.nn.functional import cross_entropy

STEPS = 200

fabric = Fabric()
fabric.seed_everything(1)
shards = (
    webdataset.WebDataset(
        "shards/train-{000..007}.tar",
        nodesplitter=webdataset.split_by_node,
        shardshuffle=8,
        detshuffle=True,
    )
    .shuffle(200)
    .decode("pil")
    .to_tuple("png", "cls")
    .map_tuple(normalized, int)
    .repeat()
)
loader = webdataset.WebLoader(shards, batch_size=16, num_workers=1)

model = Network(10)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
model, optimizer = fabric.setup(model, optimizer)
state = {"model": model, "optimizer": optimizer, "schedule": schedule, "step": 0}
saved = glob.glob("runs/shards/*.ckpt")
if saved:
    fabric.load(max(saved, key=os.path.getmtime), state)

losses, right = [], []
for batch in islice(loader, state["step"], STEPS):
    image, label = fabric.to_device(batch)
    logits = model(image)
    loss = cross_entropy(logits, label)
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    right.append((logits.argmax(1) == label).float().mean())
    state["step"] += 1
    if state["step"] % 10 == 0:
        means = torch.stack([torch.stack(losses).mean(), torch.stack(right).mean()])
        mean, top1 = fabric.all_reduce(means).tolist()
        rate = schedule.get_last_lr()[0]
        fabric.print({"step": state["step"], "lr": rate, "loss": mean, "top1": top1})
        losses.clear()
        right.clear()
    if state["step"] % 50 == 0:
        fabric.save(f"runs/shards/step-{state['step']}.ckpt", state)
