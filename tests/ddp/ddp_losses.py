"""The training of ddp_losses.cc, by PyTorch's own DistributedDataParallel."""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from twin import join_ranks  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 700)
        self.norm = nn.BatchNorm1d(700)
        self.fc2 = nn.Linear(700, 500)
        self.fc3 = nn.Linear(500, 10)

    def forward(self, x):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.norm(self.fc1(x))))))


def hexadecimal(value):
    """As C's %a prints it."""
    mantissa, exponent = float(value).hex().split("p")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}p{exponent}"


rank, size, device = join_ranks()
torch.manual_seed(7)
features = torch.randn(1200, 64).to(device)
labels = torch.randint(10, (1200,)).to(device)
torch.manual_seed(1 + rank)
model = DistributedDataParallel(Net().to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
with open(os.path.join(os.environ["LOSSES_FOLDER"], f"python-{rank}"), "w") as file:
    for step in range(20):
        begin = (step * size + rank) * 16 % 1184
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(features[begin : begin + 16]), labels[begin : begin + 16])
        loss.backward()
        optimizer.step()
        print(hexadecimal(loss.item()), file=file)
dist.destroy_process_group()
os._exit(0)  # a thread of PyTorch's Gloo may need the interpreter when that is no more
