import os

import torch
import torch.distributed as dist
from task import device_of, train
from torchrunx import Launcher


def main():
    device = device_of(int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return train(dist.get_rank(), device)


if __name__ == "__main__":
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    print(Launcher(workers_per_host=2, backend=backend).run(main).rank(0))
