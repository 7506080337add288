"""Steps in which the robot was told to stay where it is: their frames show nothing new."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.episodes.episode import Episode

STILL = 1e-5
"""An action whose absolute values add up to less moves nothing."""


def still_steps(episode: Episode) -> NDArray[np.bool_]:
    """Which actions move nothing, (T,); none where the actions are not known."""
    if episode.actions is None:
        return np.zeros(episode.length, bool)
    still: NDArray[np.bool_] = np.abs(episode.actions).sum(1, dtype=np.float64) < STILL
    return still


def repeats(episode: Episode, *, keep_last: bool = True) -> NDArray[np.bool_]:
    """Which frames repeat the one before them, (n,): all actions between the two move nothing.

    Instant t is after t actions, so it is the frame *after* a still action that is a repeat. A frame with another label
    than the one before it is never one, nor the last frame where `keep_last`.
    """
    moves = np.concatenate([[0], np.cumsum(~still_steps(episode))])
    moved = moves[episode.frame_index]
    result = np.zeros(len(episode), bool)
    result[1:] = (np.diff(moved) == 0) & (np.diff(episode.labels) == 0)
    if keep_last:
        result[-1] = False
    return result


def without_still_steps(episode: Episode) -> Episode:
    """The episode as if its still steps had never been: action, frame, state and reward after it taken out.

    A step whose frame changes the label is kept, and so is the last step, which says how the episode ended.
    """
    index = episode.frame_index
    keep = ~still_steps(episode)
    keep[-1:] = True
    changed = index[1:][np.diff(episode.labels) != 0]
    keep[changed - 1] = True
    if keep.all():
        return episode
    instants = np.concatenate([[True], keep])
    moved = np.cumsum(instants) - 1
    rows = np.diff(moved[index], prepend=-1) > 0  # Of frames that now share an instant, the first.
    state = episode.state
    if state is not None:
        state = state[instants if len(state) == episode.length + 1 else keep]

    steps: dict[str, Any] = {}
    for name in ("actions", "rewards", "terminated", "truncated"):
        values = getattr(episode, name)
        steps[name] = None if values is None else values[keep]
    return dataclasses.replace(
        episode,
        frames={camera: pixels[rows] for camera, pixels in episode.frames.items()},
        labels=episode.labels[rows],
        frame_index=moved[index[rows]].astype(np.int32),
        flags={name: values[rows] for name, values in episode.flags.items()},
        length=int(keep.sum()),
        state=state,
        **steps,
    )
