"""Learns to balance a pole on a cart (REINFORCE). Each rank plays games of its own."""

import glob
import os

import torch
from lightning_fabric import Fabric
from torch import nn

UPDATES, GAMES, TURNS = 60, 16, 100


def pushed(games, actions):
    """The games, a row each (the cart's place and speed, the pole's angle and its speed), after a
    push to the left (0) or to the right (1)."""
    _, speed, angle, turning = games.unbind(1)
    push = (actions * 20 - 10 + 0.05 * turning.square() * angle.sin()) / 1.1
    mass = 2.0 / 3 - 0.05 * angle.cos().square() / 1.1
    turn = (9.8 * angle.sin() - angle.cos() * push) / mass
    faster = push - 0.05 * turn * angle.cos() / 1.1
    return games + 0.02 * torch.stack([speed, faster, turning, turn], 1)


@torch.no_grad()
def play(policy, device):
    games = torch.rand(GAMES, 4, device=device) * 0.1 - 0.05
    alive = torch.ones(GAMES, device=device)
    states, actions, turns = [], [], []
    for _ in range(TURNS):
        states.append(games)
        turns.append(alive)
        actions.append(policy(games).softmax(1).multinomial(1).squeeze(1))
        games = pushed(games, actions[-1])
        alive = alive * (games[:, 0].abs() < 2.4) * (games[:, 2].abs() < 0.2095)
    return torch.stack(states), torch.stack(actions), torch.stack(turns)


fabric = Fabric()
fabric.seed_everything(1)
policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, UPDATES)
model, optimizer = fabric.setup(policy, optimizer)
state = {"policy": model, "optimizer": optimizer, "schedule": schedule, "update": 0}
saved = glob.glob("runs/pole/*.ckpt")
if saved:
    fabric.load(max(saved, key=os.path.getmtime), state)

turns = []
while state["update"] < UPDATES:
    state["update"] += 1
    fabric.seed_everything(state["update"] * fabric.world_size + fabric.global_rank, verbose=False)
    states, actions, alive = play(policy, fabric.device)
    returns = alive.flip(0).cumsum(0).flip(0)
    chances = model(states).log_softmax(-1).gather(-1, actions.unsqueeze(-1))
    advantage = (returns - returns.mean()) / returns.std()
    loss = -(chances.squeeze(-1) * advantage * alive).sum() / alive.sum()
    fabric.backward(loss)
    fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    turns.append(returns[0].mean())
    if state["update"] % 10 == 0:
        mean = fabric.all_reduce(torch.stack(turns).mean()).item()
        fabric.print({"step": state["update"], "lr": schedule.get_last_lr()[0], "turns": mean})
        turns.clear()
    if state["update"] % 20 == 0:
        fabric.save(f"runs/pole/step-{state['update']}.ckpt", state)
