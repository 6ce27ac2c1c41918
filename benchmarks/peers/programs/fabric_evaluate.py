"""Evaluates the classifier: several metrics in one pass, each picture once."""

import torch
from lightning_fabric import Fabric
from network import Network, normalized
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Subset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix
from torchvision.datasets import ImageFolder

fabric = Fabric()
pictures = ImageFolder("pictures/test", normalized)
part = Subset(pictures, range(fabric.global_rank, len(pictures), fabric.world_size))
loader = DataLoader(part, batch_size=64)
model = Network(10)
model.load_state_dict(load_file("runs/classifier/step-200/model.safetensors"))
model = fabric.to_device(model)

loss = MeanMetric().to(fabric.device)
metrics = MetricCollection(
    {
        "top1": MulticlassAccuracy(10, average="micro"),
        "top3": MulticlassAccuracy(10, top_k=3, average="micro"),
        "confusion": MulticlassConfusionMatrix(10),
    }
).to(fabric.device)
model.eval()
with torch.no_grad():
    for batch in loader:
        image, label = fabric.to_device(batch)
        logits = model(image)
        loss.update(cross_entropy(logits, label, reduction="none"))
        metrics.update(logits, label)
fabric.print("loss", loss.compute().item(), metrics.compute())
