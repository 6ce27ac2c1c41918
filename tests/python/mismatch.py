"""Ranks of two hosts (TEST_HOSTS) that call different things: both sides are shown on every rank. argv: what differs."""
import os
import sys

import torch
import torch.distributed as dist

import muster

os.environ["MUSTER_HOST_ID"] = os.environ["TEST_HOSTS"][int(os.environ["RANK"])]
dist.init_process_group("muster")
other = dist.get_rank() >= dist.get_world_size() // 2
tensor = torch.ones(3, 2)
dist.all_reduce(tensor)  # what all have in common is right
calls = {
    "dtype": lambda: dist.all_reduce(torch.ones(6, dtype=torch.int32) if other else torch.ones(6)),
    "shape": lambda: dist.all_reduce(torch.ones(9 if other else 6)),
    "order": lambda: dist.broadcast(tensor, 0) if other else dist.all_reduce(torch.ones(4)),
}
try:
    calls[sys.argv[1]]()
except RuntimeError as error:
    assert "expected the same call on every rank, got '" in str(error), error
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: ok", flush=True)
store = dist.distributed_c10d._get_default_store()  # rank 0 serves it: it is to end last
store.add("seen", 1)
while dist.get_rank() == 0 and store.add("seen", 0) < dist.get_world_size():
    pass
os._exit(0)  # what differs has ended the group
