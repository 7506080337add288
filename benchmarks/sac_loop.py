"""SAC's gradient step as it is usually written in PyTorch: a list of critics, a loop over them, autograd, Adam."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import mse_loss

from plaudit.rl.buffers.replay_buffer import Batch


@dataclass(frozen=True)
class Shape:
    """What both sides of a comparison compute.

    Attributes:
        critics: How many there are.
        width: Units of each of two hidden layers, of critics and actor.
        believed: Target critics that are drawn for each step, of which the least is believed.
        mean: Whether the actor climbs the mean of the critics, and not the least.
        norm: LayerNorm in the critics.
        interval: Steps of the critics for each one of the actor.
    """

    critics: int
    width: int
    believed: int
    mean: bool = False
    norm: bool = False
    interval: int = 1


class Loop:
    """Networks and their gradient step.

    Args:
        shape: What is computed.
        obs: Length of an observation.
        actions: Length of an action, whose range is -1 to 1.
        lr: Adam's step size.
        tau: How far the targets follow.
    """

    def __init__(self, shape: Shape, obs: int, actions: int, lr: float = 3e-4, tau: float = 0.005) -> None:
        self.shape, self.tau, self.target_entropy = shape, tau, -float(actions)
        self.actor = _perceptron(obs, shape.width, 2 * actions, norm=False)
        self.critics = nn.ModuleList(
            _perceptron(obs + actions, shape.width, 1, shape.norm) for _ in range(shape.critics)
        )
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = torch.zeros((), requires_grad=True)
        groups = (self.actor.parameters(), self.critics.parameters(), [self.log_temperature])
        self.of_actor, self.of_critics, self.of_temperature = (torch.optim.Adam(group, lr) for group in groups)
        self.steps = 0

    def step(self, obs: torch.Tensor, next_obs: torch.Tensor, batch: Batch) -> None:
        """One gradient step on a batch whose observations are vectors."""
        temperature = self.log_temperature.detach().exp()
        with torch.no_grad():
            action, log_prob = self._draw(next_obs)
            drawn = random.sample(list(self.targets), self.shape.believed)
            value = torch.stack([target(torch.cat([next_obs, action], -1))[:, 0] for target in drawn]).amin(0)
            aim = batch.reward + batch.discount * (value - temperature * log_prob)
        known = torch.cat([obs, batch.action], -1)
        loss = 0.5 * sum(mse_loss(critic(known)[:, 0], aim) for critic in self.critics)
        _descend(self.of_critics, loss)
        with torch.no_grad():
            for target, critic in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.lerp_(critic, self.tau)
        self.steps += 1
        if self.steps % self.shape.interval == 0:
            self._improve_actor(obs, temperature)

    def _improve_actor(self, obs: torch.Tensor, temperature: torch.Tensor) -> None:
        action, log_prob = self._draw(obs)
        self.critics.requires_grad_(False)
        values = torch.stack([critic(torch.cat([obs, action], -1))[:, 0] for critic in self.critics])
        value = values.mean(0) if self.shape.mean else values.amin(0)
        _descend(self.of_actor, (temperature * log_prob - value).mean())
        self.critics.requires_grad_(True)
        _descend(self.of_temperature, -self.log_temperature * (log_prob.detach().mean() + self.target_entropy))

    def _draw(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Actions and the logarithms of their densities."""
        mean, log_std = self.actor(obs).chunk(2, -1)
        noise = torch.randn_like(mean)
        log_std = log_std.clamp(-20.0, 2.0)
        before = mean + log_std.exp() * noise
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        slope = 2 * (math.log(2) - before - nn.functional.softplus(-2 * before))
        return before.tanh(), (density - slope).sum(-1)


def _perceptron(inputs: int, width: int, outputs: int, norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (inputs, width):
        layers += [nn.Linear(size, width), *([nn.LayerNorm(width)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def _descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
