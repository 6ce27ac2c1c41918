"""Rank 1 does not come to the second all_reduce: the others say where it is."""
import datetime
import threading

import torch
import torch.distributed as dist

import muster

dist.init_process_group("muster", timeout=datetime.timedelta(seconds=8))
values = torch.ones(1000)
dist.all_reduce(values)
if dist.get_rank() == 1:
    threading.Event().wait()
dist.all_reduce(values)
