"""The episodes that are going on: one buffer for each env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.episodes.episode import SUCCESS, UNKNOWN
from plaudit.episodes.outputs import Array, Output, Picture, View, array
from plaudit.episodes.sampling import Selection, importance, is_whole

ROOM = 64
"""Instants that there is room for at first; longer episodes double it."""

_DTYPES = {"actions": np.float32, "rewards": np.float32, "terminated": np.bool_, "truncated": np.bool_}
"""What is kept of each action."""

_COUNTED = ("instant", "with_reset", "succeeded", "told")
"""Attributes, but for an underscore, that have a number for each env."""


@dataclass(frozen=True)
class Recording:
    """One whole episode. Arrays that start at the reset, which may be missing, end alike.

    Attributes:
        length: T, the number of actions.
        labels: int8 (T + 1,), of every instant.
        flags: int8 (T + 1,) each.
        pictures: Instant to picture, of the instants that are kept.
        state: float32 (T + 1, k), or (T, k) where there was no reset, or `None`.
        steps: Of each action: `actions` (T, a), `rewards`, `terminated`, `truncated` (T,), those that were told.
        metrics: float32 (T,) each.
        success: Whether it succeeded at some time; `None` where nobody said.
    """

    length: int
    labels: NDArray[np.int8]
    flags: Mapping[str, NDArray[np.int8]]
    pictures: Mapping[int, Picture]
    state: NDArray[np.float32] | None
    steps: Mapping[str, Array]
    metrics: Mapping[str, Array]
    success: bool | None


class Columns:
    """Named arrays (num_envs, instants, ...) that are written for many envs at once and read for one."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.room = num_envs, ROOM
        self.arrays: dict[str, Array] = {}

    def write(self, name: str, envs: NDArray[np.int64], instants: NDArray[np.int64], values: Array) -> None:
        """Puts values (n, ...) of some envs at an instant of each."""
        while len(instants) and instants.max() >= self.room:
            self.room *= 2
            self.arrays = {key: np.concatenate([old, _blank(old)], axis=1) for key, old in self.arrays.items()}
        if name not in self.arrays:
            self.arrays[name] = _blank(np.empty((self.num_envs, self.room, *values.shape[1:]), values.dtype))
        self.arrays[name][envs, instants] = values

    def clear(self, env: int) -> None:
        """Forgets what one env has written."""
        for column in self.arrays.values():
            column[env] = _blank(column[env])

    def read(self, prefix: str, env: int, start: int, stop: int) -> dict[str, Array]:
        """Copies of one env's instants from `start` to before `stop`, of all columns whose names begin so."""
        found = {name: column for name, column in self.arrays.items() if name.startswith(prefix)}
        return {name.removeprefix(prefix): column[env, start:stop].copy() for name, column in found.items()}


