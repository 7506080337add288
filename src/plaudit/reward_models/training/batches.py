"""What a fit reads: frames that go through the whole model, or a frozen encoder's features that go through its head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.data.dataset import FrameDataset
from plaudit.data.episode import UNKNOWN
from plaudit.reward_models.model import RewardModel
from plaudit.reward_models.training.augment import Augment
from plaudit.reward_models.training.samplers import Rows

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class FrameBatch:
    """What one step sees.

    Attributes:
        rows: Which frames of the data set, (n,).
        inputs: uint8 (n, H, W, 3) for each camera, or features (n, ...).
        labels: float32 (n,), 1 or 0.
        start: Where they begin in the batch of the step, of which they may be a part.
        whole: Frames in that batch.
    """

    rows: Rows
    inputs: Mapping[str, torch.Tensor] | torch.Tensor
    labels: torch.Tensor
    start: int
    whole: int


class Feed(ABC):
    """Labelled frames of one split.

    Args:
        dataset: The frames.

    Attributes:
        rows: Frames whose label is known, ordered by episode and instant, (n,).
    """

    def __init__(self, dataset: FrameDataset) -> None:
        self.dataset = dataset
        order = np.lexsort((dataset.rows, dataset.episodes))
        self.rows: Rows = order[dataset.labels[order] != UNKNOWN].astype(np.int64)

    @cached_property
    def instants(self) -> NDArray[np.int32]:
        """The instant of each of `rows`, (n,)."""
        episodes, which = self.dataset.episodes[self.rows], self.dataset.rows[self.rows]
        starts = np.flatnonzero(np.diff(episodes, prepend=-1))
        parts = [
            self.dataset.source[int(episodes[start])].frame_index[which[start:end]]
            for start, end in zip(starts, [*starts[1:], len(episodes)], strict=True)
        ]
        return np.concatenate([np.zeros(0, np.int32), *parts])

    def read(self, rows: Rows, random: np.random.Generator | None = None, share: slice = slice(None)) -> FrameBatch:
        """Reads some frames; may run in another thread.

        Args:
            rows: Which.
            random: Given in training; draws for all of `rows`, whatever the share.
            share: Which of `rows` to read, the rest being read elsewhere.
        """
        start, stop, _ = share.indices(len(rows))
        labels = torch.from_numpy(self.dataset.labels[rows[share]].astype(np.float32))
        return FrameBatch(rows[share], self._inputs(rows, random, slice(start, stop)), labels, start, len(rows))

    @abstractmethod
    def _inputs(
        self, rows: Rows, random: np.random.Generator | None, share: slice
    ) -> Mapping[str, torch.Tensor] | torch.Tensor:
        """What `FrameBatch.inputs` is to be."""

    @abstractmethod
    def logits(self, model: RewardModel, batch: FrameBatch, random: torch.Generator | None = None) -> torch.Tensor:
        """Logits (n, heads) of a batch on the model's device. With `random`, of varied pictures."""


class FrameFeed(Feed):
    """Frames, which the whole model looks at.

    Args:
        dataset: The frames.
        augment: Varies them in training.
    """

    def __init__(self, dataset: FrameDataset, augment: Augment | None = None) -> None:
        super().__init__(dataset)
        self.augment = augment

    def _inputs(self, rows: Rows, random: np.random.Generator | None, share: slice) -> dict[str, torch.Tensor]:
        frames: dict[str, torch.Tensor] = self.dataset.batch(rows[share])["frames"]
        return frames

    def logits(self, model: RewardModel, batch: FrameBatch, random: torch.Generator | None = None) -> torch.Tensor:
        assert not isinstance(batch.inputs, torch.Tensor)
        images = model.prepare(batch.inputs)
        if random is not None and self.augment is not None:
            images = self.augment(images, random, batch.start, batch.whole)
        return model.decide(model.encode(images))


class FeatureFeed(Feed):
    """Features of a frozen encoder, of which only the head is left to run.

    Args:
        dataset: The frames.
        features: float16 (n, views, ...), of every frame of `dataset`; may be memory-mapped.
    """

    def __init__(self, dataset: FrameDataset, features: NDArray[np.float16]) -> None:
        super().__init__(dataset)
        self.features = features

    def _inputs(self, rows: Rows, random: np.random.Generator | None, share: slice) -> torch.Tensor:
        views = self.features.shape[1]
        chosen = np.zeros(len(rows), np.int64) if random is None else random.integers(0, views, len(rows))
        rows, chosen = rows[share], chosen[share]
        order = np.argsort(rows)  # In the order of the disk.
        picked = np.empty((len(rows), *self.features.shape[2:]), np.float16)
        picked[order] = self.features[rows[order], chosen[order]]
        return torch.from_numpy(picked)

    def logits(self, model: RewardModel, batch: FrameBatch, random: torch.Generator | None = None) -> torch.Tensor:
        assert isinstance(batch.inputs, torch.Tensor)
        return model.decide(batch.inputs.to(torch.float32))


def moved(batch: FrameBatch, device: torch.device) -> FrameBatch:
    """A batch on another device."""
    if device.type == "cpu":
        return batch
    inputs = batch.inputs
    there = (
        inputs.to(device, non_blocking=True)
        if isinstance(inputs, torch.Tensor)
        else {name: value.to(device, non_blocking=True) for name, value in inputs.items()}
    )
    return replace(batch, inputs=there, labels=batch.labels.to(device, non_blocking=True))


def parts(batch: FrameBatch, cuts: Iterable[slice]) -> Iterator[FrameBatch]:
    """Parts of a batch."""
    for some in cuts:
        inputs = batch.inputs
        cut = inputs[some] if isinstance(inputs, torch.Tensor) else {name: all[some] for name, all in inputs.items()}
        yield FrameBatch(batch.rows[some], cut, batch.labels[some], batch.start + some.start, batch.whole)


def read_ahead(read: Callable[[T], R], wanted: Iterable[T]) -> Iterator[R]:
    """What `read` gives for each thing that is wanted, in order, one of them read ahead by another thread."""
    with ThreadPoolExecutor(1, "read-ahead") as pool:
        coming = None
        for thing in wanted:
            next_one = pool.submit(read, thing)
            if coming is not None:
                yield coming.result()
            coming = next_one
        if coming is not None:
            yield coming.result()
