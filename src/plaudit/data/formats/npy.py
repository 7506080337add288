"""Trajectories as `.npy` files, in the layout of RLinf's workflow guides.

    DIR/positive/000000.npy      np.save of {"images": {camera: float32 (T, C, H, W)}, "labels": float32 (T,)}
    DIR/negative/000000.npy      each folder has its own sequence of numbers

Images are written in 0 to 1, and read in 0 to 1 or 0 to 255.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import UNKNOWN, Episode, EpisodeSource
from plaudit.data.formats.base import EpisodeFormat, FileSource
from plaudit.data.formats.numbered_files import NumberedWriter, claim, files_in, with_ids
from plaudit.data.formats.parsing import entry, kind, labels, to_frames, to_unit_floats
from plaudit.data.formats.safe_pickle import load_npy
from plaudit.errors import ConfigError, DataError

CLASSES = {"positive": True, "negative": False}


class NpySource(FileSource):
    """Trajectories in `positive/` and `negative/`, in one folder, or in one file."""

    format = "npy"

    def parse(self, file: Path, id: str) -> Episode:
        content = load_npy(file)
        images = entry(content, "images")
        marks = labels(entry(content, "labels"), "labels")
        if not isinstance(images, dict):
            raise ValueError(f"'images' should be a dict of cameras, not {kind(images)}")

        count = len(marks)
        return Episode(
            id=id,
            frames=to_frames(images, "CHW"),
            labels=marks,
            frame_index=np.arange(count, dtype=np.int32),
            length=max(count - 1, 0),
            success=CLASSES.get(file.parent.name),
        )


class NpyPair(NpySource):
    """Trajectories of two folders at independent locations.

    Args:
        positive_dir: Folder of the successful trajectories.
        negative_dir: Folder of the failed trajectories.
    """

    def __init__(self, positive_dir: Path, negative_dir: Path) -> None:
        files: list[tuple[str, Path]] = []
        for name, folder in zip(CLASSES, (positive_dir, negative_dir), strict=True):
            trajectories = files_in(folder, ".npy")
            if not trajectories:
                raise DataError(f"there are no .npy trajectories in '{folder}', which is the {name}_dir.")
            files += [(f"{name}-{file.stem}", file) for file in trajectories]
        super().__init__(positive_dir, files)

    def parse(self, file: Path, id: str) -> Episode:
        return replace(super().parse(file, id), success=id.startswith("positive-"))


class NpyWriter(NumberedWriter):
    """Writer of trajectories.

    Args:
        path: Folder that contains `positive/` and `negative/`.
        positive_dir: Any other folder for successes, instead of `positive/`.
        negative_dir: Any other folder for failures, instead of `negative/`.
    """

    pattern = re.compile(r"(\d{6,})\.npy")
    one_counter = False

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        positive_dir: str | Path | None = None,
        negative_dir: str | Path | None = None,
    ) -> None:
        if path is None and (positive_dir is None or negative_dir is None):
            raise ConfigError("the npy format needs a folder, or both positive_dir and negative_dir.")
        if path is not None:
            claim(Path(path), lambda name: name in CLASSES)

        root = Path(path or "")
        positive = Path(positive_dir or root / "positive")
        negative = Path(negative_dir or root / "negative")
        if positive.resolve() == negative.resolve():
            raise ConfigError(f"positive_dir and negative_dir are the same folder, '{positive}'.")
        super().__init__({True: positive, False: negative})

    def name(self, number: int, positive: bool) -> str:
        return f"{number:06d}.npy"

    def encode(self, episode: Episode, number: int) -> bytes:
        reason = NpyFormat.misfit(episode)
        if reason:
            raise DataError(f"episode '{episode.id}': {reason}.")

        # The layout has no value for an unknown label, so such frames are left out.
        labelled = episode.labels != UNKNOWN
        images = {
            camera: to_unit_floats(np.ascontiguousarray(pixels[labelled].transpose(0, 3, 1, 2)))
            for camera, pixels in episode.frames.items()
        }

        file = io.BytesIO()
        content = {"images": images, "labels": episode.labels[labelled].astype(np.float32)}
        np.save(file, np.array(content, object), allow_pickle=True)
        return file.getvalue()

    def labels(self, episode: Episode) -> NDArray[np.int8]:
        known: NDArray[np.int8] = episode.labels[episode.labels != UNKNOWN]
        return known

    def read(self, file: Path) -> Episode:
        return NpySource(file, [(file.stem, file)])[0]


class NpyFormat(EpisodeFormat):
    """Trajectories of frames and labels, without any other fields."""

    name = "npy"
    about = "positive/ and negative/ with numbered .npy trajectories (RLinf's workflow guides)"
    writer = NpyWriter

    @classmethod
    def matches(cls, path: Path) -> bool:
        return (path.is_file() and path.suffix == ".npy") or bool(_files(path))

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        prefixed = any((path / name).is_dir() for name in CLASSES)
        return NpySource(path, with_ids(_files(path) if path.is_dir() else [path], prefixed))

    @classmethod
    def misfit(cls, episode: Episode) -> str | None:
        return (
            "no frame has a label, and the layout holds only frames that have one" if not _labelled(episode) else None
        )

    @classmethod
    def lost(cls, episode: Episode) -> list[str]:
        lost = super().lost(episode)
        if _labelled(episode) < len(episode):
            lost.append("frames without a label")
        if _labelled(episode) != episode.length + 1:
            lost.append("frame_index and length: which instants the frames are")
        if episode.success is None:
            lost.append("success: an episode without one counts as a failure")
        return lost


def _labelled(episode: Episode) -> int:
    """Return the number of frames with a known label."""
    return int((episode.labels != UNKNOWN).sum())


def _files(path: Path) -> list[Path]:
    """Return the trajectories of the class folders and of the folder itself."""
    return [file for folder in (*(path / name for name in CLASSES), path) for file in files_in(folder, ".npy")]
