"""A task that a small net learns in a second: a bright square is a success where it is on the right."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plaudit.config.reward_schema import AugmentConfig, OptimConfig, TrainingConfig
from plaudit.data import Episode, EpisodeStore
from plaudit.data.dataset import FrameDataset
from plaudit.data.split import Split, split_episodes
from plaudit.reward_models.config import DEFAULT_MODEL
from plaudit.reward_models.model import RewardModel, build_reward_model
from plaudit.reward_models.training.augment import Augment
from plaudit.reward_models.training.batches import FrameFeed
from plaudit.reward_models.training.trainer import Fit

SIZE, LENGTH = 20, 8
MODEL = {**DEFAULT_MODEL, "width": 8, "encoder_stages": 2, "hidden_dim": 16, "image_size": [3, SIZE, SIZE]}
SETTINGS = TrainingConfig(
    num_epochs=8,
    global_batch_size=32,
    optim=OptimConfig(lr=1e-2),
    augment=AugmentConfig(shift=1),
    log_interval=5,
    save_interval=1000,
)


def square(number: int) -> Episode:
    """One episode of eight frames, that of an even number a success in its last four."""
    random = np.random.default_rng(number)
    frames = random.integers(60, 90, (LENGTH, SIZE, SIZE, 3), np.uint8)
    labels = np.zeros(LENGTH, np.int8)
    if number % 2 == 0:
        labels[LENGTH // 2 :] = 1
    for frame, label in zip(frames, labels, strict=True):
        left = random.integers(12, 15) if label else random.integers(0, 6)
        top = random.integers(0, SIZE - 5)
        frame[top : top + 5, left : left + 5] = random.integers(180, 256)
    index = np.arange(1, LENGTH + 1, dtype=np.int32)
    return Episode(
        id=f"square-{number:03d}",
        frames={"base_camera": frames},
        labels=labels,
        frame_index=index,
        length=LENGTH,
        success=bool(labels.any()),
        label_source="rule",
    ).check()


def square_store(path: Path, count: int = 60) -> EpisodeStore:
    """A store of the first squares."""
    store = EpisodeStore.create(path)
    store.add([square(number) for number in range(count)])
    return store


def small_model(seed: int = 0, **changes: Any) -> RewardModel:
    """A net of a few thousand weights for the squares."""
    torch.manual_seed(seed)
    return build_reward_model({**MODEL, **changes})


def small_fit(
    splits: dict[str, Split], model: RewardModel | None = None, *, more: dict[str, Any] | None = None, **changes: Any
) -> Fit:
    """A fit of `SETTINGS` with some changed, and more arguments for `Fit`."""
    settings = dataclasses.replace(SETTINGS, **changes)
    feeds = [FrameFeed(FrameDataset(splits[name]), Augment(settings.augment)) for name in ("train", "val")]
    return Fit(model or small_model(), *feeds, settings, **(more or {}))


def square_splits(path: Path, count: int = 60) -> dict[str, Split]:
    """The squares in three splits."""
    return split_episodes(square_store(path, count))
