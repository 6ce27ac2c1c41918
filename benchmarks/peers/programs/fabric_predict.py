"""Writes what the classifier takes each picture for, in the order of the folder."""

import torch
from lightning_fabric import Fabric
from network import Network, normalized
from safetensors.torch import load_file
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder

fabric = Fabric()
pictures = ImageFolder("pictures/test", normalized)
sampler = DistributedSampler(pictures, fabric.world_size, fabric.global_rank, shuffle=False)
loader = DataLoader(pictures, batch_size=64, sampler=sampler)
model = Network(10)
model.load_state_dict(load_file("runs/classifier/step-200/model.safetensors"))
model = fabric.to_device(model)

model.eval()
outputs = []
with torch.no_grad():
    for batch in loader:
        image, _ = fabric.to_device(batch)
        of_ranks = fabric.all_gather(model(image).argmax(1)).view(fabric.world_size, -1)
        outputs.append(of_ranks.transpose(0, 1).flatten(0, 1).cpu())
classes = torch.cat(outputs)[: len(pictures)]
if fabric.is_global_zero:
    with open("predictions.csv", "w") as file:
        for (path, _), label in zip(pictures.samples, classes.tolist()):
            file.write(f"{path},{label}\n")
