"""The steps of shard_bench.cc by PyTorch over Gloo: fully_shard, ZeroRedundancyOptimizer and DistributedDataParallel."""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 512, 64, 4, 256, 4, 4
WARMUP, STEPS = 3, 15


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind()
        x = x + self.mix(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def measure(name, model, optimizer):
    tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))
    x, y = tokens[:, :-1], tokens[:, 1:]
    times = []
    for _ in range(WARMUP + STEPS):
        dist.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - begin))
    if dist.get_rank() == 0:
        print(f"{name} {statistics.median(times[WARMUP:]):.2f}", flush=True)


dist.init_process_group("gloo")
torch.set_num_threads(1)
gpt = Gpt()
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for block in gpt.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(gpt, mesh=mesh)
measure("full", gpt, torch.optim.AdamW(gpt.parameters(), lr=1e-3))
gpt = Gpt()
measure("zero1", DistributedDataParallel(gpt), ZeroRedundancyOptimizer(gpt.parameters(), torch.optim.AdamW, lr=1e-3))
gpt = Gpt()
measure("ddp", DistributedDataParallel(gpt), torch.optim.AdamW(gpt.parameters(), lr=1e-3))
dist.barrier()
dist.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # Gloo's threads may outlive the interpreter
