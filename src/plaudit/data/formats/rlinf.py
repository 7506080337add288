"""Read RLinf's episode pickles and its processed `.pt` files (read only)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.episode import SUCCESS, UNKNOWN, Episode, EpisodeSource, Frames
from plaudit.data.formats import parsing as values
from plaudit.data.formats.base import EpisodeFormat, FileSource, LoadedSource, parsing
from plaudit.data.formats.numbered_files import files_in, with_ids
from plaudit.data.formats.parsing import to_frames
from plaudit.data.formats.realworld import KEYS, about, has_reset, steps
from plaudit.data.formats.rlinf_observations import whole_episode
from plaudit.data.formats.safe_pickle import first_words, load_pickle, load_torch
from plaudit.errors import DataError

LABELS = ("success", "is_obj_placed", "success_frame", "episode.success_once")
"""Keys of a frame's label, in order of preference; the last one means "now or earlier"."""


class RlinfSource(FileSource):
    """Episodes of a folder, or of one file."""

    format = "rlinf"

    def parse(self, file: Path, id: str) -> Episode:
        content = load_pickle(file)
        parts = {key: values.items(values.entry(content, key), key) for key in KEYS}
        count = len(parts["actions"])

        # The observations include the reset; the other lists may or may not have an entry for it.
        if len(parts["observations"]) == count:
            raise ValueError(
                "it has as many observations as actions, like the processed files of RLinf's real-world guide; read it "
                "as 'realworld'"
            )
        for key in KEYS:
            expected = {"observations": (count + 1,), "actions": (count,)}.get(key, (count, count + 1))
            if len(parts[key]) not in expected:
                raise ValueError(f"it has {count} actions, but {len(parts[key])} {key}")

        # Drop or add the entry of the reset, so that infos match observations and the rest match actions.
        infos = [{}] * (count + 1 - len(parts["infos"])) + parts["infos"]
        step_parts = {key: parts[key][-count:] if count else [] for key in KEYS}

        return whole_episode(
            id,
            [_views(observation) for observation in parts["observations"]],
            [self._label(info, f"infos[{t}]") for t, info in enumerate(infos)],
            "observations",
            success=values.label(values.entry(content, "success"), "success") == SUCCESS,
            **steps(step_parts),
            meta=about(content),
        )

    def _label(self, info: Any, what: str) -> int:
        """Return the label in an info, or `UNKNOWN` if it has none."""
        for name in LABELS:
            value = _find(info, name)
            if value is not None:
                if name == LABELS[-1]:
                    self.notes.add(f"labels come from '{name}', which stays true after a success that was lost again")
                return values.label(value, f"{what} '{name}'")
        return UNKNOWN


def _find(info: Any, name: str) -> Any:
    """Return a value of a dict or `None`; a dot in the name leads into a nested dict."""
    if not isinstance(info, Mapping):
        raise ValueError(f"an info should be a dict, not {values.kind(info)}")
    outer, _, inner = name.partition(".")
    if not inner or name in info:
        return info.get(name)
    nested = info.get(outer)
    return nested.get(inner) if isinstance(nested, Mapping) else None


def _views(observation: Any) -> Any:
    """Split images of several views (k, H, W, C) in an observation into one entry each."""
    if not isinstance(observation, Mapping):
        return observation
    split: dict[str, Any] = {}
    for key, value in observation.items():
        if getattr(value, "ndim", 0) == 4 and value.shape[0] > 1:
            split |= {f"{key}_{i}": view for i, view in enumerate(value)}
        else:
            split[key] = value
    return split


class RlinfFormat(EpisodeFormat):
    """Pickled episodes: observations including the reset, actions and their outcomes."""

    name = "rlinf"
    about = "rank_0_env_0_episode_0_step_9_success.pkl, as RLinf writes them today (read only)"

    @classmethod
    def matches(cls, path: Path) -> bool:
        return has_reset(path) is True

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        return RlinfSource(path, with_ids([path] if path.is_file() else files_in(path, ".pkl"), prefixed=False))


CAMERA = values.MAIN_CAMERA
FILES = ("train.pt", "val.pt", "test.pt")


class RlinfPtSource(LoadedSource):
    """Images of a `.pt` file, or of all `.pt` files in a folder, as episodes of one frame.

    The first access reads all of the files.
    """

    format = "rlinf_pt"

    def load(self) -> list[Episode]:
        files = _files(self.path) if self.path.is_dir() else [self.path]
        self._notes.add(
            "these files do not say which images come from one episode: each counts as one, and a new split could not "
            "keep near-duplicates apart; keep to theirs, meta['split']"
        )
        episodes = [episode.check(file) for file in files for episode in _read(file)]
        if not episodes:
            raise DataError(f"{self.path}: holds no images.")
        return episodes


def _read(file: Path) -> list[Episode]:
    """Return each image of a `.pt` file as an episode of one frame."""
    content = load_torch(file)
    with parsing(file, RlinfPtSource.format):
        images = values.items(values.entry(content, "images"), "images")
        labels = values.labels(values.entry(content, "labels"), "labels")
        if len(images) != len(labels):
            raise ValueError(f"it has {len(images)} images, but {len(labels)} labels")

        # All images are converted together, since the range of the floats is that of the file.
        frames = _frames(images)
        return [
            Episode(
                id=f"{file.stem}-{i:06d}",
                frames={CAMERA: frames[i]},
                labels=labels[i : i + 1],
                frame_index=np.zeros(1, np.int32),
                length=0,
                success=None if labels[i] == UNKNOWN else bool(labels[i]),
                meta={"split": file.stem},
            )
            for i in range(len(images))
        ]


def _frames(images: list[Any]) -> list[Frames]:
    """Convert images to frames of shape (1, H, W, 3) each.

    The sizes may differ. Whether floats are in 0 to 1 or 0 to 255 is decided for all images together.
    """
    # Images of equal shape are converted as one camera.
    groups: dict[str, list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault(f"{CAMERA} {getattr(image, 'shape', '')}", []).append(i)

    # Restore the original order.
    batches = to_frames({name: [images[i] for i in members] for name, members in groups.items()})
    frames = {i: batches[name][k : k + 1] for name, members in groups.items() for k, i in enumerate(members)}
    return [frames[i] for i in range(len(images))]


class RlinfPtFormat(EpisodeFormat):
    """`.pt` files of single images and labels."""

    name = "rlinf_pt"
    about = "train.pt and val.pt with images and labels, as RLinf processes them (read only)"

    @classmethod
    def matches(cls, path: Path) -> bool:
        if path.is_dir():
            return bool(_files(path))
        return path.suffix == ".pt" and first_words(path)[1][:1] == ["images"]

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        return RlinfPtSource(path)


def _files(path: Path) -> list[Path]:
    """Return the `.pt` files that exist in a folder."""
    return [path / name for name in FILES if (path / name).is_file()]
