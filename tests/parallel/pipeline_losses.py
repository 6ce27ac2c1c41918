"""The training of pipeline_losses.cc, by torch.distributed.pipelining over Gloo."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

MICRO_BATCHES, ROWS = 8, 64


def hexadecimal(value):
    """As C's %a prints it."""
    mantissa, exponent = float(value).hex().split("p")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}p{exponent}"


def my_stage():
    torch.manual_seed(7)
    layers = [nn.Linear(32, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 10)]
    return nn.Sequential(*layers[2 * rank : 2 * rank + 2])


dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
with open(f"{os.environ['LOSSES_FOLDER']}/python-{rank}", "w") as file:
    for name, kind in (("gpipe", ScheduleGPipe), ("one_f_one_b", Schedule1F1B)):
        module = my_stage()
        stage = PipelineStage(module, rank, size, torch.device("cpu"))
        schedule = kind(stage, MICRO_BATCHES, loss_fn=nn.functional.cross_entropy)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        torch.manual_seed(3)
        for _ in range(20):
            x, y = torch.randn(ROWS, 32), torch.randint(10, (ROWS,))
            optimizer.zero_grad()
            losses = []
            if rank == 0:
                schedule.step(x)
            elif rank == size - 1:
                schedule.step(target=y, losses=losses)
            else:
                schedule.step()
            optimizer.step()
            if losses:
                total = losses[0].detach()
                for loss in losses[1:]:
                    total = total + loss.detach()
                print(name, hexadecimal(total / MICRO_BATCHES), file=file)
dist.barrier()
os._exit(0)  # a thread of PyTorch's Gloo may need the interpreter when that is no more
