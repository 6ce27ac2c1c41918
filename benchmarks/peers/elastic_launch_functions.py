import os

from task import device_of, evaluate, fit
from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def main():
    rank = int(os.environ["LOCAL_RANK"])
    return fit(3.0, device_of(rank)) if rank == 0 else evaluate(10, device_of(rank))


if __name__ == "__main__":
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=0, rdzv_backend="c10d",
                          rdzv_endpoint="localhost:0")
    results = elastic_launch(config, main)()
    print([results[0], results[1]])
