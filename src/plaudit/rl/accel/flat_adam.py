"""A module's parameters as one vector, so that an optimiser step and a norm are one call each."""

from __future__ import annotations

import math

import torch
from torch import nn

aten = torch.ops.aten

BETAS = (0.9, 0.999)
"""Adam's."""

TINY = 1e-30
"""Moments that are smaller are set to 0: a parameter would move by less than 1e-22 of the step size. Those of a unit
that is no longer active only shrink, until they have fewer digits than other numbers, and over these a CPU takes many
times as long."""

CLEARS_EVERY = 64
"""Steps. What was not `TINY` has all its digits until then: 0.9^64 · 1e-30 is 1e-33, and times a step size 1e-37."""


class FlatParameters:
    """Moves the trainable parameters of `module` into one vector of which they become views.

    Attributes:
        data: (size,), the parameters.
        gradient: (size,), theirs.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parts = [part for part in module.parameters() if part.requires_grad]
        self.data = torch.cat([part.detach().flatten() for part in self.parts])
        self.gradient = torch.zeros_like(self.data)
        start = 0
        for part in self.parts:
            part.data = self.data[start : start + part.numel()].view_as(part)
            start += part.numel()

    def gradient_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """The part of `gradient` that belongs to one parameter, in its shape."""
        start = 0
        for part in self.parts:
            if part is parameter:
                return self.gradient[start : start + part.numel()].view_as(part)
            start += part.numel()
        raise KeyError("this parameter is not one of the module's")


class FlatAdam:
    """Adam (Kingma & Ba, 2015) on one vector: torch's fused kernel without the bookkeeping for many tensors, which
    costs three times what the kernel does for a network of this size.

    Args:
        parameters: What is optimised.
        lr: Step size; may be set anew at any time.
        eps: Added to the root of the second moment.
    """

    def __init__(self, parameters: FlatParameters, lr: float, eps: float = 1e-5) -> None:
        self.parameters, self.lr, self.eps = parameters, lr, eps
        self.first = torch.zeros_like(parameters.data)
        self.second = torch.zeros_like(parameters.data)
        self.steps = torch.zeros((), device=parameters.data.device)
        self._taken = 0  # As many, but float32 counts no further than 2^24.

    @torch.no_grad()
    def step(self) -> None:
        """One step along `parameters.gradient`."""
        self._begin()
        torch._fused_adam_(
            [self.parameters.data],
            [self.parameters.gradient],
            [self.first],
            [self.second],
            [],
            [self.steps],
            lr=self.lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def advance(self) -> tuple[float, float]:
        """Counts a step that somebody else takes.

        Returns:
            The rate r and the root's weight w of it: parameters go down by r · first / (w · √second + eps).
        """
        self._begin()
        done = float(self.steps)
        return self.lr / (1.0 - BETAS[0] ** done), 1.0 / math.sqrt(1.0 - BETAS[1] ** done)

    def _begin(self) -> None:
        """Counts a step; before some, clears moments that are as good as none."""
        if self.first.device.type == "cpu" and self._taken % CLEARS_EVERY == 0:
            for moment in (self.first, self.second):
                aten.hardshrink.out(moment, TINY, out=moment)
        self._taken += 1
        self.steps += 1.0

    def forget(self) -> None:
        """Begins anew, as if no step had been taken."""
        for part in (self.first, self.second, self.steps):
            part.zero_()
        self._taken = 0

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The moments and the number of steps."""
        return {"first": self.first, "second": self.second, "steps": self.steps}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Puts back what `state_dict` gave."""
        self.first.copy_(state["first"])
        self.second.copy_(state["second"])
        self.steps.copy_(state["steps"])
        self._taken = int(self.steps)
