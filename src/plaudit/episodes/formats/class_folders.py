"""Pictures sorted into a folder for each class; read only.

DIR/success/anything.png              an episode of one frame
DIR/success/<episode>_frame012.png    a frame of an episode, whose others may be in either folder
DIR/success/<episode>/012.png         the same
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from plaudit.episodes.episode import FAILURE, SUCCESS, Episode
from plaudit.episodes.formats.base import FileSource
from plaudit.episodes.formats.numbered import natural
from plaudit.episodes.formats.pictures import is_picture_file, read_pictures
from plaudit.errors import DataError

CLASSES = {"success": SUCCESS, "positive": SUCCESS, "failure": FAILURE, "fail": FAILURE, "negative": FAILURE}
CAMERA = "camera"
_FRAME = re.compile(r"(.*?)_?frame_?(\d+)")

Pictures = dict[int, tuple[int, Path]]
"""Instant to label and file."""


class ClassFolders(FileSource):
    """Episodes from pictures of which the folder is the label."""

    format = "images"

    def __init__(self, path: Path) -> None:
        self._pictures = _group(path)
        super().__init__(path, [(id, path) for id in self._pictures], *_notes(self._pictures))

    def parse(self, file: Path, id: str) -> Episode:
        instants = sorted(self._pictures[id])
        labels, files = zip(*(self._pictures[id][instant] for instant in instants), strict=True)
        return Episode(
            id=id,
            frames={CAMERA: read_pictures(list(files))},
            labels=np.array(labels, np.int8),
            frame_index=np.array(instants, np.int32),
            length=instants[-1],
            success=SUCCESS in labels,
        )


def class_folders(path: Path) -> list[Path]:
    """The folders in `path` that are classes and hold pictures."""
    folders = [path / name for name in CLASSES if (path / name).is_dir()]
    return [folder for folder in folders if next(filter(is_picture_file, folder.rglob("*")), None)]


def _group(path: Path) -> dict[str, Pictures]:
    """Id to the pictures of each episode."""
    episodes: dict[str, Pictures] = {}
    for folder in class_folders(path):
        for file in sorted(filter(is_picture_file, folder.rglob("*")), key=natural):
            id, instant = _place(file, folder)
            there = episodes.setdefault(id, {})
            if instant in there:
                raise DataError(f"{file}: is frame {instant} of episode '{id}', and so is {there[instant][1]}.")
            there[instant] = CLASSES[folder.name], file
    return dict(sorted(episodes.items()))


def _place(file: Path, folder: Path) -> tuple[str, int]:
    """The episode and the instant that a picture's name says it is."""
    within = "-".join(file.relative_to(folder).parts[:-1])
    frame = _FRAME.fullmatch(file.stem)
    if frame is not None and (within or frame[1]):
        return "-".join(filter(None, (within, frame[1]))), int(frame[2])
    if within and file.stem.isdigit():
        return within, int(file.stem)
    return "-".join(filter(None, (folder.name, within, file.stem))), 0


def _notes(episodes: Mapping[str, Pictures]) -> list[str]:
    alone = sum(len(pictures) == 1 for pictures in episodes.values())
    if not alone:
        return []
    return [
        f"{alone} of {len(episodes)} episodes are a single picture: where the names do not say which pictures come "
        "from one episode (as in 'a_frame012.png'), a split could put near-duplicates on both sides"
    ]
