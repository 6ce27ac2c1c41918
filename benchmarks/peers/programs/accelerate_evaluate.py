"""Evaluates the classifier: several metrics in one pass, each picture once."""

import torch
from accelerate import Accelerator
from network import Network, normalized
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix
from torchvision.datasets import ImageFolder

accelerator = Accelerator()
loader = DataLoader(ImageFolder("pictures/test", normalized), batch_size=64)
model = Network(10)
model.load_state_dict(load_file("runs/classifier/step-200/model.safetensors"))
model, loader = accelerator.prepare(model, loader)

loss = MeanMetric().to(accelerator.device)
metrics = MetricCollection(
    {
        "top1": MulticlassAccuracy(10, average="micro"),
        "top3": MulticlassAccuracy(10, top_k=3, average="micro"),
        "confusion": MulticlassConfusionMatrix(10),
    }
).to(accelerator.device)
for metric in (loss, *metrics.values()):
    metric.sync_on_compute = False  # every rank sees all samples
model.eval()
with torch.no_grad():
    for image, label in loader:
        logits, label = accelerator.gather_for_metrics((model(image), label))
        loss.update(cross_entropy(logits, label, reduction="none"))
        metrics.update(logits, label)
accelerator.print("loss", loss.compute().item(), metrics.compute())
accelerator.end_training()
