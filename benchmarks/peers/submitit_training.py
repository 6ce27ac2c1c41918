import submitit
import torch
import torch.distributed as dist
from task import device_of, train


def main():
    place = submitit.helpers.TorchDistributedEnvironment().export()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = device_of(place.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    loss = train(place.rank, device)
    dist.destroy_process_group()
    return loss


if __name__ == "__main__":
    executor = submitit.AutoExecutor(folder="logs", cluster="local")
    executor.update_parameters(tasks_per_node=2)
    print(executor.submit(main).results()[0])
