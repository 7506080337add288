"""Plain folders of pictures with labels: what a person can make by hand, and look through.

    DIR/<episode>/labels.csv              frame,label and a column for each flag; 1 success, 0 failure, -1 unknown
    DIR/<episode>/<camera>/000012.png     the frame of instant 12
    DIR/<episode>/episode.json            optional: length, success, label_source, meta

Folders for each class (`class_folders`) are read too.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.episodes.episode import FAILURE, SUCCESS, UNKNOWN, Counts, Episode, EpisodeSource
from plaudit.episodes.formats.base import EpisodeFormat, FileSource
from plaudit.episodes.formats.class_folders import ClassFolders, class_folders
from plaudit.episodes.formats.numbered import claim, natural, new_ones
from plaudit.episodes.formats.pictures import encode_png, is_picture_file, read_pictures
from plaudit.episodes.formats.staging import staged
from plaudit.errors import DataError

LABELS, ABOUT = "labels.csv", "episode.json"
WORDS = {"1": SUCCESS, "0": FAILURE, "-1": UNKNOWN, "success": SUCCESS, "failure": FAILURE, "unknown": UNKNOWN}


class ImagesSource(FileSource):
    """A folder of pictures for each episode."""

    format = "images"

    def parse(self, file: Path, id: str) -> Episode:
        instants, columns = _read_table(file / LABELS)
        about = _read_about(file / ABOUT)
        cameras = [folder for folder in sorted(file.iterdir()) if folder.is_dir()]
        if not cameras:
            raise DataError(f"{file}: has no folder of pictures.")
        return Episode(
            id=id,
            frames={camera.name: read_pictures(_pictures(camera, instants)) for camera in cameras},
            labels=columns.pop("label"),
            frame_index=np.array(instants, np.int32),
            length=int(about.get("length", instants[-1])),
            success=about.get("success"),
            label_source=about.get("label_source", "unknown"),
            flags=columns,
            meta=dict(about.get("meta", {})),
        )


def _pictures(camera: Path, instants: Sequence[int]) -> list[Path]:
    """The picture of each instant; a `DataError` where there are fewer or more of them."""
    files: dict[int, Path] = {}
    for file in filter(is_picture_file, camera.iterdir()):
        if not file.stem.isdigit():
            raise DataError(f"{file}: a picture's name must be the number of its frame, as 000012.png.")
        files[int(file.stem)] = file
    missing, extra = sorted(set(instants) - set(files)), sorted(set(files) - set(instants))
    if missing:
        raise DataError(f"{camera}: has no picture of frame {missing[0]}, but {LABELS} has a label for it.")
    if extra:
        raise DataError(f"{files[extra[0]]}: has no label in {LABELS}.")
    return [files[instant] for instant in instants]


def _read_table(file: Path) -> tuple[list[int], dict[str, NDArray[np.int8]]]:
    """The frames, and the columns `label` and those of the flags."""
    try:
        rows = list(csv.reader(io.StringIO(file.read_text(encoding="utf-8-sig")), strict=True))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    header, rows = (rows[0], [row for row in rows[1:] if row]) if rows else ([], [])
    if header[:2] != ["frame", "label"] or len(set(header)) != len(header):
        raise DataError(f"{file}: its first line must be 'frame,label' and the names of flags, not {header}.")
    if not rows:
        raise DataError(f"{file}: has no labels.")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header) or not row[0].isdecimal() or not all(word in WORDS for word in row[1:]):
            raise DataError(f"{file}: line {number} must be a frame, then 1, 0 or -1 for {header[1:]}, not {row}.")
    rows.sort(key=lambda row: int(row[0]))
    columns = {name: np.array([WORDS[row[i]] for row in rows], np.int8) for i, name in enumerate(header) if i}
    return [int(row[0]) for row in rows], columns


def _read_about(file: Path) -> dict[str, Any]:
    try:
        about = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read: {error}.") from None
    if not isinstance(about, dict):
        raise DataError(f"{file}: must be a dict, not {type(about).__name__}.")
    return about


class ImagesWriter:
    """Writes a folder for each episode, which is there as a whole or not at all.

    Args:
        path: The folder for them.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        claim(self.path, lambda name: (self.path / name / LABELS).is_file())
        self._counts = Counts()
        self._positive: set[str] = set()
        for folder in _folders(self.path):
            self._count(
                folder.name, _read_table(folder / LABELS)[1]["label"], _read_about(folder / ABOUT).get("success")
            )

    def _count(self, id: str, labels: NDArray[np.int8], success: bool | None) -> None:
        positive, counts = bool(success) or bool((labels == SUCCESS).any()), self._counts
        if positive:
            self._positive.add(id)
        self._counts = Counts(
            counts.positive + positive,
            counts.negative + (not positive),
            counts.frames + len(labels),
            counts.success_frames + int((labels == SUCCESS).sum()),
            counts.unknown_frames + int((labels == UNKNOWN).sum()),
        )

    @property
    def counts(self) -> Counts:
        """What is there."""
        return self._counts

    def __contains__(self, item: object) -> bool:
        id = item.id if isinstance(item, Episode) else item
        return isinstance(id, str) and (self.path / id).exists()

    def positives(self, beginning: str) -> int:
        """How many positive episodes are there whose ids begin so."""
        return sum(id.startswith(beginning) for id in self._positive)

    def add(self, episodes: Sequence[Episode]) -> int:
        """Writes those whose id is not there yet; all are on the disk when this returns."""
        new = new_ones([episode.check() for episode in episodes], self)
        for episode in new:
            self._write(episode)
            self._count(episode.id, episode.labels, episode.success)
        return len(new)

    def _write(self, episode: Episode) -> None:
        with staged(self.path / episode.id) as unfinished:
            for place, content in _contents(episode):
                (unfinished / place).parent.mkdir(parents=True, exist_ok=True)
                (unfinished / place).write_bytes(content)


