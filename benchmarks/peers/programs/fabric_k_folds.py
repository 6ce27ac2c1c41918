"""Cross-validates a classifier over five folds, each with its part of every class."""

import glob
import os
from itertools import islice

import pandas
import torch
from lightning_fabric import Fabric
from sklearn.model_selection import StratifiedKFold
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

STEPS = 100

fabric = Fabric()
table = torch.tensor(pandas.read_csv("digits.csv.gz", header=None).to_numpy())
digits = TensorDataset(table[:, :-1].float(), table[:, -1])
folds = StratifiedKFold(5, shuffle=True, random_state=0).split(*digits.tensors)
scores = []
for fold, (train, test) in enumerate(folds):
    sampler = DistributedSampler(train, fabric.world_size, fabric.global_rank)
    loader = DataLoader(Subset(digits, train), batch_size=32, sampler=sampler)
    part = test[fabric.global_rank :: fabric.world_size]
    held_out = DataLoader(Subset(digits, part), batch_size=64)

    fabric.seed_everything(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    model, optimizer = fabric.setup(model, optimizer)
    state = {"model": model, "optimizer": optimizer, "step": 0}
    saved = glob.glob(f"runs/k_folds/{fold}/*.ckpt")
    if saved:
        fabric.load(max(saved, key=os.path.getmtime), state)

    losses = []
    while state["step"] < STEPS:
        epoch, done = divmod(state["step"], len(loader))
        sampler.set_epoch(epoch)
        for batch in islice(loader, done, None):
            features, label = fabric.to_device(batch)
            loss = cross_entropy(model(features), label)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            state["step"] += 1
            if state["step"] % 10 == 0:
                mean = fabric.all_reduce(torch.stack(losses).mean()).item()
                fabric.print({"fold": fold, "step": state["step"], "loss": mean})
                losses.clear()
            if state["step"] % 50 == 0:
                fabric.save(f"runs/k_folds/{fold}/step-{state['step']}.ckpt", state)
            if state["step"] == STEPS:
                break

    model.eval()
    counts = torch.zeros(2, device=fabric.device)
    with torch.no_grad():
        for batch in held_out:
            features, label = fabric.to_device(batch)
            right = (model(features).argmax(1) == label).sum()
            counts += torch.stack([right, torch.tensor(len(label), device=fabric.device)])
    right, count = fabric.all_reduce(counts, reduce_op="sum").tolist()
    scores.append(right / count)
scores = torch.tensor(scores)
fabric.print("top1", scores.mean().item(), "±", scores.std().item())
