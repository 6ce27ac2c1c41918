"""Learning rates of torch.optim.lr_scheduler, two parameter groups, for 40 steps."""

import warnings

from pytorch import say, torch
from torch.optim import lr_scheduler as schedulers

warnings.simplefilter("ignore")


def optimizer():
    first, second = torch.zeros(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.003}], lr=1.0, momentum=0.9)


def rates(name, make, closed=False):
    """`closed`: the scheduler's own closed form instead of what its recursion comes to."""
    optim = optimizer()
    scheduler = make(optim)
    found = []
    for _ in range(40):
        now = scheduler._get_closed_form_lr() if closed else [group["lr"] for group in optim.param_groups]
        found += now
        optim.step()
        scheduler.step()
    say(name, found)


def with_warmup(optim):
    first = schedulers.LinearLR(optim, start_factor=0.01, end_factor=1.0, total_iters=8)
    return schedulers.SequentialLR(optim, [first, schedulers.CosineAnnealingLR(optim, T_max=32)], milestones=[8])


def sequence(optim):
    parts = [schedulers.ConstantLR(optim, 0.5, total_iters=100), schedulers.ExponentialLR(optim, 0.9),
             schedulers.StepLR(optim, 4, 0.3)]
    return schedulers.SequentialLR(optim, parts, milestones=[7, 20])


def chain(optim):
    return schedulers.ChainedScheduler([schedulers.ConstantLR(optim, 0.1, total_iters=5),
                                        schedulers.ExponentialLR(optim, 0.9), schedulers.MultiStepLR(optim, [6, 30], 0.5)])


closed = {
    "constant": lambda o: schedulers.ConstantLR(o, 0.3, total_iters=9),
    "linear": lambda o: schedulers.LinearLR(o, start_factor=0.2, end_factor=0.7, total_iters=11),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, T_max=40),
    "polynomial": lambda o: schedulers.PolynomialLR(o, total_iters=25, power=1.7),
    "step": lambda o: schedulers.StepLR(o, 7, 0.3),
    "multi_step": lambda o: schedulers.MultiStepLR(o, [3, 3, 20], 0.2),
    "exponential": lambda o: schedulers.ExponentialLR(o, 0.93),
}
for name, make in closed.items():
    rates(f"{name}_closed", make, closed=True)
    rates(f"{name}_recursive", make)
for three_phase in (False, True):
    for strategy in ("cos", "linear"):
        rates(f"one_cycle_{strategy}_{3 if three_phase else 2}", lambda o: schedulers.OneCycleLR(
            o, max_lr=[0.1, 0.003], total_steps=41, pct_start=0.4, anneal_strategy=strategy, three_phase=three_phase,
            div_factor=20.0, final_div_factor=500.0))
rates("lambda", lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step) ** 0.5))
rates("warmup_cosine", with_warmup)
rates("sequential", sequence)
rates("chained", chain)

METRICS = [5, 4, 3, 3, 3, 2.9999, 3, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1.5, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
for mode in ("min", "max"):
    for kind in ("rel", "abs"):
        optim = optimizer()
        plateau = schedulers.ReduceLROnPlateau(optim, mode, factor=0.3, patience=2, threshold=0.01, threshold_mode=kind,
                                               cooldown=1, min_lr=0.0005)
        found = []
        for metric in METRICS:
            plateau.step(metric if mode == "min" else 1 - metric)
            found += [group["lr"] for group in optim.param_groups]
        say(f"plateau_{mode}_{kind}", found)
