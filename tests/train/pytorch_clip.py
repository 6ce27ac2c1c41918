"""Norms and clipped gradients of torch.nn.utils over sizes, types, norms and values that are not finite."""

import itertools

from pytorch import say, torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_


def parameters(kind, bad=None):
    torch.manual_seed(11)
    types = {"float": [torch.float], "double": [torch.double], "mixed": [torch.float, torch.double, torch.bfloat16]}[kind]
    found = []
    for number, shape in enumerate([(3,), (17, 5), (), (64, 33), (1,), (2, 3, 4)]):
        value = torch.zeros(shape, dtype=types[number % len(types)], requires_grad=True)
        value.grad = torch.randn(shape).to(value.dtype)
        if number == 1:
            value.grad = value.grad.t().contiguous().t()  # other strides
        found.append(value)
    found.append(torch.zeros(5, requires_grad=True))  # no gradient
    if bad is not None:
        found[3].grad[1, 2] = bad
    return found


def clipped(name, found, norm, most):
    total = clip_grad_norm_(found, most, norm)
    say(name, torch.cat([total.double().reshape(1)] + [p.grad.double().reshape(-1) for p in found if p.grad is not None]))


for kind, norm, most in itertools.product(["float", "double", "mixed"], [1.0, 2.0, 3.5, float("inf")], [0.1, 1000.0]):
    clipped(f"norm_{kind}_{norm:g}_{most:g}", parameters(kind), norm, most)
for bad in (float("inf"), float("nan")):
    clipped(f"norm_with_{bad:g}", parameters("float", bad), 2.0, 1.0)
for kind in ("float", "mixed"):
    found = parameters(kind, float("nan"))
    clip_grad_value_(found, 0.5)
    say(f"value_{kind}", torch.cat([p.grad.double().reshape(-1) for p in found if p.grad is not None]))
