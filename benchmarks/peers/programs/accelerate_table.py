"""Predicts prices from a table whose columns have different scales."""

import glob

import pandas
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset, random_split


class Training:
    """What a checkpoint holds beside model and optimizer."""

    step, epoch, best, patience = 0, 0, float("inf"), 0

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


class Standardised(nn.Module):
    def __init__(self, mean, deviation):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float))

    def forward(self, features):
        return (features - self.mean) / self.deviation


configuration = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(dataloader_config=configuration)
table = pandas.read_csv("houses.csv")
features = torch.tensor(table.drop(columns="price").to_numpy(), dtype=torch.float)
houses = TensorDataset(features, torch.tensor(table["price"].to_numpy(), dtype=torch.float))
parts = random_split(houses, [0.8, 0.2], torch.Generator().manual_seed(1))
scaler = StandardScaler().fit(features[parts[0].indices].numpy())
loader = DataLoader(parts[0], batch_size=32, shuffle=True)
held_out = DataLoader(parts[1], batch_size=64)

set_seed(1)
first = Standardised(scaler.mean_, scaler.scale_)
model = nn.Sequential(first, nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), 3e-2)
model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
training = Training()
accelerator.register_for_checkpointing(training)
step = max((int(path.split("-")[-1]) for path in glob.glob("runs/table/step-*")), default=0)
if step > 0:
    accelerator.load_state(f"runs/table/step-{step}")

losses = []
while training.epoch < 30 and training.patience < 3:
    rest = accelerator.skip_first_batches(loader, training.step % len(loader))
    rest.set_epoch(training.epoch)
    model.train()
    for features, price in rest:
        loss = mse_loss(model(features).squeeze(1), price)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        training.step += 1
        if training.step % len(loader) == 0:
            training.epoch += 1
        elif training.step % 20 == 0:
            accelerator.save_state(f"runs/table/step-{training.step}")
    model.eval()
    errors = []
    with torch.no_grad():
        for features, price in held_out:
            distance = (model(features).squeeze(1) - price).abs()
            errors.append(accelerator.gather_for_metrics(distance))
    error = torch.cat(errors).mean().item()
    mean = accelerator.gather(torch.stack(losses)).mean().item()
    accelerator.print({"step": training.step, "error": error, "loss": mean})
    losses.clear()
    training.patience += 1
    if error < training.best:
        training.best, training.patience = error, 0
        accelerator.save_state("runs/table/best")
accelerator.print("error", training.best)
accelerator.end_training()
