"""Labelled images without episodes, as RLinf's processing writes them; read only.

    train.pt, val.pt      torch.save of {"images": list of (H, W, C), "labels": list of int, "metadata": dict}

Which images come from one episode is not recorded, so each counts as an episode of one frame. To split such data anew
would put near-duplicates on both sides; the two files are a split already, which `meta["split"]` names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from plaudit.episodes.episode import UNKNOWN, Episode, EpisodeSource, Frames
from plaudit.episodes.formats import values
from plaudit.episodes.formats.base import EpisodeFormat, LoadedSource, parsing
from plaudit.episodes.formats.peek import first_words
from plaudit.episodes.formats.pixels import to_frames
from plaudit.episodes.formats.unpickle import load_torch
from plaudit.errors import DataError

CAMERA = values.MAIN_CAMERA
FILES = ("train.pt", "val.pt", "test.pt")


class RlinfPtSource(LoadedSource):
    """The images of a `.pt` file, or of all in a folder, which are read as a whole when the first is asked for."""

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
    content = load_torch(file)
    with parsing(file, RlinfPtSource.format):
        images = values.items(values.entry(content, "images"), "images")
        labels = values.labels(values.entry(content, "labels"), "labels")
        if len(images) != len(labels):
            raise ValueError(f"it has {len(images)} images, but {len(labels)} labels")
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
    """(1, H, W, 3) each. The sizes may differ; whether floats go to 1 or to 255 is decided for all of them."""
    groups: dict[str, list[int]] = {}
    for i, image in enumerate(images):
        groups.setdefault(f"{CAMERA} {getattr(image, 'shape', '')}", []).append(i)
    found = to_frames({name: [images[i] for i in members] for name, members in groups.items()})
    frames = {i: found[name][k : k + 1] for name, members in groups.items() for k, i in enumerate(members)}
    return [frames[i] for i in range(len(images))]


class RlinfPtFormat(EpisodeFormat):
    """Images and labels."""

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
    return [path / name for name in FILES if (path / name).is_file()]
