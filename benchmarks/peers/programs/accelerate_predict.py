"""Writes what the classifier takes each picture for, in the order of the folder."""

import torch
from accelerate import Accelerator
from network import Network, normalized
from safetensors.torch import load_file
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

accelerator = Accelerator()
pictures = ImageFolder("pictures/test", normalized)
loader = DataLoader(pictures, batch_size=64)
model = Network(10)
model.load_state_dict(load_file("runs/classifier/step-200/model.safetensors"))
model, loader = accelerator.prepare(model, loader)

model.eval()
outputs = []
with torch.no_grad():
    for image, _ in loader:
        outputs.append(accelerator.gather_for_metrics(model(image).argmax(1)).cpu())
classes = torch.cat(outputs)
if accelerator.is_main_process:
    with open("predictions.csv", "w") as file:
        for (path, _), label in zip(pictures.samples, classes.tolist()):
            file.write(f"{path},{label}\n")
accelerator.end_training()
