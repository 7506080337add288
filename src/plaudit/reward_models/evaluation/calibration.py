"""Calibration: logits to probabilities that come true as often as they say, on frames the model was not fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SURE = 15.0
"""Calibrated logits end here: a probability of 0.9999997. float32, in which policies are trained, can hardly tell more
from 1, and no validation split can vouch for it."""

_SLOPES = (0.05, 20.0)  # 1 / temperature
_SHIFTS = (-10.0, 10.0)
_STEPS = 100


@dataclass(frozen=True)
class Calibration:
    """Maps a model's logit to a probability: sigmoid(logit / temperature + bias).

    The order of frames stays as it is, and with it every decision by a threshold that is picked afterwards.

    Attributes:
        temperature: Above 1 where the model is too sure of itself (Guo et al., 2017).
        bias: What a temperature cannot mend: a model trained with balanced or weighted classes expects as many
            successes as failures, and its logits are all too high on data with fewer.
    """

    temperature: float = 1.0
    bias: float = 0.0

    def logits(self, logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Calibrated logits (n,), within plus and minus `SURE`."""
        return np.clip(logits.astype(np.float64) / self.temperature + self.bias, -SURE, SURE)

    def probabilities(self, logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Probabilities of success (n,)."""
        return sigmoid(self.logits(logits))


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)), without overflow."""
    tail = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, tail) / (1.0 + tail)


def log_loss(logits: NDArray[np.floating[Any]], targets: NDArray[Any]) -> float:
    """Mean of -log of the probability that the label was given; targets may lie between 0 and 1."""
    return float(np.mean(np.logaddexp(0.0, logits) - targets * logits))


def fit_calibration(
    logits: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], *, bias: bool = True
) -> Calibration:
    """The calibration with the smallest log loss on a validation split, and never a larger one than none has.

    Where a model separates the classes without error, ever smaller temperatures would look ever better. So labels
    count as (k + 1) / (k + 2) and 1 / (k + 2) instead of 1 and 0, with k the number of frames of that class (Platt,
    1999), and temperatures lie between 0.05 and 20. With one class there is nothing to learn from.

    Args:
        logits: (n,), of frames that the model was not fitted to.
        labels: (n,), 1 or 0.
        bias: Whether to fit the bias too, or the temperature alone.
    """
    successes = int(labels.sum())
    failures = len(labels) - successes
    if not successes or not failures:
        return Calibration()
    wide = logits.astype(np.float64)
    targets = np.where(labels == 1, (successes + 1) / (successes + 2), 1 / (failures + 2))
    slope, shift = _newton(wide, targets, bias)
    found = Calibration(1.0 / slope, shift)
    better = log_loss(found.logits(logits), labels) <= log_loss(Calibration().logits(logits), labels)
    return found if better else Calibration()


def _newton(logits: NDArray[np.float64], targets: NDArray[np.float64], bias: bool) -> tuple[float, float]:
    """Slope and shift with the smallest loss: Newton's method on a convex function of two numbers, within a box."""
    lowest, highest = np.array([_SLOPES, _SHIFTS]).T
    point = np.array([1.0, 0.0])
    loss = log_loss(logits, targets)
    for _ in range(_STEPS):
        p = sigmoid(point[0] * logits + point[1])
        gradient = np.array([np.mean((p - targets) * logits), np.mean(p - targets)])
        weight = p * (1.0 - p)
        cross = np.mean(weight * logits)
        curvature = np.array([[np.mean(weight * logits**2), cross], [cross, np.mean(weight)]])
        outward = np.where(gradient > 0, point < lowest + 1e-9, point > highest - 1e-9)
        free = ~outward & (np.abs(gradient) > 1e-12) & np.array([True, bias])
        if not free.any():
            break
        # The small number keeps a direction along which nothing changes, as with equal logits, from dividing by 0.
        inner = curvature[np.ix_(free, free)] + 1e-12 * np.eye(free.sum())
        step = np.zeros(2)
        step[free] = -np.linalg.solve(inner, gradient[free])
        step *= _room(point, step, lowest, highest)
        point, loss, moved = _descend(logits, targets, point, step, loss)
        if not moved:
            break
    return float(point[0]), float(point[1])


def _room(
    point: NDArray[np.float64], step: NDArray[np.float64], lowest: NDArray[np.float64], highest: NDArray[np.float64]
) -> float:
    """The share of a step, at most 1, that stays within the box."""
    reach = np.where(step > 0, highest - point, lowest - point)
    shares = reach[step != 0] / step[step != 0]
    return float(min(1.0, shares.min(initial=1.0)))


def _descend(
    logits: NDArray[np.float64],
    targets: NDArray[np.float64],
    point: NDArray[np.float64],
    step: NDArray[np.float64],
    loss: float,
) -> tuple[NDArray[np.float64], float, bool]:
    """Halves a step until it lowers the loss; the point and its loss, and whether it moved."""
    for _ in range(50):
        tried = point + step
        lower = log_loss(tried[0] * logits + tried[1], targets)
        if lower < loss:
            return tried, lower, True
        step = step / 2
    return point, loss, False
