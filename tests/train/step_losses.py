"""The training of step_losses.cc by PyTorch's own parts, in the order that a careful user writes them."""
import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from twin import join_ranks  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6 * 36, 10)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


def hexadecimal(value):
    """As C's %a prints it."""
    mantissa, exponent = float(value).hex().split("p")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}p{exponent}"


def train(name, dtype, file):
    torch.manual_seed(7)
    images, labels = torch.randn(960, 1, 8, 8).to(device), torch.randint(10, (960,)).to(device)
    torch.manual_seed(1 + rank)
    # As muster's default. CUDA adds up a gradient's norm in an order that depends on where the gradient begins in memory.
    model = DistributedDataParallel(Net().to(device), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**20, growth_interval=4, enabled=dtype == torch.float16)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step) ** 0.5)
    averaged = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    skipped = 0
    for i in range(40):
        begin = (i * size + rank) * 8 % 952
        last = i % 2 == 1
        with contextlib.nullcontext() if last else model.no_sync():
            with torch.autocast(device.type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                loss = nn.functional.cross_entropy(model(images[begin:begin + 8]), labels[begin:begin + 8])
            scaler.scale(loss * 0.5).backward()
        if last:
            before = scaler.get_scale()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() >= before:
                schedule.step()
                averaged.update_parameters(model.module)
            else:
                skipped += 1
        print(name, hexadecimal(loss.item()), hexadecimal(scaler.get_scale()), skipped, file=file)
    for key, value in [*averaged.module.named_parameters(), *averaged.module.named_buffers()]:
        print(name, key, hexadecimal(value.double().sum().item()), file=file)


rank, size, device = join_ranks()
with open(os.path.join(os.environ["LOSSES_FOLDER"], f"python-{rank}"), "w") as file:
    for name, dtype in (("fp32", None), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        train(name, dtype, file)
dist.destroy_process_group()
os._exit(0)  # a thread of PyTorch's Gloo may need the interpreter when that is no more
