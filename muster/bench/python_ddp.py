"""A rank of `muster-bench ddp --python`: PyTorch's own DDP on the models of bench_models.cc, timed in the same way.

    python_ddp.py MODEL BATCH STEPS     under muster run or torchrun; rank 0 writes the milliseconds to MUSTER_BENCH_RESULTS
"""
import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

WARM_UP_STEPS = 3


class Mlp(nn.Sequential):
    rows_of_sample, labels = 1, 10

    def __init__(self):
        layers = [nn.Linear(1024, 2048)]
        for _ in range(5):
            layers += [nn.ReLU(), nn.Linear(2048, 2048)]
        super().__init__(*layers, nn.ReLU(), nn.Linear(2048, self.labels))

    def make_inputs(self, batch):
        return torch.randn(batch, 1024)


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
                                   nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        return torch.relu(self.inner(x) + self.shortcut(x))


class Cnn(nn.Sequential):
    rows_of_sample, labels = 1, 10

    def __init__(self):
        layers, channels = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
        for width in (64, 128, 256, 512):
            layers += [Residual(channels, width, 1 if width == channels else 2), Residual(width, width, 1)]
            channels = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, self.labels))

    def make_inputs(self, batch):
        return torch.randn(batch, 3, 32, 32)


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    rows_of_sample, labels = 64, 96

    def __init__(self, layers=6, heads=6, width=384):
        super().__init__()
        self.token, self.position = nn.Embedding(self.labels, width), nn.Parameter(torch.randn(self.rows_of_sample, width) * 0.02)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, self.labels, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position))).flatten(0, 1)

    def make_inputs(self, batch):
        return torch.randint(self.labels, (batch, self.rows_of_sample))


def device_of_rank():
    """The rank's GPU, or the CPU; and whether ranks share a GPU, which NCCL refuses: they see theirs alone."""
    if not torch.cuda.is_available():
        return torch.device("cpu"), False
    local_rank, visible = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    device = torch.device("cuda", local_rank % visible)
    torch.cuda.set_device(device)
    return device, visible < int(os.environ["LOCAL_WORLD_SIZE"])


class Kind:
    def __init__(self, model, batch, device, group=None, view=True):
        torch.manual_seed(0)
        model = {"mlp": Mlp, "cnn": Cnn, "gpt": Gpt}[model]()
        self.inputs = model.make_inputs(batch).to(device)
        self.labels = torch.randint(model.labels, (batch * model.rows_of_sample,)).to(device)
        model.to(device)
        self.model = nn.parallel.DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=view) if group else model
        self.optimizer = torch.optim.SGD(model.parameters(), 1e-4)

    def step(self):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(self.inputs), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def times_in_turn(kinds, steps):
    """Milliseconds of each step of each kind, which take turns: of the slowest rank, and of all ranks' processors together."""
    wall, processor = torch.zeros(2, steps, len(kinds), dtype=torch.float64)
    for turn in range(-WARM_UP_STEPS, steps):
        order = list(range(len(kinds)))
        random.Random(turn).shuffle(order)
        for kind in order:
            dist.barrier()  # all ranks start each step together
            start, used = time.perf_counter(), time.process_time()
            kinds[kind].step()
            if turn >= 0:
                wall[turn, kind], processor[turn, kind] = 1e3 * (time.perf_counter() - start), 1e3 * (time.process_time() - used)
    dist.all_reduce(wall, dist.ReduceOp.MAX)
    dist.all_reduce(processor)
    return {"wall": wall.tolist(), "processor": processor.tolist()}


def main():
    model, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    device, shared = device_of_rank()
    kinds = {"python-none": Kind(model, batch, device)}
    by_nccl = device.type == "cuda" and not shared
    backend, group = ("nccl", dist.new_group(backend="nccl")) if by_nccl else ("gloo", dist.group.WORLD)
    for view in (False, True):
        kinds[f"python-{backend}{'' if view else '-copied'}"] = Kind(model, batch, device, group, view)
    if device.type == "cpu":
        try:
            import muster  # noqa: F401: where it is installed for this Python
            os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")
            kinds["python-shm"] = Kind(model, batch, device, dist.new_group(backend="muster"))
        except ImportError:
            pass
    times = times_in_turn(list(kinds.values()), steps)
    if dist.get_rank() == 0:
        with open(os.environ["MUSTER_BENCH_RESULTS"], "w") as file:
            json.dump({"kinds": list(kinds), **times}, file)
    kinds.clear()
    dist.destroy_process_group()
    os._exit(0)  # a thread of PyTorch's Gloo may need the interpreter when that is no more


if __name__ == "__main__":
    main()
