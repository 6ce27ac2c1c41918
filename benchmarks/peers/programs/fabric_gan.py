"""Trains a GAN on pictures and noise: two loaders, two models."""

import glob
import os
from itertools import islice

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

NOISE, PIXELS, STEPS = 16, 3 * 32 * 32, 200


class Noise(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return torch.randn(NOISE)


def bce(scores, target):
    return binary_cross_entropy_with_logits(scores, torch.full_like(scores, target))


def batches(loader, step):
    """From this step on, over as many epochs as are asked for."""
    while True:
        epoch, done = divmod(step, len(loader))
        loader.sampler.set_epoch(epoch)
        for batch in islice(loader, done, None):
            yield fabric.to_device(batch)
            step += 1


flat = transforms.Compose(
    [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3), torch.flatten]
)
fabric = Fabric()
fabric.seed_everything(1 + fabric.global_rank)
pictures = ImageFolder("pictures/train", flat)
sampler = DistributedSampler(pictures, fabric.world_size, fabric.global_rank)
real = DataLoader(pictures, batch_size=32, sampler=sampler, num_workers=1)
of_noise = DistributedSampler(Noise(), fabric.world_size, fabric.global_rank)
noise = DataLoader(Noise(), batch_size=32, sampler=of_noise)

maker = nn.Sequential(nn.Linear(NOISE, 128), nn.ReLU(), nn.Linear(128, PIXELS), nn.Tanh())
judge = nn.Sequential(nn.Linear(PIXELS, 128), nn.LeakyReLU(), nn.Linear(128, 1))
of_maker = torch.optim.Adam(maker.parameters(), 2e-4)
of_judge = torch.optim.Adam(judge.parameters(), 2e-4)
maker, of_maker = fabric.setup(maker, of_maker)
judge, of_judge = fabric.setup(judge, of_judge)
state = {"maker": maker, "of_maker": of_maker, "judge": judge, "of_judge": of_judge, "step": 0}
saved = glob.glob("runs/gan/*.ckpt")
if saved:
    fabric.load(max(saved, key=os.path.getmtime), state)

losses = []
both = zip(batches(real, state["step"]), batches(noise, state["step"]))
for (picture, _), seed in islice(both, STEPS - state["step"]):
    of_judging = bce(judge(picture), 1) + bce(judge(maker(seed).detach()), 0)
    fabric.backward(of_judging)
    fabric.clip_gradients(judge, of_judge, max_norm=1.0)
    of_judge.step()
    of_judge.zero_grad()
    judge.requires_grad_(False)
    of_making = bce(judge(maker(seed)), 1)
    fabric.backward(of_making)
    judge.requires_grad_(True)
    fabric.clip_gradients(maker, of_maker, max_norm=1.0)
    of_maker.step()
    of_maker.zero_grad()
    losses.append(torch.stack([of_judging.detach(), of_making.detach()]))
    state["step"] += 1
    if state["step"] % 10 == 0:
        means = fabric.all_reduce(torch.stack(losses).mean(0)).tolist()
        fabric.print({"step": state["step"], "judge": means[0], "maker": means[1]})
        losses.clear()
    if state["step"] % 50 == 0:
        fabric.save(f"runs/gan/step-{state['step']}.ckpt", state)
