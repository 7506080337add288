"""Episodes that look like a robot's: a table with a pattern, an arm that moves, an object that it reaches or misses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plaudit.data import Episode, EpisodeStore

LENGTH, SIZE = 14, 48


def scene(number: int, *, length: int = LENGTH) -> Episode:
    """One episode, that of an even number a success: the arm goes to the object, or past it."""
    random = np.random.default_rng(number)
    positive = number % 2 == 0
    thing = random.uniform(12, SIZE - 12, 2)
    start, noise = random.uniform(6, SIZE - 6, 2), random.normal(0, 0.8, (length + 1, 2))
    goal = thing if positive else thing + 10 * random.choice([-1, 1], 2)
    arm = start + np.linspace(0, 1, length + 1)[:, None] * (goal - start) + noise
    arm[-3:] = arm[-3] + noise[-3:]
    instants = np.arange(length + 1, dtype=np.int32)
    labels = (positive & (instants >= length - 3)).astype(np.int8)
    return Episode(
        id=f"scene-{number:03d}",
        frames={"camera": np.stack([draw(place, thing) for place in arm])},
        labels=labels,
        frame_index=instants,
        length=length,
        success=positive,
        label_source="person",
        state=np.concatenate([arm / SIZE, np.tile(thing / SIZE, (length + 1, 1))], axis=1).astype(np.float32),
        actions=np.diff(arm, axis=0).astype(np.float32),
        rewards=labels[1:].astype(np.float32),
        terminated=np.zeros(length, bool),
        truncated=np.arange(length) == length - 1,
    ).check()


def draw(arm: NDArray[np.float64], thing: NDArray[np.float64]) -> NDArray[np.uint8]:
    """A picture (48, 48, 3) with soft edges, so that a move of less than a pixel shows."""
    y, x = np.mgrid[:SIZE, :SIZE].astype(float)
    table = 130 + 20 * np.sin(x / 5) + 15 * np.cos(y / 7)
    picture = np.stack([table, 0.9 * table, 0.8 * table], axis=-1)
    for place, radius, colour in ((thing, 3.0, (200, 40, 30)), (arm, 6.0, (60, 60, 70))):
        apart = np.maximum(np.abs(y - place[0]), np.abs(x - place[1]))
        inside = np.clip(radius + 0.5 - apart, 0, 1)[..., None]
        picture = picture * (1 - inside) + inside * np.array(colour)
    return picture.round().astype(np.uint8)


def make_store(path: Path, count: int) -> EpisodeStore:
    """A store of the first scenes."""
    store = EpisodeStore.create(path)
    store.add([scene(number) for number in range(count)])
    return store


def alter(path: Path, number: int, change: Callable[[Episode], Episode]) -> None:
    """Puts another episode in the place of one in a store."""
    store = EpisodeStore(path)
    episode = store[number]
    whole = dataclasses.replace(episode, frames={name: np.array(pixels) for name, pixels in episode.frames.items()})
    store.file(episode.id).unlink()
    EpisodeStore(path).add([change(whole)])
