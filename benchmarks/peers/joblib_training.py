import tempfile

import torch
import torch.distributed as dist
from joblib import Parallel, delayed
from task import device_of, train


def main(rank, meeting):
    device = device_of(rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", f"file://{meeting}", rank=rank, world_size=2)
    loss = train(rank, device)
    dist.destroy_process_group()
    return loss


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(Parallel(n_jobs=2)(delayed(main)(rank, f"{folder}/meeting") for rank in range(2))[0])
