"""GradScaler's scales with infinities put into gradients, and losses of training under autocast."""

from pytorch import say, torch
from torch import nn


def scales():
    """Two optimizers, each with infinities of its own; what they have trained and every scale."""
    first, second = (torch.full((4,), value, requires_grad=True) for value in (1.0, 2.0))
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in (first, second)]
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    values, trackers = [], []
    for step in range(40):
        scaler.scale((first * second).sum()).backward()
        if step in (0, 1, 9, 20, 21, 22):
            first.grad[1] = float("inf")
        if step in (5, 21):
            second.grad[2] = float("nan")
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
        values.append(scaler.get_scale())
        trackers.append(scaler._get_growth_tracker())
    say("scales", values)
    say("growth_trackers", trackers)
    say("first", first)
    say("second", second)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6 * 36, 10)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


def training(name, dtype):
    torch.manual_seed(3)
    images, labels = torch.randn(64, 1, 8, 8), torch.randint(10, (64,))
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=4, enabled=dtype == torch.float16)
    losses = []
    for step in range(12):
        with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(net(images), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    say(f"losses_{name}", losses)


scales()
training("fp32", None)
training("bf16", torch.bfloat16)
training("fp16", torch.float16)
