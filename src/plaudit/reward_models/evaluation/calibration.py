"""Calibrate logits so that predicted probabilities match success frequencies.

The calibration is fitted on frames that the model was not trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

SURE = 15.0
"""Limit of calibrated logits: a probability of 0.9999997.

In float32, in which policies are trained, higher probabilities can hardly be distinguished from 1, and no validation
split is large enough to support them.
"""

_SLOPES = (0.05, 20.0)  # 1 / temperature
_SHIFTS = (-10.0, 10.0)
_STEPS = 100


@dataclass(frozen=True)
class Calibration:
    """Map a model's logit to a probability: sigmoid(logit / temperature + bias).

    The map is monotonic: the ranking of frames does not change, and neither does any decision by a threshold that is
    picked afterwards.

    Attributes:
        temperature: Above 1 if the model is overconfident (Guo et al., 2017).
        bias: Corrects the prior, which a temperature cannot: a model trained with balanced or weighted classes expects
            as many successes as failures, and its logits are all too high on data with fewer successes.
    """

    temperature: float = 1.0
    bias: float = 0.0

    def logits(self, logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return calibrated logits (n,), clipped to plus and minus `SURE`."""
        return np.clip(logits.astype(np.float64) / self.temperature + self.bias, -SURE, SURE)

    def probabilities(self, logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Return calibrated probabilities of success (n,)."""
        return sigmoid(self.logits(logits))


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute 1 / (1 + exp(-x)) without overflow."""
    decay = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, decay) / (1.0 + decay)


def log_loss(logits: NDArray[np.floating[Any]], targets: NDArray[Any]) -> float:
    """Return the mean binary cross-entropy; targets may lie between 0 and 1."""
    return float(np.mean(np.logaddexp(0.0, logits) - targets * logits))


def fit_calibration(
    logits: NDArray[np.floating[Any]], labels: NDArray[np.integer[Any]], *, bias: bool = True
) -> Calibration:
    """Fit the calibration that minimises the log loss on a validation split.

    The result never has a larger log loss than no calibration: the identity is returned if fitting does not help.

    If a model separates the classes without error, the loss keeps falling as the temperature shrinks. Therefore the
    targets are (k + 1) / (k + 2) and 1 / (k + 2) instead of 1 and 0, with k the number of frames of that class (Platt,
    1999), and temperatures lie between 0.05 and 20. With a single class nothing can be fitted, and the identity is
    returned.

    Args:
        logits: (n,), of frames that the model was not trained on.
        labels: (n,), 1 or 0.
        bias: Fit the bias too, not the temperature alone.
    """
    successes = int(labels.sum())
    failures = len(labels) - successes
    if not successes or not failures:
        return Calibration()

    # Platt's smoothed targets keep the optimum finite if the classes are separable.
    targets = np.where(labels == 1, (successes + 1) / (successes + 2), 1 / (failures + 2))
    slope, shift = _newton(logits.astype(np.float64), targets, bias)
    fitted = Calibration(1.0 / slope, shift)

    # The smoothed targets are not the labels, so the fit can be worse on the labels themselves.
    identity = Calibration()
    improves = log_loss(fitted.logits(logits), labels) <= log_loss(identity.logits(logits), labels)
    return fitted if improves else identity


def _newton(logits: NDArray[np.float64], targets: NDArray[np.float64], bias: bool) -> tuple[float, float]:
    """Return the slope and shift with the smallest loss.

    Projected Newton's method on a convex function of two variables, within the box of `_SLOPES` and `_SHIFTS`.
    """
    lowest, highest = np.array([_SLOPES, _SHIFTS]).T
    point = np.array([1.0, 0.0])
    loss = log_loss(logits, targets)

    for _ in range(_STEPS):
        # Gradient and Hessian of the mean cross-entropy in (slope, shift).
        p = sigmoid(point[0] * logits + point[1])
        gradient = np.array([np.mean((p - targets) * logits), np.mean(p - targets)])
        weight = p * (1.0 - p)
        cross = np.mean(weight * logits)
        hessian = np.array([[np.mean(weight * logits**2), cross], [cross, np.mean(weight)]])

        # A variable at its bound whose descent direction leaves the box stays fixed in this step.
        outward = np.where(gradient > 0, point < lowest + 1e-9, point > highest - 1e-9)
        free = ~outward & (np.abs(gradient) > 1e-12) & np.array([True, bias])
        if not free.any():
            break

        # The small diagonal keeps the system solvable if the loss is flat in one direction, as with equal logits.
        free_hessian = hessian[np.ix_(free, free)] + 1e-12 * np.eye(free.sum())
        step = np.zeros(2)
        step[free] = -np.linalg.solve(free_hessian, gradient[free])
        step *= _feasible_share(point, step, lowest, highest)

        point, loss, moved = _descend(logits, targets, point, step, loss)
        if not moved:
            break

    return float(point[0]), float(point[1])


def _feasible_share(
    point: NDArray[np.float64], step: NDArray[np.float64], lowest: NDArray[np.float64], highest: NDArray[np.float64]
) -> float:
    """Return the share of a step, at most 1, that stays within the box."""
    distance = np.where(step > 0, highest - point, lowest - point)
    shares = distance[step != 0] / step[step != 0]
    return float(min(1.0, shares.min(initial=1.0)))


def _descend(
    logits: NDArray[np.float64],
    targets: NDArray[np.float64],
    point: NDArray[np.float64],
    step: NDArray[np.float64],
    loss: float,
) -> tuple[NDArray[np.float64], float, bool]:
    """Halve a step until it lowers the loss (backtracking line search).

    Returns:
        The new point, its loss, and whether the point moved.
    """
    for _ in range(50):
        candidate = point + step
        candidate_loss = log_loss(candidate[0] * logits + candidate[1], targets)
        if candidate_loss < loss:
            return candidate, candidate_loss, True
        step = step / 2
    return point, loss, False
