"""Collects what envs show and say into episodes, and keeps those that are still wanted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plaudit.envs.scaling import fit
from plaudit.episodes.buffers import Buffers, Recording
from plaudit.episodes.episode import UNKNOWN, Episode, LabelSource
from plaudit.episodes.outputs import Array, Output, Picture, Reader
from plaudit.episodes.writer import BackgroundWriter, size

if TYPE_CHECKING:
    from plaudit.envs.base import Step

logger = logging.getLogger("plaudit")


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
