"""Scores of all frames of a split, with their labels and episodes."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.errors import DataError
from plaudit.reward_models.model import RewardModel
from plaudit.reward_models.training.batches import Feed, moved, read_ahead
from plaudit.reward_models.training.distributed import Alone, Ranks
from plaudit.utils.atomic_io import whole_file

_DTYPES = {"logits": np.float32, "labels": np.int8, "episode": np.int64, "instant": np.int32, "spread": np.float32}


@dataclass(frozen=True, eq=False)
class Scores:
    """Uncalibrated scores of frames whose label is known, ordered by episode and then by instant.

    Frames without a label must be left out before. The constructor validates the arrays and raises a `DataError`, so
    that code which receives an instance need not check again.

    Attributes:
        logits: float32 (n,), the mean over the ensemble's heads.
        labels: int8 (n,): 1 success, 0 failure.
        episode: int64 (n,), the episode number of each frame; any ascending numbers.
        instant: int32 (n,), ascending within an episode. Not every instant of the episode needs a frame.
        spread: float32 (n,), the disagreement (standard deviation) of the ensemble's heads; `None` with a single head.
    """

    logits: NDArray[np.float32]
    labels: NDArray[np.int8]
    episode: NDArray[np.int64]
    instant: NDArray[np.int32]
    spread: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        count = len(self.logits)
        if not count:
            raise DataError("scores: no frame was scored; at least one with a label is needed.")

        # Types and shapes come first: the checks below index into the arrays.
        for name, array in self._arrays().items():
            if array.dtype != _DTYPES[name] or array.shape != (count,):
                expected = f"{np.dtype(_DTYPES[name])} ({count},)"
                raise DataError(f"scores: {name} must be {expected}, not {array.dtype} {array.shape}.")

        # Without a spread, the logits are checked twice.
        for name in ("logits", "spread"):
            array = self._arrays().get(name, self.logits)
            if not np.isfinite(array).all():
                row = int(np.flatnonzero(~np.isfinite(array))[0])
                raise DataError(
                    f"scores: {name} of {self.place(row)} is {array[row]}; the model or its input is broken."
                )

        if not np.isin(self.labels, (0, 1)).all():
            row = int(np.flatnonzero(~np.isin(self.labels, (0, 1)))[0])
            raise DataError(
                f"scores: the label of {self.place(row)} is {self.labels[row]}; leave out what is not 0 or 1."
            )

        # Each row is of a later episode than the row before, or of the same episode at a later instant.
        next_episode = np.diff(self.episode) > 0
        same_episode = np.diff(self.episode) == 0
        ordered = next_episode | (same_episode & (np.diff(self.instant) > 0))
        if not ordered.all():
            row = int(np.flatnonzero(~ordered)[0]) + 1
            raise DataError(f"scores: {self.place(row)} is out of order; sort by episode and instant, each frame once.")

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.logits)

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """The row of each episode's first frame, (episodes,)."""
        return np.flatnonzero(np.diff(self.episode, prepend=self.episode[0] - 1))

    @cached_property
    def ends(self) -> NDArray[np.intp]:
        """The row of each episode's last frame, (episodes,)."""
        return np.append(self.starts[1:], len(self)) - 1

    def per_episode(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Sum integers or booleans (n,) within each episode, (episodes,)."""
        return np.add.reduceat(values.astype(np.int64), self.starts)

    def part(self, chosen: NDArray[np.bool_]) -> Scores:
        """Return the frames selected by the mask `chosen`, (n,); it must select at least one."""
        return Scores(**{name: array[chosen] for name, array in self._arrays().items()})

    def place(self, row: int) -> str:
        """Return the episode and instant of a row, for messages."""
        return f"episode {self.episode[row]}, instant {self.instant[row]}"

    def save(self, path: str | Path) -> None:
        """Write an npz file atomically."""
        arrays: dict[str, Any] = {**self._arrays()}
        with whole_file(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Scores:
        """Read a file of `save`, without pickle; a damaged file raises a `DataError` that names it."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in _DTYPES if name != "spread" or name in file}
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such file of scores.") from None
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
            raise DataError(f"{path}: is not a file of scores, or is damaged. Fit again, or restore it.") from error

        # The constructor validates the arrays; add the file name to its message.
        try:
            return cls(**arrays)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by attribute name, without those that are `None`."""
        arrays = {name: getattr(self, name) for name in _DTYPES}
        return {name: array for name, array in arrays.items() if array is not None}


BATCH = 64
"""Frames scored per batch: enough to use a CPU fully, and little memory with a large encoder."""


def score(model: RewardModel, feed: Feed, ranks: Ranks | None = None) -> Scores:
    """Score all frames of a feed.

    Episodes are numbered as in the data set's source, and row i is `feed.rows[i]`. The model is in evaluation mode
    afterwards.

    Args:
        model: Reward model that scores the frames.
        feed: Frames to score.
        ranks: Processes that all call this function with the same model and divide the frames; each gets all scores.
    """
    ranks = ranks or Alone()
    device = next(model.parameters()).device
    model.eval()
    logits = torch.zeros(len(feed.rows), model.heads)

    # Divide whole batches, so that the batch of a frame does not depend on the number of processes.
    starts = range(0, len(feed.rows), BATCH)
    starts = starts[ranks.share(len(starts))]
    with torch.inference_mode():
        batches = read_ahead(lambda start: feed.read(feed.rows[start : start + BATCH]), starts)
        for start, batch in zip(starts, batches, strict=True):
            logits[start : start + BATCH] = feed.logits(model, moved(batch, device)).float().cpu()

    # Rows of other processes are still 0, so the sum over processes has every row.
    logits = ranks.add_up(logits)
    dataset = feed.dataset
    return Scores(
        logits=logits.mean(1).numpy(),
        labels=dataset.labels[feed.rows],
        episode=dataset.episodes[feed.rows].astype(np.int64),
        instant=feed.instants,
        spread=logits.std(1, correction=0).numpy() if model.heads > 1 else None,
    )