def _contents(episode: Episode) -> Iterator[tuple[str, bytes]]:
    """The files of an episode's folder."""
    why = ImagesFormat.misfit(episode)
    if why:
        raise DataError(f"episode '{episode.id}': {why}.")
    for camera, frames in episode.frames.items():
        for instant, pixels in zip(episode.frame_index, frames, strict=True):
            yield f"{camera}/{instant:06d}.png", encode_png(pixels)
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["frame", "label", *episode.flags])
    rows.writerows(zip(episode.frame_index, episode.labels, *episode.flags.values(), strict=True))
    yield LABELS, table.getvalue().encode()
    about = {"length": episode.length, "success": episode.success, "label_source": episode.label_source}
    yield ABOUT, (json.dumps({**about, "meta": dict(episode.meta)}, indent=2) + "\n").encode()


class ImagesFormat(EpisodeFormat):
    """Pictures and a table of labels."""

    name = "images"
    about = "folders of PNGs: <episode>/<camera>/000012.png with labels.csv, or success/ and failure/"
    holds = frozenset({"label_source", "flags", "meta"})
    writer = ImagesWriter

    @classmethod
    def matches(cls, path: Path) -> bool:
        return path.is_dir() and (bool(class_folders(path)) or any((f / LABELS).is_file() for f in _folders(path)))

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        if class_folders(path) and not any((folder / LABELS).is_file() for folder in _folders(path)):
            return ClassFolders(path)
        return ImagesSource(path, [(folder.name, folder) for folder in _folders(path)])

    @classmethod
    def misfit(cls, episode: Episode) -> str | None:
        unfit = [name for name in episode.frames if not name or name.startswith(".") or set(name) & set("/\\\0")]
        if unfit:
            return f"camera {unfit[0]!r} cannot be the name of a folder"
        return "a flag cannot be called 'frame' or 'label'" if {"frame", "label"} & episode.flags.keys() else None


def _folders(path: Path) -> list[Path]:
    return sorted((f for f in path.iterdir() if f.is_dir() and not f.name.startswith(".")), key=natural)
