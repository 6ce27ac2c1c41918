"""Asynchronous training: rank 0 keeps the weights, and the others fetch them and send gradients, each at its own pace."""
import torch
import torch.distributed as dist

import muster


def serve(model, workers, steps):
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    gradient = torch.empty_like(flat)
    for _ in range(workers * steps):
        worker = dist.recv(gradient)  # of whoever comes first
        for parameter, part in zip(model.parameters(), gradient.split([p.numel() for p in model.parameters()])):
            parameter.grad = part.view_as(parameter).clone()
        optimizer.step()
        dist.send(torch.nn.utils.parameters_to_vector(model.parameters()).detach(), worker)


def work(model, steps):
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(16, 8)).sub(1).square().mean().backward()
        dist.send(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]), 0)
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        dist.recv(weights, 0)
        torch.nn.utils.vector_to_parameters(weights, model.parameters())


def train(steps):
    ctx = muster.init(backend="gloo")
    torch.manual_seed(ctx.rank)
    model = torch.nn.Linear(8, 1)
    serve(model, ctx.world_size - 1, steps) if ctx.is_main else work(model, steps)
    return round(float(model.bias), 2)


if __name__ == "__main__":
    print(muster.spawn(train, args=(100,), n=3, quiet=True))
