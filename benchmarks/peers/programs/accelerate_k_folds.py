"""Cross-validates a classifier over five folds, each with its part of every class."""

import glob

import pandas
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from sklearn.model_selection import StratifiedKFold
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset, TensorDataset

STEPS = 100

configuration = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(dataloader_config=configuration)
table = torch.tensor(pandas.read_csv("digits.csv.gz", header=None).to_numpy())
digits = TensorDataset(table[:, :-1].float(), table[:, -1])
folds = StratifiedKFold(5, shuffle=True, random_state=0).split(*digits.tensors)
scores = []
for fold, (train, test) in enumerate(folds):
    loader = DataLoader(Subset(digits, train), batch_size=32, shuffle=True)
    held_out = DataLoader(Subset(digits, test), batch_size=64)

    set_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    saved = glob.glob(f"runs/k_folds/{fold}/step-*")
    step = max((int(path.split("-")[-1]) for path in saved), default=0)
    if step > 0:
        accelerator.load_state(f"runs/k_folds/{fold}/step-{step}")

    losses = []
    while step < STEPS:
        rest = accelerator.skip_first_batches(loader, step % len(loader))
        rest.set_epoch(step // len(loader))
        for features, label in rest:
            loss = cross_entropy(model(features), label)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            step += 1
            if step % 10 == 0:
                mean = accelerator.gather(torch.stack(losses)).mean().item()
                accelerator.print({"fold": fold, "step": step, "loss": mean})
                losses.clear()
            if step % 50 == 0:
                accelerator.save_state(f"runs/k_folds/{fold}/step-{step}")
            if step == STEPS:
                break

    model.eval()
    right = []
    with torch.no_grad():
        for features, label in held_out:
            right.append(accelerator.gather_for_metrics(model(features).argmax(1) == label))
    scores.append(torch.cat(right).float().mean())
    accelerator.free_memory()
scores = torch.stack(scores)
accelerator.print("top1", scores.mean().item(), "±", scores.std().item())
accelerator.end_training()
