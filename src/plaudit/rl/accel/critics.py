"""What SAC asks of its critics: what they say, how they come to say what they should, which way they say is up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import torch

from plaudit.rl.accel.flat_adam import FlatAdam, FlatParameters
from plaudit.rl.networks.ensemble import Ensemble, Pass


class Training(NamedTuple):
    """How critics learn.

    Attributes:
        optimizer: Of their parameters, and of nothing else.
        target: The target critics', which follow.
        tau: How far.
    """

    optimizer: FlatAdam
    target: FlatParameters
    tau: float


class Improved(NamedTuple):
    """How far off the E critics were, before they learned.

    Attributes:
        square: Mean squared error of each, (E,).
        value: Mean of what each said, (E,).
        d_inputs: Gradient of half the mean squared error, the critics' added up, by the inputs that were asked for,
            (n, some); `None` where none were.
    """

    square: torch.Tensor
    value: torch.Tensor
    d_inputs: torch.Tensor | None


class Ascent(NamedTuple):
    """Which way is up.

    Attributes:
        value: What was said of each input, by the least critic or by all together, (n,).
        d_inputs: Gradient of minus the mean of that, by the inputs that were asked for, (n, some).
    """

    value: torch.Tensor
    d_inputs: torch.Tensor


class Critics(Protocol):
    """One way to compute an ensemble of E networks with one output each. Inputs are (n, inputs)."""

    network: Ensemble

    def values(self, x: torch.Tensor, chosen: Sequence[int] | None = None) -> torch.Tensor:
        """What all say, (E, n), or those of them that are `chosen`, in rising order; good until the next call."""

    def improve(self, x: torch.Tensor, aim: torch.Tensor, inputs: slice | None = None) -> Improved:
        """One gradient step on half the mean squared error, the critics' added up; the targets follow.

        Args:
            x: What is judged.
            aim: What they should say, (n,).
            inputs: Of which inputs the gradient is wanted.
        """

    def ascend(self, x: torch.Tensor, by: Literal["min", "mean"], inputs: slice) -> Ascent:
        """Finds the gradient by `inputs` alone."""


class Together:
    """All at once, by torch's operations: a layer of all of them is one product.

    Args:
        network: The ensemble. Its parameters must not move in memory any more.
        training: How it learns; `None` where it does not.
        beside: Another such, whose room it may use, as `Pass` has it.
    """

    def __init__(self, network: Ensemble, training: Training | None = None, beside: Together | None = None) -> None:
        self.network, self.training = network, training
        gradients = None if training is None else training.optimizer.parameters.gradient_of
        self._pass: Pass = Pass(network, gradients, None if beside is None else beside._pass)

    def values(self, x: torch.Tensor, chosen: Sequence[int] | None = None) -> torch.Tensor:
        return self._pass.forward(x, chosen)[..., 0]

    def improve(self, x: torch.Tensor, aim: torch.Tensor, inputs: slice | None = None) -> Improved:
        assert self.training is not None
        values = self.values(x)
        value, error = values.mean(1), values - aim
        square = error.square().mean(1)
        d_inputs = self._pass.backward(error.div_(len(aim))[..., None], inputs=inputs)
        optimizer, target, tau = self.training
        optimizer.step()
        target.data.lerp_(optimizer.parameters.data, tau)
        return Improved(square, value, d_inputs)

    def ascend(self, x: torch.Tensor, by: Literal["min", "mean"], inputs: slice) -> Ascent:
        values = self.values(x)
        if by == "mean":
            value, weight = values.mean(0), torch.full_like(values, -1.0 / values.numel())
        else:
            value, least = values.min(0)
            weight = torch.zeros_like(values).scatter_(0, least[None], -1.0 / len(value))
        d_inputs = self._pass.backward(weight[..., None], learns=False, inputs=inputs)
        assert d_inputs is not None
        return Ascent(value, d_inputs)
