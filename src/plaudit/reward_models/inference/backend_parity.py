"""What a backend says of frames, and how far that is from what torch says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.data.episode import Frames
from plaudit.errors import NonFiniteError
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.inference.backends import Backend, TorchBackend


@dataclass(frozen=True, eq=False)
class Scored:
    """What a model says of n frames.

    Attributes:
        logits: float32 (n,), uncalibrated, the mean over the ensemble's heads.
        probabilities: float64 (n,), calibrated probabilities of success; as precise as the threshold is.
        spread: float32 (n,), standard deviation of the heads' logits: how much they disagree. Zero with one head.
    """

    logits: NDArray[np.float32]
    probabilities: NDArray[np.float64]
    spread: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.logits)


@dataclass(frozen=True)
class Loss:
    """What a backend loses against torch with f32.

    Attributes:
        frames: How many were compared.
        largest: Largest difference in probability.
        mean: Mean difference in probability.
        flipped: Share of frames on the other side of the threshold.
        accuracy: Share of frames with a label that are on the right side of the threshold; NaN where there are none.
        exact_accuracy: The same with torch.
    """

    frames: int
    largest: float
    mean: float
    flipped: float
    accuracy: float
    exact_accuracy: float

    def __str__(self) -> str:
        return (
            f"on {self.frames} frames, probabilities differ by {self.mean:.2g} on average and {self.largest:.2g} at "
            f"most, {self.flipped:.1%} are decided otherwise, accuracy is {self.accuracy:.1%} instead of "
            f"{self.exact_accuracy:.1%}"
        )


def scored(artifact: RewardArtifact, backend: Backend, frames: Mapping[str, Frames]) -> Scored:
    """What a backend with an artifact's model says of at least one frame."""
    logits = backend.logits(frames)
    if not np.isfinite(logits).all():
        row = int(np.flatnonzero(~np.isfinite(logits).all(1))[0])
        raise NonFiniteError(f"the reward model '{artifact.path}' says {logits[row]} of frame {row}.")
    mean = logits.mean(1)
    return Scored(mean, artifact.calibration.probabilities(mean), logits.std(1))


def loss_of(
    artifact: RewardArtifact,
    backend: Backend,
    frames: Mapping[str, Frames],
    labels: NDArray[np.integer[Any]] | None = None,
) -> Loss:
    """What a backend with an artifact's model loses on some frames.

    Args:
        artifact: The model, with its threshold.
        backend: Who is compared.
        frames: By camera, at least one of each.
        labels: (n,), 1 or 0, or -1 where it is not known; `None` if none is.
    """
    exact = scored(artifact, TorchBackend(artifact.model(), torch.device("cpu")), frames).probabilities
    ours = scored(artifact, backend, frames).probabilities
    difference = np.abs(ours - exact)
    fires, should_fire = ours > artifact.decision.threshold, exact > artifact.decision.threshold
    truth = np.full(len(ours), -1) if labels is None else np.asarray(labels)
    known = truth >= 0
    right = [float((fired == truth)[known].mean()) if known.any() else float("nan") for fired in (fires, should_fire)]
    return Loss(
        frames=len(ours),
        largest=float(difference.max()),
        mean=float(difference.mean()),
        flipped=float((fires != should_fire).mean()),
        accuracy=right[0],
        exact_accuracy=right[1],
    )
