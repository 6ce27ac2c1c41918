import os

import torch
import torch.distributed as dist
from task import device_of, train
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = device_of(int(os.environ["LOCAL_RANK"]))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    loss = train(dist.get_rank(), device)
    dist.destroy_process_group()
    return loss


if __name__ == "__main__":
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=0, rdzv_backend="c10d",
                          rdzv_endpoint="localhost:0")
    print(elastic_launch(config, main)()[0])
