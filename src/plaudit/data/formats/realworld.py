"""Processed episodes of a real robot, in the layout of RLinf's real-world guide.

    collected_data/rank_0_env_0_episode_{id}_{success,fail}.pkl

A file is a dict of `mode`, `rank`, `env_idx`, `episode_id`, `success`, `observations` (a list of {`main_images` uint8,
`states`}), `actions`, `rewards`, `terminated`, `truncated` and `infos` (a list of {`is_obj_placed`}), all N long.
Observation t was recorded *before* action t, info t *after* it: without a correction, every label would be one frame
early. Here label t belongs to frame t + 1. The first frame then has no label, and the last label has no frame (it still
determines whether the episode succeeded). Steps in which the robot stood still may have been dropped; the instants
count the steps that are in the file.
"""

from __future__ import annotations

import math
import pickle
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import SUCCESS, UNKNOWN, Episode, EpisodeSource
from plaudit.data.formats import parsing as values
from plaudit.data.formats.base import EpisodeFormat, FileSource
from plaudit.data.formats.numbered_files import NumberedWriter, files_in, with_ids
from plaudit.data.formats.parsing import to_frames
from plaudit.data.formats.rlinf_observations import (
    any_within,
    at,
    flag,
    lost_between_frames,
    lost_in_observations,
    main_camera,
    observation,
)
from plaudit.data.formats.safe_pickle import is_pickle_of, load_pickle
from plaudit.errors import DataError

NAME = re.compile(r"rank_\d+_env_\d+_episode_(\d+)_(success|fail)\.pkl")
_EITHER = re.compile(r"rank_\d+_env_\d+_episode_\d+(_step_\d+)?_(success|fail)\.pkl")
KEYS = ("observations", "actions", "rewards", "terminated", "truncated", "infos")
LABEL = "is_obj_placed"
MOVED = (
    "these files label the frame before an action with the success after it: every label was moved to the next frame, "
    "which leaves the first frame of each episode without one and the last label without a frame"
)


class RealworldSource(FileSource):
    """Episodes of a `collected_data` folder, or of one file."""

    format = "realworld"

    def parse(self, file: Path, id: str) -> Episode:
        content = load_pickle(file)

        # Files with one observation more than actions are in RLinf's own layout.
        parts = {key: values.items(values.entry(content, key), key) for key in KEYS}
        lengths = {key: len(part) for key, part in parts.items()}
        if lengths["observations"] == lengths["actions"] + 1:
            raise ValueError("it has an observation more than actions, as RLinf's own files; read it as 'rlinf'")
        if len(set(lengths.values())) != 1:
            raise ValueError(f"its lists differ in length: {lengths}")

        # Info t is the state after action t, so its label belongs to frame t + 1.
        labels_after = values.labels([values.entry(info, LABEL, "an info") for info in parts["infos"]], LABEL)
        count = len(labels_after)
        state = values.states(parts["observations"], "observations")

        return Episode(
            id=id,
            frames=to_frames(values.pictures(parts["observations"], "observations")),
            labels=np.concatenate([[UNKNOWN], labels_after[:-1]]).astype(np.int8),
            frame_index=np.arange(count, dtype=np.int32),
            length=count,
            success=bool(values.label(values.entry(content, "success"), "success") == SUCCESS),
            label_source="rule",
            # The state after the last action was not recorded.
            state=None if state is None else np.concatenate([state, np.full_like(state[:1], np.nan)]),
            **steps(parts),
            meta=about(content),
        )


def has_reset(path: Path) -> bool | None:
    """Return whether a folder's files begin with the reset, as RLinf's own files do.

    Returns `None` if the files are in another layout. `path` may also be a single file.
    """
    # One file decides for the folder.
    file: Path | None = path
    if path.is_dir():
        file = next((file for file in files_in(path, ".pkl") if _EITHER.fullmatch(file.name)), None)
    elif not is_pickle_of(path, "dict", "observations"):
        file = None

    # Only RLinf's own file names contain the step.
    if file is None or "_step_" in file.name:
        return None if file is None else True

    # If the file is damaged, its name has to suffice; the error is reported when it is read.
    with suppress(DataError, KeyError, TypeError):
        content = load_pickle(file)
        return len(content["observations"]) == len(content["actions"]) + 1
    return False


