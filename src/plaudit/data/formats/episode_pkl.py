"""Pickled episodes in `success/` and `failure/`, in the layout of RLinf's ResNet guide.

    DIR/success/episode_000000.pkl      one counter for both folders
    DIR/failure/episode_000001.pkl

A file is a dict of `frames` (a list of {`obs` {`main_images`, `states`}, `action`, `reward`, `terminated`, `truncated`,
`done`, `grasp`, `success`, `info`}), `num_frames`, `grasp`, `success`, `done`, `label` and `metadata`. Each observation
was recorded after the action, so frame and label belong to the same instant, and there is no reset frame.

Plaudit also writes: further cameras under their own names in `obs`, other flags in `info`, and in `metadata` the
episode's `meta` and, under `plaudit`, the fields that determine the instants if some of them were left out.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import Episode, EpisodeSource
from plaudit.data.formats import parsing as values
from plaudit.data.formats.base import FIELDS, EpisodeFormat, FileSource
from plaudit.data.formats.numbered_files import NumberedWriter, claim, files_in, natural, with_ids
from plaudit.data.formats.parsing import MAIN_CAMERA, to_frames
from plaudit.data.formats.rlinf_observations import any_within, at, flag, main_camera, observation
from plaudit.data.formats.safe_pickle import is_pickle_of, load_pickle
from plaudit.errors import DataError

CLASSES = {"success": True, "failure": False}
_OURS = "plaudit"
_FLAG = "grasp"
_STEPWISE = ("state", "actions", "rewards", "terminated", "truncated")


class EpisodePklSource(FileSource):
    """Episodes in `success/` and `failure/`, or in one file."""

    format = "episode_pkl"

    def parse(self, file: Path, id: str) -> Episode:
        content = load_pickle(file)
        frames = values.items(values.entry(content, "frames"), "frames")
        metadata = content.get("metadata") or {}
        ours = dict(values.entry(metadata, _OURS)) if _OURS in metadata else {}

        # Files written by Plaudit record the original name of the main camera.
        observations = [values.entry(frame, "obs", f"frames[{i}]") for i, frame in enumerate(frames)]
        cameras = values.pictures(observations, "obs")
        if ours.get("main_camera"):
            cameras = {ours["main_camera"] if name == MAIN_CAMERA else name: pixels for name, pixels in cameras.items()}

        # Other files have a frame for every instant after the reset.
        count = len(frames)
        length = int(ours.get("length", count))
        success = ours["success"] if "success" in ours else content.get("success")
        return Episode(
            id=id,
            frames=to_frames(cameras),
            labels=values.labels([values.entry(frame, "success", "a frame") for frame in frames], "success"),
            frame_index=values.numeric(ours.get("frame_index", np.arange(1, count + 1)), "frame_index").astype(
                np.int32
            ),
            length=length,
            success=None if success is None else bool(values.label(success, "success")),
            label_source=ours.get("label_source", "unknown"),
            flags=_flags(frames, ours.get("flags")),
            # Steps without a frame are not in the file, and the others alone would not be a complete sequence.
            **(_steps(frames, observations) if length == count else {}),
            meta=values.plain({key: value for key, value in metadata.items() if key != _OURS}),
        )


def _flags(frames: list[Any], names: list[str] | None) -> dict[str, NDArray[np.int8]]:
    """Return the flags of the frames by name; without names, `grasp` if it was recorded."""
    grasps = [frame.get(_FLAG) for frame in frames]
    if names is None:
        names = [_FLAG] if any(grasp is not None for grasp in grasps) else []
    flags = {name: grasps if name == _FLAG else [frame["info"].get(name) for frame in frames] for name in names}
    return {name: values.labels(marks, name) for name, marks in flags.items()}


def _steps(frames: list[Any], observations: list[Any]) -> dict[str, Any]:
    """Return the per-step fields of an episode."""

    def each(key: str) -> list[Any]:
        return [frame.get(key) for frame in frames]

    return {
        "state": values.states(observations, "obs"),
        "actions": values.vectors(each("action"), "action"),
        "rewards": values.numbers(each("reward"), "reward"),
        "terminated": values.booleans(each("terminated"), "terminated"),
        "truncated": values.booleans(each("truncated"), "truncated"),
    }


class EpisodePklWriter(NumberedWriter):
    """Writer of pickled episodes.

    Args:
        path: Folder that contains `success/` and `failure/`.
        main_camera: The camera that becomes `main_images`; by default the first by name.
    """

    pattern = re.compile(r"episode_(\d{6,})\.pkl")
    one_counter = True

    def __init__(self, path: str | Path, *, main_camera: str | None = None) -> None:
        self.main_camera = main_camera
        claim(Path(path), lambda name: name in CLASSES)
        super().__init__({positive: Path(path) / name for name, positive in CLASSES.items()})

    def name(self, number: int, positive: bool) -> str:
        return f"episode_{number:06d}.pkl"

    def encode(self, episode: Episode, number: int) -> bytes:
        reason = EpisodePklFormat.misfit(episode)
        if reason:
            raise DataError(f"episode '{episode.id}': {reason}.")

        # The layout has no reset frame, which is instant 0.
        rows = np.flatnonzero(episode.frame_index > 0).tolist()
        main = main_camera(episode, self.main_camera)

        # Fields that the layout itself has no place for.
        ours = {
            "main_camera": main,
            "frame_index": episode.frame_index[rows].tolist(),
            "length": episode.length,
            "success": episode.success,
            "label_source": episode.label_source,
            "flags": list(episode.flags),
        }

        frames = [_frame(episode, row, main) for row in rows]
        grasps = [frame["grasp"] for frame in frames]
        content = {
            "frames": frames,
            "num_frames": len(frames),
            "grasp": any(grasps) or (None if None in grasps else False),
            "success": episode.positive,
            "done": frames[-1]["done"],
            "label": int(episode.positive),
            "metadata": {**episode.meta, _OURS: ours},
        }
        return pickle.dumps(content)

    def labels(self, episode: Episode) -> NDArray[np.int8]:
        labels: NDArray[np.int8] = episode.labels[episode.frame_index > 0]
        return labels

    def read(self, file: Path) -> Episode:
        return EpisodePklSource(file, [(file.stem, file)])[0]


def _frame(episode: Episode, row: int, main: str) -> dict[str, Any]:
    """Return the dict of a frame and the step that led to it."""
    step = int(episode.frame_index[row]) - 1
    action = at(episode.actions, step)
    reward = at(episode.rewards, step)
    terminated, truncated = (any_within(ends, step, step + 1) for ends in (episode.terminated, episode.truncated))

    # `grasp` has its own key, the other flags are in `info`.
    flags = {name: flag(marks[row]) for name, marks in episode.flags.items()}
    return {
        "obs": observation(episode, row, main),
        "action": None if action is None else np.array(action),
        "reward": None if reward is None else float(reward),
        "terminated": terminated,
        "truncated": truncated,
        "done": None if terminated is None and truncated is None else bool(terminated) or bool(truncated),
        "grasp": flags.pop(_FLAG, None),
        "success": flag(episode.labels[row]),
        "info": flags,
    }


class EpisodePklFormat(EpisodeFormat):
    """Pickled episodes with every frame but that of the reset."""

    name = "episode_pkl"
    about = "success/ and failure/ with episode_000000.pkl (RLinf's ResNet guide)"
    holds = frozenset(FIELDS)
    writer = EpisodePklWriter

    @classmethod
    def matches(cls, path: Path) -> bool:
        return bool(_files(path)) or is_pickle_of(path, "dict", "frames", "obs")

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        return EpisodePklSource(path, with_ids(_files(path) if path.is_dir() else [path], prefixed=path.is_dir()))

    @classmethod
    def misfit(cls, episode: Episode) -> str | None:
        only_reset = episode.frame_index[-1] == 0
        return "its only frame is that of the reset, which the layout does not hold" if only_reset else None

    @classmethod
    def lost(cls, episode: Episode) -> list[str]:
        lost = []
        reset = episode.frame_index[0] == 0
        if reset:
            lost.append("frames: that of the reset")
        if len(episode) - reset < episode.length:
            recorded = [name for name in _STEPWISE if getattr(episode, name) is not None]
            lost += [f"{name}: of steps without a frame" for name in recorded]
        elif episode.state is not None and len(episode.state) > episode.length:
            lost.append("state: that of the reset")
        return lost


def _files(path: Path) -> list[Path]:
    """Return the pickles of both class folders in natural order."""
    return sorted((file for name in CLASSES for file in files_in(path / name, ".pkl")), key=natural)
