"""The same training on several machines, as a script that any launcher starts on each of them:

    muster run --hosts a:4,b:4 several_machines.py        srun -N2 --ntasks-per-node=4 python several_machines.py
"""
import torch
from torch.nn.parallel import DistributedDataParallel

import muster


def main():
    ctx = muster.init()
    torch.manual_seed(ctx.rank)  # other samples on each rank; DDP sends rank 0's weights to all
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(ctx.device))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(1, 11):
        loss = model(torch.randn(16, 8, device=ctx.device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        muster.metrics(step, loss=loss)  # the ranks' mean, in metrics.jsonl of the run's folder
    if ctx.is_main:
        print(f"{ctx.world_size} ranks, {step} steps")


if __name__ == "__main__":
    main()
