"""Averages of swa_utils.AveragedModel while a model with a batch norm is trained."""

from pytorch import say, torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


def with_warmup(decay):
    def update(averages, weights, count):
        n = float(count)
        torch._foreach_lerp_(averages, weights, 1 - min(decay, (1 + n) / (10 + n)))
    return update


def averages(name, function, use_buffers=False, every=1):
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 3))
    data = torch.randn(8, 6)
    averaged = AveragedModel(net, multi_avg_fn=function, use_buffers=use_buffers)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for step in range(1, 26):
        net(data).square().sum().div(10).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % every == 0:
            averaged.update_parameters(net)
    kept = [value for value in list(averaged.module.parameters()) + list(averaged.module.buffers()) if value.is_floating_point()]
    say(name, torch.cat([value.detach().double().reshape(-1) for value in kept]))
    averaged.module.eval()
    say(f"{name}_output", averaged(data))


averages("ema_0.9", get_ema_multi_avg_fn(0.9))
averages("ema_0.999_buffers", get_ema_multi_avg_fn(0.999), use_buffers=True)
averages("ema_0.7_every_3", get_ema_multi_avg_fn(0.7), every=3)
averages("ema_0.99_warmup", with_warmup(0.99))
