"""Trains on tar shards, which are read from beginning to end."""

import glob
from itertools import islice

import torch
import webdataset
from accelerate import Accelerator
from accelerate.utils import set_seed
from network import Network, normalized
from torch.nn.functional import cross_entropy

STEPS = 200

accelerator = Accelerator(step_scheduler_with_optimizer=False)
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

set_seed(1)
model = Network(10)
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
step = max((int(path.split("-")[-1]) for path in glob.glob("runs/shards/step-*")), default=0)
if step > 0:
    accelerator.load_state(f"runs/shards/step-{step}")

losses, right = [], []
for image, label in islice(loader, step, STEPS):
    image, label = image.to(accelerator.device), label.to(accelerator.device)
    logits = model(image)
    loss = cross_entropy(logits, label)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    right.append((logits.argmax(1) == label).float().mean())
    step += 1
    if step % 10 == 0:
        means = accelerator.gather(torch.stack([torch.stack(losses), torch.stack(right)], 1)).mean(
            0
        )
        losses.clear()
        right.clear()
        rate = schedule.get_last_lr()[0]
        accelerator.print(
            {"step": step, "lr": rate, "loss": means[0].item(), "top1": means[1].item()}
        )
    if step % 50 == 0:
        accelerator.save_state(f"runs/shards/step-{step}")
accelerator.end_training()
