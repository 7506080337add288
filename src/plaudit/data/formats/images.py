"""Read and write folders of labelled images, one per episode or one per class."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Counts, Episode, EpisodeSource, Frames
from plaudit.data.formats.base import EpisodeFormat, FileSource
from plaudit.data.formats.numbered_files import claim, natural, new_ones, staged
from plaudit.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg")


def is_picture_file(path: Path) -> bool:
    """Return whether a file has the name of a finished image.

    Hidden files are images that are still being written.
    """
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def read_pictures(files: list[Path]) -> Frames:
    """Return the images of some files as uint8 (n, H, W, 3).

    Raises:
        DataError: A file is damaged or differs in size from the first; the message names it.
    """
    images = [_read(file) for file in files]
    for file, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            height, width = image.shape[:2]
            first_height, first_width = images[0].shape[:2]
            raise DataError(
                f"{file}: is {width} x {height} pixels, but {files[0].name} of the same episode and camera is "
                f"{first_width} x {first_height}."
            )
    return np.stack(images)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an image (H, W, 3) as PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _read(file: Path) -> NDArray[np.uint8]:
    """Return the pixels of an image file as RGB, after a check of its integrity."""
    try:
        content = file.read_bytes()

        # Checks every checksum up to the last chunk; decoding the pixels alone would not notice a missing end.
        with Image.open(io.BytesIO(content)) as image:
            image.verify()

        # An image cannot be decoded after `verify`, so open it again.
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(image.convert("RGB"))
    except UnidentifiedImageError:
        raise DataError(f"{file}: is not a picture. Delete it, or restore it.") from None
    except Exception as error:
        # Decoders report damage in many ways: OSError, SyntaxError, ValueError, struct.error, zlib.error …
        raise DataError(f"{file}: is damaged ({error}). Delete it, or restore it.") from None


CLASSES = {"success": SUCCESS, "positive": SUCCESS, "failure": FAILURE, "fail": FAILURE, "negative": FAILURE}
CAMERA = "camera"
_FRAME = re.compile(r"(.*?)_?frame_?(\d+)")

Pictures = dict[int, tuple[int, Path]]
"""Maps an instant to the label and the file of its image."""


class ClassFolders(FileSource):
    """Episodes from images whose class folder is their label."""

    format = "images"

    def __init__(self, path: Path) -> None:
        self._images = _group(path)
        super().__init__(path, [(id, path) for id in self._images], *_notes(self._images))

    def parse(self, file: Path, id: str) -> Episode:
        instants = sorted(self._images[id])
        labels, files = zip(*(self._images[id][instant] for instant in instants), strict=True)
        return Episode(
            id=id,
            frames={CAMERA: read_pictures(list(files))},
            labels=np.array(labels, np.int8),
            frame_index=np.array(instants, np.int32),
            length=instants[-1],
            success=SUCCESS in labels,
        )


def class_folders(path: Path) -> list[Path]:
    """Return the folders in `path` that are named like a class and contain images."""
    folders = [path / name for name in CLASSES if (path / name).is_dir()]
    return [folder for folder in folders if next(filter(is_picture_file, folder.rglob("*")), None)]


def _group(path: Path) -> dict[str, Pictures]:
    """Group the images of the class folders by episode id."""
    episodes: dict[str, Pictures] = {}
    for folder in class_folders(path):
        for file in sorted(filter(is_picture_file, folder.rglob("*")), key=natural):
            id, instant = _place(file, folder)
            images = episodes.setdefault(id, {})
            if instant in images:
                raise DataError(f"{file}: is frame {instant} of episode '{id}', and so is {images[instant][1]}.")
            images[instant] = CLASSES[folder.name], file
    return dict(sorted(episodes.items()))


def _place(file: Path, folder: Path) -> tuple[str, int]:
    """Return the episode id and the instant that the path of an image encodes."""
    subfolder = "-".join(file.relative_to(folder).parts[:-1])

    # Names such as 'a_frame012.png', or 'frame012.png' in a subfolder.
    frame = _FRAME.fullmatch(file.stem)
    if frame is not None and (subfolder or frame[1]):
        return "-".join(filter(None, (subfolder, frame[1]))), int(frame[2])

    # Plain numbers in a subfolder per episode.
    if subfolder and file.stem.isdigit():
        return subfolder, int(file.stem)

    # Any other name: the image is an episode of its own.
    return "-".join(filter(None, (folder.name, subfolder, file.stem))), 0


def _notes(episodes: Mapping[str, Pictures]) -> list[str]:
    """Return a warning if some episodes consist of a single image."""
    single = sum(len(images) == 1 for images in episodes.values())
    if not single:
        return []
    return [
        f"{single} of {len(episodes)} episodes are a single picture: where the names do not say which pictures come "
        "from one episode (as in 'a_frame012.png'), a split could put near-duplicates on both sides"
    ]


LABELS = "labels.csv"
ABOUT = "episode.json"
WORDS = {"1": SUCCESS, "0": FAILURE, "-1": UNKNOWN, "success": SUCCESS, "failure": FAILURE, "unknown": UNKNOWN}


class ImagesSource(FileSource):
    """Episodes with a folder of images and a table of labels each."""

    format = "images"

    def parse(self, file: Path, id: str) -> Episode:
        instants, columns = _read_table(file / LABELS)
        about = _read_about(file / ABOUT)
        cameras = [folder for folder in sorted(file.iterdir()) if folder.is_dir()]
        if not cameras:
            raise DataError(f"{file}: has no folder of pictures.")

        return Episode(
            id=id,
            frames={camera.name: read_pictures(_image_files(camera, instants)) for camera in cameras},
            labels=columns.pop("label"),
            frame_index=np.array(instants, np.int32),
            length=int(about.get("length", instants[-1])),
            success=about.get("success"),
            label_source=about.get("label_source", "unknown"),
            flags=columns,
            meta=dict(about.get("meta", {})),
        )


def _image_files(camera: Path, instants: Sequence[int]) -> list[Path]:
    """Return the image file of each instant.

    Raises:
        DataError: An instant has no image, or an image has no label.
    """
    files: dict[int, Path] = {}
    for file in filter(is_picture_file, camera.iterdir()):
        if not file.stem.isdigit():
            raise DataError(f"{file}: a picture's name must be the number of its frame, as 000012.png.")
        files[int(file.stem)] = file

    # Images and labels must match one to one.
    missing = sorted(set(instants) - set(files))
    extra = sorted(set(files) - set(instants))
    if missing:
        raise DataError(f"{camera}: has no picture of frame {missing[0]}, but {LABELS} has a label for it.")
    if extra:
        raise DataError(f"{files[extra[0]]}: has no label in {LABELS}.")
    return [files[instant] for instant in instants]


def _read_table(file: Path) -> tuple[list[int], dict[str, NDArray[np.int8]]]:
    """Return the instants, and the columns `label` and those of the flags by name."""
    # The encoding accepts the byte order mark that spreadsheet programs write.
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

    # The lines may be in any order; episodes are in order of time.
    rows.sort(key=lambda row: int(row[0]))
    columns = {name: np.array([WORDS[row[i]] for row in rows], np.int8) for i, name in enumerate(header) if i}
    return [int(row[0]) for row in rows], columns


def _read_about(file: Path) -> dict[str, Any]:
    """Return the metadata of an episode, or an empty dict if it has no such file."""
    try:
        about = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read: {error}.") from None
    if not isinstance(about, dict):
        raise DataError(f"{file}: must be a dict, not {type(about).__name__}.")
    return about


class ImagesWriter:
    """Writer that creates one folder per episode, atomically.

    Args:
        path: Folder that contains the folders of the episodes.
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
        """Add one episode to the counts."""
        counts = self._counts
        positive = bool(success) or bool((labels == SUCCESS).any())
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
        """Numbers of episodes and frames in the folder."""
        return self._counts

    def __contains__(self, item: object) -> bool:
        id = item.id if isinstance(item, Episode) else item
        return isinstance(id, str) and (self.path / id).exists()

    def positives(self, beginning: str) -> int:
        """Return the number of positive episodes whose ids start with `beginning`."""
        return sum(id.startswith(beginning) for id in self._positive)

    def add(self, episodes: Sequence[Episode]) -> int:
        """Write the episodes with new ids and return how many there were.

        All of them are synced to disk when this returns.
        """
        new = new_ones([episode.check() for episode in episodes], self)
        for episode in new:
            self._write(episode)
            self._count(episode.id, episode.labels, episode.success)
        return len(new)

    def _write(self, episode: Episode) -> None:
        with staged(self.path / episode.id) as unfinished:
            for name, content in _contents(episode):
                (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
                (unfinished / name).write_bytes(content)


def _contents(episode: Episode) -> Iterator[tuple[str, bytes]]:
    """Yield the relative path and the content of each file of an episode."""
    reason = ImagesFormat.misfit(episode)
    if reason:
        raise DataError(f"episode '{episode.id}': {reason}.")

    # Images, one folder per camera.
    for camera, frames in episode.frames.items():
        for instant, pixels in zip(episode.frame_index, frames, strict=True):
            yield f"{camera}/{instant:06d}.png", encode_png(pixels)

    # Labels and flags, one line per frame.
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(["frame", "label", *episode.flags])
    rows.writerows(zip(episode.frame_index, episode.labels, *episode.flags.values(), strict=True))
    yield LABELS, table.getvalue().encode()

    # Properties of the episode as a whole.
    about = {"length": episode.length, "success": episode.success, "label_source": episode.label_source}
    yield ABOUT, (json.dumps({**about, "meta": dict(episode.meta)}, indent=2) + "\n").encode()


class ImagesFormat(EpisodeFormat):
    """Folders of images with a table of labels, or one folder per class."""

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
        invalid = [name for name in episode.frames if not name or name.startswith(".") or set(name) & set("/\\\0")]
        if invalid:
            return f"camera {invalid[0]!r} cannot be the name of a folder"
        return "a flag cannot be called 'frame' or 'label'" if {"frame", "label"} & episode.flags.keys() else None


def _folders(path: Path) -> list[Path]:
    """Return the visible subfolders in natural order."""
    return sorted((f for f in path.iterdir() if f.is_dir() and not f.name.startswith(".")), key=natural)
