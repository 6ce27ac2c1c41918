"""The training of tensor_losses.cc, by PyTorch's own tensor parallelism over Gloo."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(64, 700)
        self.down = nn.Linear(700, 10)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(7)
features = torch.randn(1200, 64)
labels = torch.randint(10, (1200,))
mesh = init_device_mesh("cpu", (size,))
model = parallelize_module(Net(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
with open(os.path.join(os.environ["LOSSES_FOLDER"], f"python-{rank}"), "w") as file:
    for step in range(25):
        begin = step % 4 * 32
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features[begin : begin + 32]), labels[begin : begin + 32])
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.9g}", file=file)
dist.destroy_process_group()
os._exit(0)  # a thread of PyTorch's Gloo may need the interpreter when that is no more