class Buffers:
    """What every env has recorded of its present episode.

    Args:
        num_envs: How many envs step together.
        frames_per_episode: Pictures that are kept of each episode; `None` keeps all.
        whole_episodes: Share of the episodes of which all are kept nevertheless.

    Attributes:
        recording: bool (num_envs,): which envs are in an episode that was begun here.
    """

    def __init__(self, num_envs: int, frames_per_episode: int | None, whole_episodes: float = 0.0) -> None:
        self.frames_per_episode, self.whole_episodes = frames_per_episode, whole_episodes
        self.recording = np.zeros(num_envs, bool)
        self._instant = np.zeros(num_envs, np.int64)
        self._with_reset = np.zeros(num_envs, bool)
        self._succeeded = np.zeros(num_envs, bool)
        self._told = np.zeros(num_envs, bool)
        self._columns = Columns(num_envs)
        self._columns.arrays["labels"] = np.full((num_envs, ROOM), UNKNOWN, np.int8)
        self._selections: dict[int, Selection[Picture]] = {}
        self._newest: dict[int, tuple[View, int]] = {}  # View and row; weighed once the next label is known.

    def begin(self, env: int, id: str, view: View | None) -> None:
        """Starts an episode, with what all envs show after its reset, where that is known."""
        self._columns.clear(env)
        self.recording[env], self._with_reset[env] = True, view is not None
        self._instant[env], self._succeeded[env], self._told[env] = 0, False, False
        self._selections[env] = self._selection(id)
        self._newest.pop(env, None)
        if view is not None:
            self._newest[env] = view, env
            if view.state is not None:
                self._columns.write("state", np.array([env]), np.zeros(1, np.int64), view.state[[env]])

    def append(self, output: Output) -> None:
        """Adds the instant that an action led to, in all envs that record."""
        envs = np.flatnonzero(self.recording)
        self._instant[envs] += 1
        at = self._instant[envs]
        self._succeeded |= output.success_once | (output.labels == SUCCESS)
        self._told |= output.tells
        for name, values in _columns(output).items():
            self._columns.write(name, envs, at, values[envs])
        self._weigh(envs, at - 1)
        self._newest = {int(env): (output.now, int(env)) for env in envs}
        if output.final is None:
            return
        for row, env in enumerate(np.flatnonzero(output.ended).tolist()):
            if self.recording[env]:
                self._newest[env] = output.final, row
                if output.final.state is not None:
                    self._columns.write("state", np.array([env]), self._instant[[env]], output.final.state[[row]])

    def end(self, env: int) -> Recording:
        """Takes an env's episode out of its buffer."""
        length = int(self._instant[env])
        self._weigh(np.array([env]), self._instant[[env]], last=True)
        self.recording[env] = False
        read, stop = self._columns.read, length + 1
        return Recording(
            length=length,
            labels=read("labels", env, 0, stop)[""],
            flags=read("flags.", env, 0, stop),
            pictures=self._selections.pop(env).pictures(),
            state=read("state", env, 0 if self._with_reset[env] else 1, stop).get(""),
            steps=read("steps.", env, 1, stop),
            metrics=read("metrics.", env, 1, stop),
            success=bool(self._succeeded[env]) if self._told[env] or self._succeeded[env] else None,
        )

    def state_dict(self) -> dict[str, Any] | None:
        """All that is recorded so far, as arrays; `None` where it has pictures and not snapshots in it, which would
        make every checkpoint as large as all of them.
        """
        envs = np.flatnonzero(self.recording)
        shown = {env: self._newest[env][0].take(self._newest[env][1]) for env in envs.tolist() if env in self._newest}
        held = [(env, *one) for env in envs.tolist() for one in self._selections[env].held]
        if any(isinstance(picture, dict) for picture in (*shown.values(), *(one[3] for one in held))):
            return None
        columns = self._columns.arrays.items()
        return {
            "recording": self.recording.copy(),
            "columns": {name: column[:, : 1 + int(self._instant[envs].max(initial=0))] for name, column in columns},
            **{name: getattr(self, f"_{name}").copy() for name in _COUNTED},
            "offered": np.array([self._selections[env].offered for env in envs.tolist()], np.int64),
            "shown": np.array(list(shown), np.int64),
            "newest": np.array(list(shown.values())),
            "held": np.array([one[0] for one in held], np.int64),
            "ranks": np.array([one[1] for one in held], np.float64),
            "instants": np.array([one[2] for one in held], np.int64),
            "pictures": np.array([one[3] for one in held]),
        }

    def load_state_dict(self, state: Mapping[str, Any], ids: Sequence[str]) -> None:
        """Goes on with what `state_dict` gave.

        Args:
            state: Of as many envs.
            ids: Of the episode that each env is in.
        """
        self.recording = np.array(state["recording"], bool)
        for name in _COUNTED:
            setattr(self, f"_{name}", np.array(state[name]))
        for name, column in state["columns"].items():
            envs, instants = np.indices(column.shape[:2]).reshape(2, -1)
            self._columns.write(name, envs, instants, column.reshape(-1, *column.shape[2:]))
        held = state["held"]
        for env, offered in zip(np.flatnonzero(self.recording).tolist(), state["offered"].tolist(), strict=True):
            rows = np.flatnonzero(held == env).tolist()
            ones = [(float(state["ranks"][i]), int(state["instants"][i]), state["pictures"][i]) for i in rows]
            self._selections[env] = self._selection(ids[env])
            self._selections[env].restore(offered, ones)
        view = View(None, state["newest"])
        self._newest = {env: (view, row) for row, env in enumerate(state["shown"].tolist())}

    def keeps_whole(self, id: str) -> bool:
        """Whether all pictures of an episode are kept, where of others only some are."""
        return self.frames_per_episode is not None and is_whole(id, self.whole_episodes)

    def _selection(self, id: str) -> Selection[Picture]:
        return Selection(id, None if self.keeps_whole(id) else self.frames_per_episode)

    def _weigh(self, envs: NDArray[np.int64], at: NDArray[np.int64], last: bool = False) -> None:
        """Decides on some envs' newest pictures, of the instants `at`, now that the label after them is known."""
        labels = self._columns.arrays["labels"]
        now = labels[envs, at]
        before = np.where(at > 1, labels[envs, at - 1], now)  # The reset has no label, which is no change.
        after = np.where(at < self._instant[envs], labels[envs, (at + 1) % self._columns.room], now)
        weights = importance(before, now, after, last=last)
        for env, instant, weight in zip(envs.tolist(), at.tolist(), weights.tolist(), strict=True):
            if env in self._newest:
                view, row = self._newest[env]
                self._selections[env].offer(instant, weight, partial(view.take, row))


def _columns(output: Output) -> dict[str, Array]:
    """The numbers that are kept of an instant, by the names of their columns."""
    columns: dict[str, Array] = {"labels": array(output.labels)}
    columns |= {f"flags.{name}": values for name, values in output.flags.items()}
    columns |= {f"steps.{name}": values.astype(_DTYPES[name], copy=False) for name, values in output.steps.items()}
    columns |= {f"metrics.{name}": values for name, values in output.metrics.items()}
    return columns if output.now.state is None else {**columns, "state": output.now.state}


def _blank(like: Array) -> Array:
    """An array of the same shape in which nothing is known."""
    return np.full_like(like, UNKNOWN if like.dtype == np.int8 else 0)
