"""The stall of torch.distributed.checkpoint.async_save, for the model of save_bench.cc: python save_bench.py [MIB]."""
import json
import shutil
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict


def main():
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    folder = tempfile.mkdtemp(prefix="dcp-save-bench-")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(mebibytes // 4)])
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saves, stalls, written = [], [], []
    for turn in range(6):
        start = time.perf_counter()
        model, state = get_state_dict(net, optimizer)
        dcp.save({"model": model, "optimizer": state}, checkpoint_id=f"{folder}/a")
        saves.append(time.perf_counter() - start)
        start = time.perf_counter()
        model, state = get_state_dict(net, optimizer)
        future = dcp.async_save({"model": model, "optimizer": state}, checkpoint_id=f"{folder}/b")
        stalls.append(time.perf_counter() - start)
        future.result()
        written.append(time.perf_counter() - start)
    shutil.rmtree(folder)
    save, stall, all_of_it = (statistics.median(x[1:]) for x in (saves, stalls, written))
    print(json.dumps({"save_seconds": save, "stall_seconds": stall, "written_seconds": all_of_it, "stall_ratio": stall / all_of_it}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
