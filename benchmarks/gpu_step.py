#!/usr/bin/env python3
"""What a whole training step costs by PyTorch on one GPU: DistributedDataParallel over NCCL, clipping, AdamW(fused=True), nothing that
waits for the GPU. `gpu_probe "count waits"` trains the same model by muster. Run it with torchrun's variables, or alone."""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LAYERS, BATCH, WARM_UP, STEPS = 24, 1024, 10, 50


def milliseconds(step):
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) * 1e3 / STEPS


def layers(width):
    torch.manual_seed(5)
    return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.ReLU()))).cuda()


def whole_step(width):
    x = torch.randn(BATCH, width, device="cuda")
    model = DistributedDataParallel(layers(width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return milliseconds(step)


if not torch.cuda.is_available():
    print("skipped: no GPU here")
    sys.exit(77)
if "RANK" not in os.environ:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
for width in (256, 2048):
    print(f"width {width}: DDP, clipping and AdamW(fused=True) of PyTorch {whole_step(width):.3f} ms a step")
dist.destroy_process_group()
