"""Ten steps of torch.optim's fused optimizers: parameters and state."""
from pytorch import say, torch

SHAPES = [(3,), (17, 5), (), (64, 33), (2, 3, 4)]
WAYS = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "adamw_amsgrad": (torch.optim.AdamW, {"lr": 1e-2, "betas": (0.8, 0.99), "amsgrad": True}),
    "adam": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1}),
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    "sgd_nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd_dampening": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
}

for name, (optimizer_class, options) in WAYS.items():
    torch.manual_seed(3)
    parameters = [torch.randn(shape, requires_grad=True) for shape in SHAPES]
    optimizer = optimizer_class(parameters, fused=True, **options)
    for step in range(10):
        for number, parameter in enumerate(parameters):
            parameter.grad = torch.randn(SHAPES[number])
        if "adam" in name and step % 3 == 0:  # not every step has each gradient; SGD's fused step cannot begin later
            parameters[2].grad = None
        if step == 5:
            optimizer.param_groups[0]["lr"] *= 0.5
        optimizer.step()
    say(name, torch.cat([parameter.detach().double().reshape(-1) for parameter in parameters]))
    if "adam" in name:
        say(name + "_squares", torch.cat([optimizer.state[parameter]["exp_avg_sq"].double().reshape(-1) for parameter in parameters]))