def steps(parts: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the per-step fields of an episode: actions, rewards and end flags."""
    return {
        "actions": values.vectors(parts["actions"], "actions"),
        "rewards": values.numbers(parts["rewards"], "rewards"),
        "terminated": values.booleans(parts["terminated"], "terminated"),
        "truncated": values.booleans(parts["truncated"], "truncated"),
    }


def about(content: Any) -> dict[str, Any]:
    """Return the metadata that records the origin of an episode."""
    return {
        key: values.plain(content[key]) for key in ("mode", "rank", "env_idx", "episode_id", "step") if key in content
    }


class RealworldWriter(NumberedWriter):
    """Writer of this layout, in which label t is that of frame t + 1.

    If not every instant has a frame, each frame is followed by the next existing one, as if the steps between them had
    been dropped because the robot stood still.

    Args:
        path: The folder, usually called `collected_data`.
        main_camera: The camera that becomes `main_images`; by default the first by name.
    """

    pattern = NAME
    one_counter = True

    def __init__(self, path: str | Path, *, main_camera: str | None = None) -> None:
        self.main_camera = main_camera
        super().__init__({True: Path(path), False: Path(path)})

    def name(self, number: int, positive: bool) -> str:
        return f"rank_0_env_0_episode_{number}_{'success' if positive else 'fail'}.pkl"

    def encode(self, episode: Episode, number: int) -> bytes:
        reason = RealworldFormat.misfit(episode)
        if reason:
            raise DataError(f"episode '{episode.id}': {reason}.")

        main = main_camera(episode, self.main_camera)
        rows = [_row(episode, row, main) for row in range(_rows(episode))]
        content = {
            "mode": "train",
            "rank": 0,
            "env_idx": 0,
            "episode_id": number,
            "success": episode.positive,
            **{key: [row[key] for row in rows] for key in KEYS},
        }
        return pickle.dumps(content)

    def labels(self, episode: Episode) -> NDArray[np.int8]:
        labels = np.array(episode.labels[: _rows(episode)])
        labels[0] = UNKNOWN
        return labels

    def read(self, file: Path) -> Episode:
        return RealworldSource(file, [(file.stem, file)])[0]


def _rows(episode: Episode) -> int:
    """Return the number of frames that are followed by an action."""
    return int((episode.frame_index < episode.length).sum())


def _row(episode: Episode, row: int, main: str) -> dict[str, Any]:
    """Return the observation of a frame and the step from there to the next frame."""
    import torch

    followed = row + 1 < len(episode)
    start = int(episode.frame_index[row])
    stop = int(episode.frame_index[row + 1]) if followed else episode.length

    frame = observation(episode, row, main)
    if frame["states"] is not None:
        frame["states"] = torch.from_numpy(frame["states"])

    # Several steps between two frames count as one: the first action, the last reward.
    action = at(episode.actions, start)
    reward = at(episode.rewards, stop - 1)
    return {
        "observations": frame,
        "actions": torch.full((6,), math.nan) if action is None else torch.tensor(action),
        "rewards": torch.tensor(math.nan if reward is None else float(reward)),
        "terminated": bool(any_within(episode.terminated, start, stop)),
        "truncated": bool(any_within(episode.truncated, start, stop)),
        "infos": {LABEL: flag(episode.labels[row + 1]) if followed else None},
    }


class RealworldFormat(EpisodeFormat):
    """Pickled episodes with the frame before each action and the label after it."""

    name = "realworld"
    about = "collected_data/ with rank_0_env_0_episode_0_success.pkl, from data.pkl (RLinf's real-world guide)"
    holds = frozenset({"state", "actions", "rewards", "terminated", "truncated"})
    writer = RealworldWriter

    @classmethod
    def matches(cls, path: Path) -> bool:
        return has_reset(path) is False

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        files = [path] if path.is_file() else files_in(path, ".pkl")
        return RealworldSource(path, with_ids(files, prefixed=False), MOVED)

    @classmethod
    def misfit(cls, episode: Episode) -> str | None:
        return None if _rows(episode) else "no action follows its only frame, and the layout has only frames before one"

    @classmethod
    def lost(cls, episode: Episode) -> list[str]:
        rows = _rows(episode)
        lost = [*super().lost(episode), *lost_in_observations(episode)]

        # The shift by one leaves the last label without a frame and the first frame without a label.
        if rows < len(episode):
            lost.append("frames: the last one, for which there is only the label")
        if episode.labels[0] != UNKNOWN:
            lost.append("labels: that of the first frame")

        if rows < episode.length:
            lost += lost_between_frames(episode)
        elif episode.state is not None and not np.isnan(episode.state[-1]).all():
            lost.append("state: that after the last action")

        # The layout has no value for "unknown" in these fields.
        if episode.success != episode.positive:
            lost.append("success: written as what the labels say")
        unknown = [name for name in ("terminated", "truncated") if getattr(episode, name) is None]
        return lost + [f"{name}: not known, written as false" for name in unknown]
