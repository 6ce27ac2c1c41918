"""A rank that meets what goes wrong, and says what it was told: `faults.py killed`."""
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import muster


def killed():
    """The last rank dies; the others are told so when they need it."""
    if "TEST_HOSTS" in os.environ:
        os.environ["MUSTER_HOST_ID"] = os.environ["TEST_HOSTS"][int(os.environ["RANK"])]
    dist.init_process_group("muster")
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        print(f"at {time.monotonic()}", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1000))


try:
    {"killed": killed}[sys.argv[1]]()
except RuntimeError as error:
    print(f"at {time.monotonic()}\n{error}")
