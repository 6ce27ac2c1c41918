"""Fine-tunes the classifier for other classes: its backbone is frozen, its head is new."""

import glob

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from network import Network, normalized
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

STEPS = 100

augmented = transforms.Compose([transforms.RandomResizedCrop(32, (0.6, 1.0)), normalized])
configuration = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(dataloader_config=configuration, step_scheduler_with_optimizer=False)
pictures = ImageFolder("pictures/odd", augmented)
loader = DataLoader(pictures, batch_size=16, shuffle=True, num_workers=1)
held_out = DataLoader(ImageFolder("pictures/odd_test", normalized), batch_size=64)

set_seed(1)
model = Network(len(pictures.classes))
weights = load_file("runs/classifier/step-200/model.safetensors")
without_head = {name: weights[name] for name in weights if not name.startswith("head.")}
model.load_state_dict(without_head, strict=False)
model.backbone.requires_grad_(False)
optimizer = torch.optim.AdamW(model.head.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
model, optimizer, schedule, loader, held_out = accelerator.prepare(
    model, optimizer, schedule, loader, held_out
)
step = max((int(path.split("-")[-1]) for path in glob.glob("runs/fine_tune/step-*")), default=0)
if step > 0:
    accelerator.load_state(f"runs/fine_tune/step-{step}")

losses = []
while step < STEPS:
    rest = accelerator.skip_first_batches(loader, step % len(loader))
    rest.set_epoch(step // len(loader))
    for image, label in rest:
        loss = cross_entropy(model(image), label)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        step += 1
        if step % 10 == 0:
            mean = accelerator.gather(torch.stack(losses)).mean().item()
            accelerator.print({"step": step, "lr": schedule.get_last_lr()[0], "loss": mean})
            losses.clear()
        if step % 25 == 0:
            accelerator.save_state(f"runs/fine_tune/step-{step}")
        if step == STEPS:
            break

model.eval()
right = []
with torch.no_grad():
    for image, label in held_out:
        right.append(accelerator.gather_for_metrics(model(image).argmax(1) == label))
accelerator.print("top1", torch.cat(right).float().mean().item())
accelerator.end_training()
