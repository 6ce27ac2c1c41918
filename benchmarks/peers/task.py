"""What the programs of this folder have done by two processes: two functions at the same time, and a training of two ranks.
Each program is what its launcher's user writes around them."""
import os
import pathlib
import signal
import time

import torch
from torch.nn.parallel import DistributedDataParallel

STEPS = 20


def own_device():
    """For a process that is shown one device alone."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_of(index):
    """For a process that is shown all devices."""
    return torch.device("cuda", index) if torch.cuda.is_available() else torch.device("cpu")


def folder():
    """Where the processes leave marks for each other. Torchrunx passes on variables of such names alone."""
    return pathlib.Path(os.environ["PYTHON_PEERS_FOLDER"])


def meet(name, other):
    """Returns once both functions run, in processes of their own: so they run at the same time."""
    (folder() / name).touch()
    until = time.monotonic() + 60
    while not (folder() / other).exists():
        if time.monotonic() > until:
            raise TimeoutError(f"{name} and {other} do not run at the same time")
        time.sleep(0.01)


def fit(slope, device):
    meet("fit", "evaluate")
    inputs = torch.linspace(0, 1, 64, device=device).unsqueeze(1)
    found = torch.linalg.lstsq(inputs, slope * inputs).solution
    return f"slope {float(found):.2f}"


def evaluate(count, device):
    meet("evaluate", "fit")
    return f"sum {int(torch.arange(count, device=device).sum())}"


def train(rank, device):
    """A rank of two, whose group is there. Returns the loss over all data."""
    torch.manual_seed(0)
    inputs = torch.randn(64, 8).to(device)
    targets = inputs.sum(1, keepdim=True)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(STEPS):
        if rank == 1 and step == STEPS // 2 and (folder() / "kill").exists():
            (folder() / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[rank::2]), targets[rank::2]).backward()
        optimizer.step()
    with torch.no_grad():
        return f"loss {float(torch.nn.functional.mse_loss(model.module(inputs), targets)):.4f}"
