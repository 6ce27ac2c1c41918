"""Where the Python twin of a C++ program trains: on this rank's GPU over NCCL where MUSTER_BACKEND says nccl, else on the CPU
over Gloo."""
import os

import torch
import torch.distributed as dist


def join_ranks():
    """This rank, the number of ranks, and this rank's device."""
    on_gpu = os.environ["MUSTER_BACKEND"] == "nccl"
    shares = on_gpu and os.environ.get("ON_ONE_GPU")
    if shares:  # NCCL takes ranks that share a GPU where each says that it is on a host of its own
        os.environ.update(NCCL_HOSTID="host" + os.environ["RANK"], NCCL_SOCKET_IFNAME="lo")
    device = torch.device("cuda", 0 if shares else int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.backends.cudnn.deterministic = True
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    return dist.get_rank(), dist.get_world_size(), device
