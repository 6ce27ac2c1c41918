"""The training of hook_table.cc by PyTorch's own DistributedDataParallel and its own hooks."""
import inspect
import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook, quantization_hooks
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "support"))
from twin import join_ranks  # noqa: E402

STEPS, BATCH = 10, 8


# Older hooks expect the gathered tensors in a list, and index them as one tensor.
GATHERED_IN_A_LIST = "fut.wait()[0]" in inspect.getsource(quantization_hooks.quantization_pertensor_hook)


def future_of(tensor):
    return torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else None)


class AtOnce:
    """torch.distributed for PyTorch's hooks, whose callbacks wait for further calls in Gloo's two threads: with some
    buckets both wait, for ever. These calls have ended when they return, so the callbacks run here."""

    group, ProcessGroup, GradBucket = dist.group, dist.ProcessGroup, dist.GradBucket

    def __init__(self, tensor, result):
        self.tensor, self.result = tensor, result

    def get_future(self):
        future = future_of(self.tensor)
        future.set_result(self.result)
        return future

    @staticmethod
    def all_reduce(tensor, group, async_op):
        dist.all_reduce(tensor, group=group)
        return AtOnce(tensor, [tensor])

    @staticmethod
    def all_gather(tensors, tensor, group, async_op):
        dist.all_gather(tensors, tensor, group=group)
        return AtOnce(tensor, [torch.stack(tensors)] if GATHERED_IN_A_LIST else tensors)


def make_net():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 5))


def named(hook):
    """PyTorch asks for CUDA where a hook is called bf16_compress_hook."""

    def call(state, bucket):
        return hook(state, bucket)

    return call


def power_sgd(rank=1, start=2, **options):
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=rank, start_powerSGD_iter=start, **options)
    return state, powerSGD_hook.powerSGD_hook


class TopK:
    """PyTorch has none: the largest numbers of each gradient, added in the order of the ranks."""

    def __init__(self, density, error_feedback=True):
        self.density, self.error_feedback, self.errors = density, error_feedback, {}

    def __call__(self, state, bucket):
        tensor, size = bucket.buffer(), dist.get_world_size()
        if self.error_feedback:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                if parameter in self.errors:
                    gradient.view(-1).add_(self.errors[parameter])
        places, begin = [], 0
        for gradient in bucket.gradients():
            count = max(1, math.ceil(self.density * gradient.numel()))
            places.append(begin + tensor[begin : begin + gradient.numel()].abs().topk(count).indices)
            begin += gradient.numel()
        places = torch.cat(places)
        values = tensor[places]
        if self.error_feedback:
            rest, begin = tensor.index_fill(0, places, 0), 0
            for parameter in bucket.parameters():
                self.errors[parameter] = rest[begin : begin + parameter.numel()]
                begin += parameter.numel()
        all_places = [torch.empty_like(places) for _ in range(size)]
        all_values = [torch.empty_like(values) for _ in range(size)]
        dist.all_gather(all_places, places)
        dist.all_gather(all_values, values)
        tensor.zero_()
        for rank in range(size):
            tensor.index_add_(0, all_places[rank], all_values[rank])
        future = future_of(tensor)
        future.set_result(tensor.div_(size))
        return future


def quantized(block):
    def call(state, bucket):
        group = dist.group.WORLD
        if block == 0:
            return quantization_hooks.quantization_pertensor_hook(group, bucket)
        return quantization_hooks.quantization_perchannel_hook(group, bucket, bucket_size=block)

    return None, call


def hooks():
    return {
        "none": None,
        "average": (None, default_hooks.allreduce_hook),
        "function": (None, default_hooks.allreduce_hook),
        "fp16": (None, default_hooks.fp16_compress_hook),
        "bf16": (None, named(default_hooks.bf16_compress_hook)),
        "powersgd_1": power_sgd(),
        "powersgd_2_late": power_sgd(2, 5),
        "powersgd_4_qr": power_sgd(4, 3, random_seed=7),
        "powersgd_cold": power_sgd(2, warm_start=False),
        "powersgd_no_error": power_sgd(use_error_feedback=False),
        "powersgd_epsilon": power_sgd(orthogonalization_epsilon=1e-8),
        "top_k": (None, named(TopK(0.1))),
        "top_k_no_error": (None, named(TopK(0.05, error_feedback=False))),
        "quantized_512": quantized(512),
        "quantized_64": quantized(64),
        "quantized_whole": quantized(0),
    }


def train(name, hook, rank, size):
    torch.manual_seed(3)
    features = torch.randn(400, 24).to(device)
    labels = torch.randint(5, (400,)).to(device)
    model = DistributedDataParallel(make_net().to(device), bucket_cap_mb=0.01, gradient_as_bucket_view=True)
    if hook is not None:
        model.register_comm_hook(*hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with open(os.path.join(os.environ["LOSSES_FOLDER"], f"python-{rank}-{name}"), "wb") as file:
        for step in range(STEPS):
            begin = (step * size + rank) * BATCH % 392
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(features[begin : begin + BATCH]), labels[begin : begin + BATCH])
            loss.backward()
            for parameter in model.parameters():
                file.write(parameter.grad.contiguous().cpu().numpy().tobytes())
            optimizer.step()


powerSGD_hook.dist = quantization_hooks.dist = AtOnce
rank, size, device = join_ranks()
for name, hook in hooks().items():
    train(name, hook, rank, size)
dist.destroy_process_group()
os._exit(0)  # a thread of PyTorch's Gloo may need the interpreter when that is no more
