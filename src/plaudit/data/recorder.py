"""Record env steps as episodes: one buffer per env, and the collector that keeps the episodes still wanted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plaudit.data.background_writer import BackgroundWriter, size
from plaudit.data.episode import SUCCESS, UNKNOWN, Episode, LabelSource
from plaudit.data.frame_selection import Selection, importance, is_whole
from plaudit.data.step_adapter import Array, ObservationView, Output, Picture, Reader, array
from plaudit.utils.images import fit

if TYPE_CHECKING:
    from plaudit.envs.base import Step

logger = logging.getLogger("plaudit")

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
        self._newest: dict[
            int, tuple[ObservationView, int]
        ] = {}  # ObservationView and row; weighed once the next label is known.

    def begin(self, env: int, id: str, view: ObservationView | None) -> None:
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
        view = ObservationView(None, state["newest"])
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


class RewardDataCollector:
    """A buffer for each env, whose episodes are handed to a writer when they are over.

    An episode is positive if its env said `success_once`, or a frame is labelled a success; else it is negative. Its id
    is `<name>-e<env>-<number>`, the same whenever the same envs play the same episodes.

    Args:
        num_envs: How many envs step together.
        writer: Where episodes go.
        name: What the ids begin with.
        cameras: Pictures that are kept; `None` keeps all.
        image_size: Height and width that they are scaled to; `None` leaves them as they are.
        frames_per_episode: Pictures kept of each episode, see `sampling`; `None` keeps all.
        whole_episodes: Share of the episodes of which all are kept nevertheless.
        max_positive_trajectories: Positive episodes wanted, those of earlier runs included; `None` for no limit.
        max_negative_trajectories: The same for negative ones.
        early_failures: Share of these that are taken as they come. The others are taken in step with the positive ones,
            so that there are failures of a policy that has learned something; it takes a limit to both.
        label_source: Who gives the labels.
        about: What is written with every episode.
        describe: From an env to what is written with its present episode, such as who acts.
        say: Is told, once, that nothing more is wanted.
        draw: From snapshots (n, k) to camera name and frames (n, H, W, 3), for envs that give those.

    Attributes:
        complete: Whether nothing more is wanted.
        episodes: How many episodes have ended.
        idle: How many in a row have ended and were not wanted.
        repeated: How many were there already, from before a resume.
        size: Bytes of those that were saved.
    """

    def __init__(
        self,
        num_envs: int,
        writer: BackgroundWriter,
        *,
        name: str = "episode",
        cameras: Sequence[str] | None = None,
        image_size: tuple[int, int] | None = None,
        frames_per_episode: int | None = None,
        whole_episodes: float = 0.0,
        max_positive_trajectories: int | None = None,
        max_negative_trajectories: int | None = None,
        early_failures: float = 1.0,
        label_source: LabelSource = "simulator",
        about: Mapping[str, Any] | None = None,
        describe: Callable[[int], Mapping[str, Any]] | None = None,
        say: Callable[[str], None] = logger.info,
        draw: Callable[[Array], Mapping[str, Array]] | None = None,
    ) -> None:
        self.num_envs, self.writer, self.name = num_envs, writer, name
        self.cameras, self.image_size = cameras, image_size
        self.limits, self.early_failures = (max_positive_trajectories, max_negative_trajectories), early_failures
        self.label_source, self.about = label_source, dict(about or {})
        self.describe, self.say, self.draw = describe, say, draw
        self.reader = Reader(num_envs, cameras, image_size)
        self.buffers = Buffers(num_envs, frames_per_episode, whole_episodes)
        self.number = np.full(num_envs, -1, np.int64)  # Of the present episode of each env.
        self.episodes = self.idle = self.repeated = self.size = 0
        self.complete = False
        self._go_on(0)
        self._see_whether_complete()

    def add_env_output(
        self, env_output: Step | Mapping[str, Any], env_info: Mapping[str, Any] | None = None, is_last_step: Any = False
    ) -> None:
        """Takes in what the envs say after a reset or a step, and saves the episodes that are over.

        Args:
            env_output: A `Step`, or a dict of batches (see `Reader.mapping`).
            env_info: What else is known: `actions`; for dicts also `success_once`.
            is_last_step: For dicts, whose episode is over: bool, or (num_envs,). A `Step` says so itself.
        """
        info = env_info or {}
        if isinstance(env_output, Mapping):
            self.add(self.reader.mapping(env_output, info, is_last_step))
        else:
            self.add(self.reader.step(env_output, info))

    def add(self, output: Output) -> None:
        """Takes in one instant of all envs."""
        if self.complete:
            return
        if output.labels is None:
            for env in range(self.num_envs):
                self._begin(env, output)
            return
        for env in np.flatnonzero(self.number < 0).tolist():  # There was no reset to see.
            self._begin(env, None)
        self.buffers.append(output)
        for env in np.flatnonzero(output.ended).tolist():
            self.save_trajectory(env)
            self._begin(env, output if output.final is not None else None)

    def save_trajectory(self, env_idx: int) -> Episode | None:
        """Ends an env's episode, which is saved if it is wanted and not there already. One in which the env can tell
        success and still no frame has a label is not wanted: nobody could learn from it.

        Returns:
            What was saved.
        """
        if not self.buffers.recording[env_idx]:
            return None
        recording = self.buffers.end(env_idx)
        self.episodes += 1
        if self._id(env_idx) in self.writer:
            self.repeated += 1
            self._ahead -= bool(recording.success)
            return None
        labelled = recording.success is None or bool((recording.labels != UNKNOWN).any())
        if not recording.length or not labelled or not self._wanted(bool(recording.success)):
            self.idle += 1
            self._see_whether_complete()  # Other processes may have added the rest.
            return None
        episode = self._episode(env_idx, recording)
        self.writer.put(episode)
        self.size += size(episode)
        self.idle = 0
        self._see_whether_complete()
        return episode

    def state_dict(self) -> dict[str, Any]:
        """What makes an exact resume go on collecting as if nothing had been, with the same ids: also the episodes that
        are going on, where they are held as snapshots. Those that are over are on the disk when this returns.
        """
        self.writer.flush()
        return {
            "name": self.name,
            "number": self.number.tolist(),
            "positives": self.writer.positives(self._beginning) - self._ahead,
            "buffers": self.buffers.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Puts back what `state_dict` gave. Episodes whose beginning it does not have are not saved.

        Args:
            state: `None` where the envs were resumed from a time when nothing was collected.
        """
        if state is not None:
            self.name, self.number = str(state["name"]), np.array(state["number"], np.int64)
            self._go_on(int(state.get("positives", 0)))
        self.number = np.maximum(self.number, 0)
        self.buffers.recording[:] = False
        if state is not None and state.get("buffers") is not None and not self.complete:
            self.buffers.load_state_dict(state["buffers"], [self._id(env) for env in range(self.num_envs)])

    def _begin(self, env: int, output: Output | None) -> None:
        self.number[env] += 1
        self.buffers.begin(env, self._id(env), None if output is None else output.now)

    @property
    def _beginning(self) -> str:
        """Of the ids of this run's episodes."""
        return f"{self.name}-e"

    def _id(self, env: int) -> str:
        return f"{self._beginning}{env:04d}-{self.number[env]:06d}"

    def _go_on(self, positives: int) -> None:
        """Begins at a time of the run at which it had so many positive episodes. If it was killed later there are more,
        which come again: by so many the disk is `_ahead`.
        """
        self._ahead = self.writer.positives(self._beginning) - positives

    def _wanted(self, positive: bool) -> bool:
        counts, (most, limit) = self.writer.counts, self.limits
        if positive:
            return most is None or counts.positive < most
        done = min(1.0, (counts.positive - self._ahead) / most) if most else 1.0
        return limit is None or counts.negative < limit * (self.early_failures + (1.0 - self.early_failures) * done)

    def _see_whether_complete(self) -> None:
        counts, (positive, negative) = self.writer.counts, self.limits
        if positive is None or negative is None or counts.positive < positive or counts.negative < negative:
            return
        self.complete = True
        self.buffers = Buffers(self.num_envs, None)
        there = f"{counts.positive} positive and {counts.negative} negative episodes"
        self.say(f"there are {there}, as many as wanted: collection is over.")

    def _episode(self, env: int, recording: Recording) -> Episode:
        instants = np.array(sorted(recording.pictures), np.int32)
        described = {} if self.describe is None else self.describe(env)
        about = {**self.about, "env_index": env, "episode": int(self.number[env]), **described}
        if self.buffers.keeps_whole(self._id(env)):
            about["whole"] = True
        if recording.metrics:
            about["metrics"] = {name: _spread(values) for name, values in recording.metrics.items()}
        return Episode(
            id=self._id(env),
            frames=self._frames(recording.pictures),
            labels=recording.labels[instants],
            frame_index=instants,
            length=recording.length,
            success=recording.success,
            label_source="unknown" if recording.success is None else self.label_source,
            flags={name: values[instants] for name, values in recording.flags.items()},
            state=recording.state,
            meta=about,
            **recording.steps,
        )

    def _frames(self, pictures: Mapping[int, Picture]) -> dict[str, NDArray[np.uint8]]:
        """Camera name to (n, H, W, 3), in the order of the instants; what is a snapshot is drawn now."""
        whole = {instant: picture for instant, picture in pictures.items() if isinstance(picture, dict)}
        snapshots = {instant: picture for instant, picture in pictures.items() if not isinstance(picture, dict)}
        if snapshots:
            assert self.draw is not None
            drawn = self.draw(np.stack(list(snapshots.values())))
            cameras = self.cameras or drawn
            for row, instant in enumerate(snapshots):
                whole[instant] = {camera: fit(drawn[camera][row], self.image_size) for camera in cameras}
        ordered = [whole[instant] for instant in sorted(whole)]
        return {camera: np.stack([picture[camera] for picture in ordered]) for camera in ordered[0]}


def _spread(values: Array) -> dict[str, float]:
    """The least, the greatest and the last of an episode's measurements."""
    picked = {"min": values.min(), "max": values.max(), "last": values[-1]}
    return {name: round(float(value), 6) for name, value in picked.items()}
