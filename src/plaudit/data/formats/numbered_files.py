"""Folders of numbered files, one per episode: listed, read, and written by any number of processes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import SUCCESS, UNKNOWN, Counts, Episode
from plaudit.errors import OutputError

HERE = re.sub("[^A-Za-z0-9]+", "-", socket.gethostname())
"""This machine, as a part of a file's name."""

_UNFINISHED = re.compile(r"\..+\.([A-Za-z0-9-]*)\.(\d+)\.part")


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Gives a temporary name beside `path` for a file or a folder; it becomes `path` only if nothing went wrong.

    All of it is on the disk when this returns. A file takes the place of an older one, a folder only a free one.
    """
    temporary = path.with_name(f".{path.name}.{HERE}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        for part in (*temporary.rglob("*"), temporary):
            _sync(part)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:  # Gone already, unless something went wrong; where it cannot be removed, the first error says why.
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def is_left_over(name: str) -> bool:
    """Whether a name is one of `staged`, of a process of this machine that is no more."""
    found = _UNFINISHED.fullmatch(name)
    return found is not None and found[1] == HERE and not Path(f"/proc/{found[2]}").exists()


def _sync(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    is_folder = path.is_dir()
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        with suppress(OSError) if is_folder else nullcontext():  # Not every file system can sync a folder.
            os.fsync(handle)
    finally:
        os.close(handle)


INDEX = ".plaudit.jsonl"


@dataclass(frozen=True)
class Line:
    """What the index says of a file."""

    file: str
    size: int
    id: str
    positive: bool
    frames: int
    success_frames: int
    unknown_frames: int

    @classmethod
    def of(cls, episode: Episode, labels: NDArray[np.int8], file: Path, size: int) -> Line:
        """The line on an episode, of which the layout keeps these labels."""
        success, unknown = int((labels == SUCCESS).sum()), int((labels == UNKNOWN).sum())
        return cls(file.name, size, episode.id, episode.positive, len(labels), success, unknown)


def natural(path: Path) -> list[str | int]:
    """Sorts 2 before 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def files_in(folder: Path, suffix: str) -> list[Path]:
    """The files of one kind, those that are being written aside."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.suffix == suffix and not p.name.startswith(".")), key=natural)


def with_ids(files: Iterable[Path], prefixed: bool) -> list[tuple[str, Path]]:
    """Files with the ids that their folder's index remembers, else those that their names make.

    Args:
        files: Of one folder or several.
        prefixed: Whether files in different folders may have the same name.
    """
    indices: dict[Path, dict[str, Line]] = {}
    taken: set[str] = set()
    found = []
    for file in files:
        if file.parent not in indices:
            indices[file.parent] = read_index(file.parent)
        line = indices[file.parent].get(file.name)
        id = f"{file.parent.name}-{file.stem}" if prefixed else file.stem
        if line is not None and line.id not in taken:
            id = line.id
        taken.add(id)
        found.append((id, file))
    return found


def read_index(folder: Path) -> dict[str, Line]:
    """File name to what the index says of it, where that agrees with the file that is there."""
    found = {}
    with suppress(OSError), (folder / INDEX).open("rb") as index:
        for text in index:
            with suppress(ValueError, TypeError):  # Torn by a kill, or not ours: as if it were not there.
                line = Line(**json.loads(text))
                found[line.file] = line
    sizes: dict[str, int] = {}
    with suppress(OSError):
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
    return {name: line for name, line in found.items() if sizes.get(name) == line.size}


class NumberedWriter(ABC):
    """Writes episodes to numbered files. Numbers go on after the highest that is there.

    Args:
        folders: Where successes (`True`) and failures (`False`) go; it may be one folder for both.
    """

    pattern: ClassVar[re.Pattern[str]]
    """The names of the files, with their number as the first group."""

    one_counter: ClassVar[bool]
    """Whether the numbers go through all folders, or each folder has its own."""

    def __init__(self, folders: Mapping[bool, Path]) -> None:
        self.folders = dict(folders)
        self._distinct = list(dict.fromkeys(self.folders.values()))
        self._known: set[Path] = set()
        self._ids: dict[str, bool] = {}  # And whether they are positive.
        self._highest = dict.fromkeys(self._distinct, -1)
        self._counts = Counts()
        for folder in self._distinct:
            claim(folder, lambda name: self.pattern.fullmatch(name) is not None)
        with self._locked():
            self._refresh()

    @abstractmethod
    def name(self, number: int, positive: bool) -> str:
        """The name of a file."""

    @abstractmethod
    def encode(self, episode: Episode, number: int) -> bytes:
        """Its content; a `DataError` where the layout cannot hold the episode."""

    @abstractmethod
    def labels(self, episode: Episode) -> NDArray[np.int8]:
        """The labels of the frames that will be there."""

    @abstractmethod
    def read(self, file: Path) -> Episode:
        """The episode in a file that is there already and that the index does not know."""

    @property
    def counts(self) -> Counts:
        """What is there."""
        return self._counts

    def __contains__(self, item: object) -> bool:
        return (item.id if isinstance(item, Episode) else item) in self._ids

    def positives(self, beginning: str) -> int:
        """How many positive episodes are there whose ids begin so."""
        return sum(positive for id, positive in self._ids.items() if id.startswith(beginning))

    def add(self, episodes: Sequence[Episode]) -> int:
        """Writes those whose id is not there yet; all are on the disk when this returns."""
        for episode in episodes:
            episode.check()
        with self._locked():
            self._refresh()
            new = new_ones(episodes, self)
            contents = self._encode_all(new)
            lines = {
                file: Line.of(episode, self.labels(episode), file, len(content))
                for file, (episode, content) in contents.items()
            }
            for folder in self._distinct:
                _append(folder, [line for file, line in lines.items() if file.parent == folder])
            for file, (_, content) in contents.items():
                with staged(file) as temporary:
                    temporary.write_bytes(content)
                self._note(file, lines[file])
        return len(new)

    def _encode_all(self, episodes: Iterable[Episode]) -> dict[Path, tuple[Episode, bytes]]:
        """The file of each episode, and its content."""
        highest, contents = dict(self._highest), {}
        for episode in episodes:
            folder = self.folders[episode.positive]
            number = 1 + (max(highest.values()) if self.one_counter else highest[folder])
            highest[folder] = number
            contents[folder / self.name(number, episode.positive)] = episode, self.encode(episode, number)
        return contents

    def _refresh(self) -> None:
        """Takes in what was not known: at the start all that is there, later what other processes have added."""
        for folder in self._distinct:
            names = [entry.name for entry in os.scandir(folder) if self.pattern.fullmatch(entry.name)]
            new = [folder / name for name in names if folder / name not in self._known]
            index = read_index(folder) if new else {}
            for id, file in with_ids(new, prefixed=len(self._distinct) > 1):
                self._note(file, index.get(file.name) or self._examine(file, id))

    def _examine(self, file: Path, id: str) -> Line:
        episode = replace(self.read(file), id=id)
        return Line.of(episode, episode.labels, file, file.stat().st_size)

    def _note(self, file: Path, line: Line) -> None:
        number = self.pattern.fullmatch(file.name)
        assert number is not None
        self._highest[file.parent] = max(self._highest[file.parent], int(number[1]))
        self._known.add(file)
        self._ids[line.id] = line.positive
        self._counts = Counts(
            self._counts.positive + line.positive,
            self._counts.negative + (not line.positive),
            self._counts.frames + line.frames,
            self._counts.success_frames + line.success_frames,
            self._counts.unknown_frames + line.unknown_frames,
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one process at a time chooses numbers and writes."""
        place = self.folders[False] / INDEX
        try:
            handle = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(f"cannot write {place}: {error.strerror}.") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def new_ones(episodes: Iterable[Episode], there: Container[object]) -> list[Episode]:
    """The episodes that are not there yet; of several with one id the first."""
    new: dict[str, Episode] = {}
    for episode in episodes:
        if episode not in there:
            new.setdefault(episode.id, episode)
    return list(new.values())


def claim(folder: Path, belongs: Callable[[str], bool]) -> None:
    """Makes a folder, or takes one over that holds nothing else.

    What a process of this machine that is no more has left there half-written is removed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(folder):
            if is_left_over(entry.name):
                shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
            elif not entry.name.startswith(".") and not belongs(entry.name):
                raise OutputError(f"'{folder}' holds other things ('{entry.name}'); choose an empty folder.")
    except OSError as error:
        raise OutputError(f"cannot write to '{folder}': {error.strerror}.") from error


def _append(folder: Path, lines: Sequence[Line]) -> None:
    """Adds lines to the index, which are on the disk when this returns."""
    if not lines:
        return
    text = "".join(json.dumps(asdict(line)) + "\n" for line in lines)
    try:
        with (folder / INDEX).open("ab+") as index:
            if index.tell() and os.pread(index.fileno(), 1, index.tell() - 1) != b"\n":
                text = "\n" + text  # The last writer was killed in mid-line.
            index.write(text.encode())
            index.flush()
            os.fsync(index.fileno())
    except OSError as error:
        raise OutputError(f"cannot write {folder / INDEX}: {error.strerror}.") from error
