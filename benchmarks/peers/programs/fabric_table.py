"""Predicts prices from a table whose columns have different scales."""

import glob
import os
from itertools import islice

import pandas
import torch
from lightning_fabric import Fabric
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset, random_split


class Standardised(nn.Module):
    def __init__(self, mean, deviation):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float))

    def forward(self, features):
        return (features - self.mean) / self.deviation


fabric = Fabric()
fabric.seed_everything(1)
table = pandas.read_csv("houses.csv")
features = torch.tensor(table.drop(columns="price").to_numpy(), dtype=torch.float)
houses = TensorDataset(features, torch.tensor(table["price"].to_numpy(), dtype=torch.float))
parts = random_split(houses, [0.8, 0.2], torch.Generator().manual_seed(1))
scaler = StandardScaler().fit(features[parts[0].indices].numpy())
sampler = DistributedSampler(parts[0], fabric.world_size, fabric.global_rank)
loader = DataLoader(parts[0], batch_size=32, sampler=sampler)
part = Subset(parts[1], range(fabric.global_rank, len(parts[1]), fabric.world_size))
held_out = DataLoader(part, batch_size=64)

first = Standardised(scaler.mean_, scaler.scale_)
model = nn.Sequential(first, nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), 3e-2)
model, optimizer = fabric.setup(model, optimizer)
state = {"model": model, "optimizer": optimizer, "step": 0, "best": float("inf"), "patience": 0}
saved = glob.glob("runs/table/step-*.ckpt")
if saved:
    fabric.load(max(saved, key=os.path.getmtime), state)

losses = []
while state["step"] < 30 * len(loader) and state["patience"] < 3:
    epoch, done = divmod(state["step"], len(loader))
    sampler.set_epoch(epoch)
    model.train()
    for batch in islice(loader, done, None):
        features, price = fabric.to_device(batch)
        loss = mse_loss(model(features).squeeze(1), price)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=100.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        state["step"] += 1
        if state["step"] % 20 == 0 and state["step"] % len(loader) > 0:
            fabric.save(f"runs/table/step-{state['step']}.ckpt", state)
    model.eval()
    sums = torch.zeros(2, device=fabric.device)
    with torch.no_grad():
        for batch in held_out:
            features, price = fabric.to_device(batch)
            distance = (model(features).squeeze(1) - price).abs()
            sums += torch.stack([distance.sum(), torch.tensor(len(price), device=fabric.device)])
    total, count = fabric.all_reduce(sums, reduce_op="sum").tolist()
    mean = fabric.all_reduce(torch.stack(losses).mean()).item()
    fabric.print({"step": state["step"], "error": total / count, "loss": mean})
    losses.clear()
    state["patience"] += 1
    if total / count < state["best"]:
        state["best"], state["patience"] = total / count, 0
        fabric.save("runs/table/best.ckpt", state)
fabric.print("error", state["best"])
