"""Trains a small GPT on a file of tokens."""

import glob

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, Dataset

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


configuration = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(
    gradient_accumulation_steps=2,
    dataloader_config=configuration,
    step_scheduler_with_optimizer=False,
)
loader = DataLoader(TokenFile("text.bin"), batch_size=8, shuffle=True)

set_seed(1, device_specific=True)
model = LanguageModel()
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
warmup = LinearLR(optimizer, 0.01, total_iters=20)
schedule = SequentialLR(optimizer, [warmup, CosineAnnealingLR(optimizer, STEPS - 20)], [20])
model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
step = max((int(path.split("-")[-1]) for path in glob.glob("runs/lm/step-*")), default=0)
if step > 0:
    accelerator.load_state(f"runs/lm/step-{step}")

losses = []
steps_of_epoch = (len(loader) + 1) // 2
while step < STEPS:
    rest = accelerator.skip_first_batches(loader, step % steps_of_epoch * 2)
    rest.set_epoch(step // steps_of_epoch)
    for tokens, targets in rest:
        with accelerator.accumulate(model):
            loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            accelerator.backward(loss)
            losses.append(loss.detach())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        schedule.step()
        step += 1
        if step % 10 == 0:
            mean = accelerator.gather(torch.stack(losses)).mean().item()
            accelerator.print({"step": step, "lr": schedule.get_last_lr()[0], "loss": mean})
            losses.clear()
        if step % 30 == 0:
            accelerator.save_state(f"runs/lm/step-{step}")
        if step == STEPS:
            break
accelerator.end_training()
