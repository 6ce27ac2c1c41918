"""Trains a classifier on a folder of pictures, with a sub-folder for each class."""

import glob
import os
from itertools import islice

import torch
from lightning_fabric import Fabric
from network import Network, normalized
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

STEPS = 200

augmented = transforms.Compose([transforms.RandomResizedCrop(32, (0.6, 1.0)), normalized])
fabric = Fabric()
fabric.seed_everything(1)
pictures = ImageFolder("pictures/train", augmented)
sampler = DistributedSampler(pictures, fabric.world_size, fabric.global_rank)
loader = DataLoader(pictures, batch_size=16, sampler=sampler, num_workers=1)
others = ImageFolder("pictures/test", normalized)
part = Subset(others, range(fabric.global_rank, len(others), fabric.world_size))
held_out = DataLoader(part, batch_size=64)

model = Network(len(pictures.classes))
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
model, optimizer = fabric.setup(model, optimizer)
state = {"model": model, "optimizer": optimizer, "schedule": schedule, "step": 0}
saved = glob.glob("runs/classifier/*.ckpt")
if saved:
    fabric.load(max(saved, key=os.path.getmtime), state)

losses = []
while state["step"] < STEPS:
    epoch, done = divmod(state["step"], len(loader))
    sampler.set_epoch(epoch)
    for batch in islice(loader, done, None):
        image, label = fabric.to_device(batch)
        loss = cross_entropy(model(image), label)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        state["step"] += 1
        if state["step"] % 20 == 0:
            mean = fabric.all_reduce(torch.stack(losses).mean()).item()
            fabric.print({"step": state["step"], "lr": schedule.get_last_lr()[0], "loss": mean})
            losses.clear()
        if state["step"] % 50 == 0:
            fabric.save(f"runs/classifier/step-{state['step']}.ckpt", state)
        if state["step"] == STEPS:
            break

model.eval()
counts = torch.zeros(2, device=fabric.device)
with torch.no_grad():
    for batch in held_out:
        image, label = fabric.to_device(batch)
        right = (model(image).argmax(1) == label).sum()
        counts += torch.stack([right, torch.tensor(len(label), device=fabric.device)])
right, count = fabric.all_reduce(counts, reduce_op="sum").tolist()
fabric.print("top1", right / count)
