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
    "op": lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX if other else dist.ReduceOp.SUM),
    "dtype": lambda: dist.all_reduce(torch.ones(6, dtype=torch.int32) if other else torch.ones(6)),
    "shape": lambda: dist.all_reduce(torch.ones(9 if other else 6)),
    "order": lambda: dist.broadcast(tensor, 0) if other else dist.all_reduce(torch.ones(4)),
}
try:
    calls[sys.argv[1]]()
except RuntimeError as error:
    assert "expected the same call on every rank, got '" in str(error), error
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: ok")
sys.stdout.flush()
os._exit(0)  # what differs has ended the group
