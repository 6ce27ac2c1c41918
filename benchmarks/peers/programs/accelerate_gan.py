"""Trains a GAN on pictures and noise: two loaders, two models."""

import glob
from itertools import islice

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, Dataset
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
        rest = accelerator.skip_first_batches(loader, step % len(loader))
        rest.set_epoch(step // len(loader))
        for batch in rest:
            yield batch
            step += 1


flat = transforms.Compose(
    [transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3), torch.flatten]
)
configuration = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(dataloader_config=configuration)
pictures = ImageFolder("pictures/train", flat)
real = DataLoader(pictures, batch_size=32, shuffle=True, num_workers=1)
noise = DataLoader(Noise(), batch_size=32, shuffle=True)

set_seed(1, device_specific=True)
maker = nn.Sequential(nn.Linear(NOISE, 128), nn.ReLU(), nn.Linear(128, PIXELS), nn.Tanh())
judge = nn.Sequential(nn.Linear(PIXELS, 128), nn.LeakyReLU(), nn.Linear(128, 1))
of_maker = torch.optim.Adam(maker.parameters(), 2e-4)
of_judge = torch.optim.Adam(judge.parameters(), 2e-4)
maker, judge, of_maker, of_judge, real, noise = accelerator.prepare(
    maker, judge, of_maker, of_judge, real, noise
)
step = max((int(path.split("-")[-1]) for path in glob.glob("runs/gan/step-*")), default=0)
if step > 0:
    accelerator.load_state(f"runs/gan/step-{step}")

losses = []
both = zip(batches(real, step), batches(noise, step))
for (picture, _), seed in islice(both, STEPS - step):
    of_judging = bce(judge(picture), 1) + bce(judge(maker(seed).detach()), 0)
    accelerator.backward(of_judging)
    accelerator.clip_grad_norm_(judge.parameters(), 1.0)
    of_judge.step()
    of_judge.zero_grad()
    judge.requires_grad_(False)
    of_making = bce(judge(maker(seed)), 1)
    accelerator.backward(of_making)
    judge.requires_grad_(True)
    accelerator.clip_grad_norm_(maker.parameters(), 1.0)
    of_maker.step()
    of_maker.zero_grad()
    losses.append(torch.stack([of_judging.detach(), of_making.detach()]))
    step += 1
    if step % 10 == 0:
        means = accelerator.gather(torch.stack(losses)).mean(0).tolist()
        accelerator.print({"step": step, "judge": means[0], "maker": means[1]})
        losses.clear()
    if step % 50 == 0:
        accelerator.save_state(f"runs/gan/step-{step}")
accelerator.end_training()
