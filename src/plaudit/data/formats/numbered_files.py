"""Folders of numbered files, one per episode, for any number of processes.

The functions here list, read and write such folders.
"""

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
"""Name of this machine, in a form that is valid in file names."""

_UNFINISHED = re.compile(r"\..+\.([A-Za-z0-9-]*)\.(\d+)\.part")


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` if no error occurs.

    The caller creates a file or a folder there. All of it is synced to disk when this returns. A file replaces an older
    file; a folder does not replace an existing folder.
    """
    temporary = path.with_name(f".{path.name}.{HERE}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary

        # Sync the content before the rename, so that `path` never names an incomplete file.
        for part in (*temporary.rglob("*"), temporary):
            _sync(part)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        # It still exists only after an error. If it cannot be removed, that first error says why.
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def is_left_over(name: str) -> bool:
    """Return whether `staged` made this name in a process that no longer exists.

    Only processes of this machine can be checked; names from other machines count as in use.
    """
    match = _UNFINISHED.fullmatch(name)
    return match is not None and match[1] == HERE and not Path(f"/proc/{match[2]}").exists()


def _sync(path: Path) -> None:
    """Sync a file, or the directory entries of a folder, to disk."""
    is_folder = path.is_dir()
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        # Not every file system can sync a folder.
        with suppress(OSError) if is_folder else nullcontext():
            os.fsync(handle)
    finally:
        os.close(handle)


INDEX = ".plaudit.jsonl"


@dataclass(frozen=True)
class Line:
    """Entry of the index: the size, id and counts of one file."""

    file: str
    size: int
    id: str
    positive: bool
    frames: int
    success_frames: int
    unknown_frames: int

    @classmethod
    def of(cls, episode: Episode, labels: NDArray[np.int8], file: Path, size: int) -> Line:
        """Return the entry of an episode, given the labels that the layout keeps of it."""
        success = int((labels == SUCCESS).sum())
        unknown = int((labels == UNKNOWN).sum())
        return cls(file.name, size, episode.id, episode.positive, len(labels), success, unknown)


def natural(path: Path) -> list[str | int]:
    """Return a sort key that puts 2 before 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def files_in(folder: Path, suffix: str) -> list[Path]:
    """Return the files with a suffix, except those that are being written."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.suffix == suffix and not p.name.startswith(".")), key=natural)


def with_ids(files: Iterable[Path], prefixed: bool) -> list[tuple[str, Path]]:
    """Pair files with their ids from the folder's index, or else from their names.

    Args:
        files: Files of one folder or several.
        prefixed: Whether files in different folders may have the same name, so that ids need the folder's name.
    """
    indices: dict[Path, dict[str, Line]] = {}
    taken: set[str] = set()
    pairs = []
    for file in files:
        if file.parent not in indices:
            indices[file.parent] = read_index(file.parent)

        # A copied file can bring along an id that another file already has.
        line = indices[file.parent].get(file.name)
        id = f"{file.parent.name}-{file.stem}" if prefixed else file.stem
        if line is not None and line.id not in taken:
            id = line.id

        taken.add(id)
        pairs.append((id, file))
    return pairs


def read_index(folder: Path) -> dict[str, Line]:
    """Map file names to their index entries.

    An entry is left out if its size does not agree with the file on disk.
    """
    lines = {}
    with suppress(OSError), (folder / INDEX).open("rb") as index:
        for text in index:
            # Ignore lines that a killed process left incomplete, or that are not ours.
            with suppress(ValueError, TypeError):
                line = Line(**json.loads(text))
                lines[line.file] = line

    sizes: dict[str, int] = {}
    with suppress(OSError):
        sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
    return {name: line for name, line in lines.items() if sizes.get(name) == line.size}


class NumberedWriter(ABC):
    """Writer of episodes to numbered files; numbering continues after the highest number.

    Args:
        folders: Folders of successes (`True`) and failures (`False`); both may be the same folder.
    """

    pattern: ClassVar[re.Pattern[str]]
    """Pattern of the file names, with the number as the first group."""

    one_counter: ClassVar[bool]
    """If true, all folders share one sequence of numbers, otherwise each folder has its own."""

    def __init__(self, folders: Mapping[bool, Path]) -> None:
        self.folders = dict(folders)
        self._distinct = list(dict.fromkeys(self.folders.values()))
        self._known: set[Path] = set()
        self._ids: dict[str, bool] = {}  # Maps an id to whether the episode is positive.
        self._highest = dict.fromkeys(self._distinct, -1)
        self._counts = Counts()

        for folder in self._distinct:
            claim(folder, lambda name: self.pattern.fullmatch(name) is not None)
        with self._locked():
            self._refresh()

    @abstractmethod
    def name(self, number: int, positive: bool) -> str:
        """Return the file name for a number."""

    @abstractmethod
    def encode(self, episode: Episode, number: int) -> bytes:
        """Return the content of an episode's file.

        Raises:
            DataError: The layout cannot hold the episode.
        """

    @abstractmethod
    def labels(self, episode: Episode) -> NDArray[np.int8]:
        """Return the labels of the frames that the layout keeps."""

    @abstractmethod
    def read(self, file: Path) -> Episode:
        """Return the episode of an existing file that is not in the index."""

    @property
    def counts(self) -> Counts:
        """Numbers of episodes and frames in the folders."""
        return self._counts

    def __contains__(self, item: object) -> bool:
        return (item.id if isinstance(item, Episode) else item) in self._ids

    def positives(self, beginning: str) -> int:
        """Return the number of positive episodes whose ids start with `beginning`."""
        return sum(positive for id, positive in self._ids.items() if id.startswith(beginning))

    def add(self, episodes: Sequence[Episode]) -> int:
        """Write the episodes with new ids and return how many there were.

        All of them are synced to disk when this returns.
        """
        for episode in episodes:
            episode.check()

        with self._locked():
            self._refresh()
            new = new_ones(episodes, self)
            contents = self._encode_all(new)

            # Write the index before the files: an entry without its file is ignored by `read_index`.
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
        """Number the episodes and map each new file to its episode and content."""
        highest = dict(self._highest)
        contents = {}
        for episode in episodes:
            folder = self.folders[episode.positive]
            number = 1 + (max(highest.values()) if self.one_counter else highest[folder])
            highest[folder] = number
            contents[folder / self.name(number, episode.positive)] = episode, self.encode(episode, number)
        return contents

    def _refresh(self) -> None:
        """Register files that are not known yet.

        At the start these are all existing files, later those that other processes have added.
        """
        for folder in self._distinct:
            names = [entry.name for entry in os.scandir(folder) if self.pattern.fullmatch(entry.name)]
            new = [folder / name for name in names if folder / name not in self._known]
            index = read_index(folder) if new else {}
            for id, file in with_ids(new, prefixed=len(self._distinct) > 1):
                self._note(file, index.get(file.name) or self._examine(file, id))

    def _examine(self, file: Path, id: str) -> Line:
        """Return the index entry of a file that is not in the index."""
        episode = replace(self.read(file), id=id)
        return Line.of(episode, episode.labels, file, file.stat().st_size)

    def _note(self, file: Path, line: Line) -> None:
        """Register a file: its number, its id and its counts."""
        match = self.pattern.fullmatch(file.name)
        assert match is not None
        self._highest[file.parent] = max(self._highest[file.parent], int(match[1]))

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
        """Hold the lock that lets one process at a time choose numbers and write."""
        lock_file = self.folders[False] / INDEX
        try:
            handle = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(f"cannot write {lock_file}: {error.strerror}.") from error

        # Closing the file releases the lock.
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def new_ones(episodes: Iterable[Episode], there: Container[object]) -> list[Episode]:
    """Return the episodes that `there` does not contain; of equal ids only the first."""
    new: dict[str, Episode] = {}
    for episode in episodes:
        if episode not in there:
            new.setdefault(episode.id, episode)
    return list(new.values())


def claim(folder: Path, belongs: Callable[[str], bool]) -> None:
    """Create a folder, or accept an existing one that contains no foreign files.

    Incomplete files of processes of this machine that no longer exist are removed.
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
    """Append entries to the index and sync it to disk."""
    if not lines:
        return

    text = "".join(json.dumps(asdict(line)) + "\n" for line in lines)
    try:
        with (folder / INDEX).open("ab+") as index:
            # Start a new line if the last writer was killed in the middle of one.
            if index.tell() and os.pread(index.fileno(), 1, index.tell() - 1) != b"\n":
                text = "\n" + text
            index.write(text.encode())
            index.flush()
            os.fsync(index.fileno())
    except OSError as error:
        raise OutputError(f"cannot write {folder / INDEX}: {error.strerror}.") from error
