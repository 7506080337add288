"""The episode store: one safetensors file per episode, written atomically, and an index that can be rebuilt."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data import serialization as tensors
from plaudit.data.episode import Counts, Episode, EpisodeSource, Summary, summarise
from plaudit.errors import DataError, OutputError
from plaudit.utils.atomic_io import whole_file

SUFFIX = ".safetensors"
_MARK = "plaudit-episodes"
_HERE = f".{re.sub('[^A-Za-z0-9]+', '-', socket.gethostname())}."
"""Temporary names begin so. Other machines and containers may share the folder, but not the numbers of processes."""


class EpisodeStore(EpisodeSource):
    """The episodes in a folder, in the order of their ids.

    Args:
        path: The store's folder. It must exist; `EpisodeStore.create` makes one.
    """

    format = "plaudit"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.folder = self.path / "episodes"
        if not self.folder.is_dir():
            raise DataError(f"'{self.path}' is not an episode store: it has no folder 'episodes'.")
        _check_manifest(self.path / "manifest.json")
        self._known: dict[str, Summary] = {}
        self._read_to, self._index_is = 0, -1
        self.refresh()

    @classmethod
    def create(cls, path: str | Path) -> EpisodeStore:
        """Opens the store at `path`, which is made if there is none yet."""
        path = Path(path)
        if path.is_dir() and any(path.iterdir()) and not is_store(path):
            raise OutputError(f"'{path}' holds other files; choose an empty folder for the episodes.")
        try:
            (path / "episodes").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot make the episode store '{path}': {error.strerror}.") from error
        store = cls(path)
        with store._locked():
            store._sweep()
            store._write_index()
        return store

    # Reading.

    def refresh(self) -> None:
        """Takes in what other processes have added or removed since."""
        self._read_index()
        names = {entry.name for entry in os.scandir(self.folder)}
        present = {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and not name.startswith(".")}
        for gone in self._known.keys() - present:
            del self._known[gone]
        for new in present - self._known.keys():
            with suppress(DataError):  # Stays without a summary; reading it says what is wrong with it.
                self._known[new] = summarise(tensors.read(self.file(new)))
        self._ids = sorted(present)

    def file(self, id: str) -> Path:
        """Where an episode is, or would be."""
        return self.folder / f"{id}{SUFFIX}"

    def read(self, index: int) -> Episode:
        return tensors.read(self.file(self._ids[index]))

    def summaries(self) -> list[Summary]:
        missing = [id for id in self._ids if id not in self._known]
        for id in missing:
            tensors.read(self.file(id))  # Raises: this is why it has no summary.
        return [self._known[id] for id in self._ids]

    @property
    def ids(self) -> Sequence[str]:
        """Of all episodes, in order."""
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, item: object) -> bool:
        if isinstance(item, Episode):
            item = item.id
        return isinstance(item, str) and self.file(item).exists()

    def positives(self, beginning: str) -> int:
        """How many positive episodes are there whose ids begin so."""
        return sum(summary.positive for id, summary in self._known.items() if id.startswith(beginning))

    @property
    def counts(self) -> Counts:
        """How much there is, damaged files aside."""
        known = self._known.values()
        positive = sum(summary.positive for summary in known)
        labels = np.concatenate([np.zeros(0, np.int8), *(summary.labels for summary in known)])
        return Counts(positive, len(known) - positive, len(labels), int((labels == 1).sum()), int((labels == -1).sum()))

    # Writing.

    def add(self, episodes: Sequence[Episode]) -> int:
        """Adds some episodes together: all are on the disk when this returns.

        Returns:
            How many were new; one whose id is there already is left as it is.
        """
        wanted = {episode.id: episode for episode in episodes if episode.check() not in self}
        staged: list[tuple[Episode, Path]] = []
        try:
            for episode in wanted.values():
                staged.append((episode, self._stage(episode)))
            for episode, temporary in staged:
                with self._writing(episode):
                    _sync(temporary)
        except OutputError:
            for _, temporary in staged:
                temporary.unlink(missing_ok=True)
            raise
        with self._locked():
            new = [episode for episode, temporary in staged if self._publish(temporary, self.file(episode.id))]
            self._read_index()
            self._known |= {episode.id: summarise(episode) for episode in new}
            self._ids = sorted({*self._ids, *self._known})
            self._append_index(new)
            self._write_manifest()
        return len(new)

    def next_writer(self) -> int:
        """A number that no other call has got, and that no id here has as its `-w<number>-`.

        Ids with it never collide with those of another process or run.
        """
        with self._locked():
            path = self.path / "writers"
            number = max(_number_in(path), 1 + max(map(_writer_of, self._ids), default=-1))
            with whole_file(path) as temporary:
                temporary.write_text(str(number + 1))
        return number

    def _stage(self, episode: Episode) -> Path:
        """Writes an episode under a temporary name, from where the system begins to bring it to the disk."""
        temporary = self.folder / f"{_HERE}{os.getpid()}.{episode.id}"
        try:
            with self._writing(episode), temporary.open("wb") as file:
                file.write(tensors.encode(episode))
                file.flush()
                if hasattr(os, "posix_fadvise"):
                    # Pages that are dirty stay, but are written out at once: by the time that all episodes of a group
                    # are there, little is left to wait for. Waiting for one after the other takes twice as long.
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OutputError:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    @contextmanager
    def _writing(self, episode: Episode) -> Iterator[None]:
        """What goes wrong inside becomes an error that names the episode's file."""
        try:
            yield
        except OSError as error:
            raise OutputError(f"cannot write {self.file(episode.id)}: {error.strerror or error}.") from error

    @staticmethod
    def _publish(temporary: Path, path: Path) -> bool:
        """Gives a staged file its name, unless another process was quicker."""
        if path.exists():
            temporary.unlink()
            return False
        os.replace(temporary, path)
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one process is in here at a time."""
        try:
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(f"cannot write to the episode store '{self.path}': {error.strerror}.") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise OutputError(f"cannot write to the episode store '{self.path}': {error.strerror or error}.") from error
        finally:
            os.close(handle)

    def _sweep(self) -> None:
        """Removes what a process of this machine that is no more has left half-written."""
        for entry in os.scandir(self.folder):
            owner = entry.name.removeprefix(_HERE).partition(".")[0]
            if entry.name.startswith(_HERE) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
                with suppress(OSError):
                    os.unlink(entry.path)

    # Index and manifest.

    def _read_index(self) -> None:
        """Takes in the lines that were added since; a torn or foreign line is passed over, its file is read instead."""
        with suppress(FileNotFoundError), (self.path / "index.jsonl").open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._index_is:  # Another process has made it anew.
                self._read_to, self._index_is = 0, inode
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                with suppress(ValueError, KeyError, TypeError, AttributeError):
                    summary = _from_line(json.loads(line))
                    self._known[summary.id] = summary

    def _append_index(self, episodes: Sequence[Episode]) -> None:
        text = "".join(_to_line(self._known[episode.id]) for episode in episodes).encode()
        handle = os.open(self.path / "index.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            if os.fstat(handle).st_size != self._read_to:  # The last writer was killed in mid-line.
                text = b"\n" + text
            os.write(handle, text)
            os.fsync(handle)
            self._read_to, self._index_is = os.fstat(handle).st_size, os.fstat(handle).st_ino
        finally:
            os.close(handle)
        _sync(self.folder)

    def _write_index(self) -> None:
        """Makes the index anew, in the order of the ids."""
        self.refresh()
        path = self.path / "index.jsonl"
        with whole_file(path) as temporary:
            temporary.write_text("".join(_to_line(self._known[id]) for id in self._ids if id in self._known))
        self._read_index()
        self._write_manifest()

    def _write_manifest(self) -> None:
        counts = self.counts
        sizes: dict[str, list[list[int]]] = {}
        for summary in self._known.values():
            for camera, size in summary.cameras.items():
                if list(size) not in sizes.setdefault(camera, []):
                    sizes[camera].append(list(size))
        content = {
            "format": _MARK,
            "schema": tensors.SCHEMA,
            "cameras": dict(sorted(sizes.items())),
            "positive_episodes": counts.positive,
            "negative_episodes": counts.negative,
            "frames": counts.frames,
            "success_frames": counts.success_frames,
            "unknown_frames": counts.unknown_frames,
        }
        with whole_file(self.path / "manifest.json") as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n")


def is_store(path: Path) -> bool:
    """Whether a folder looks like an episode store."""
    if (path / "manifest.json").is_file():
        with suppress(OSError, ValueError, AttributeError):
            if json.loads((path / "manifest.json").read_text()).get("format") == _MARK:
                return True
    folder = path / "episodes"
    return folder.is_dir() and (not any(folder.iterdir()) or any(folder.glob(f"*{SUFFIX}")))


def _sync(path: Path) -> None:
    """Waits until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _number_in(path: Path) -> int:
    """The number in a file; 0 where there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _writer_of(id: str) -> int:
    found = re.search(r"-w(\d+)-", id)
    return int(found.group(1)) if found else -1


def _check_manifest(path: Path) -> None:
    """Refuses a store that a newer version wrote; one without a manifest, or with a damaged one, gets a new one."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        schema = json.loads(path.read_text())["schema"]
        if schema > tensors.SCHEMA:
            raise DataError(f"{path}: was written by a newer version of Plaudit (schema {schema}); update Plaudit.")


def _to_line(summary: Summary) -> str:
    labels = "".join("?01"[label + 1] for label in summary.labels)
    line: dict[str, Any] = {
        "id": summary.id,
        "labels": labels,
        "positive": summary.positive,
        "cameras": {name: list(size) for name, size in summary.cameras.items()},
        "label_source": summary.label_source,
        "whole": summary.whole,
    }
    return json.dumps(line) + "\n"


def _from_line(line: dict[str, Any]) -> Summary:
    labels = np.array(["?01".index(letter) - 1 for letter in line["labels"]], np.int8)
    cameras = {name: (int(height), int(width)) for name, (height, width) in line["cameras"].items()}
    whole = bool(line.get("whole"))  # Stores of the first version did not say.
    return Summary(line["id"], labels, bool(line["positive"]), cameras, line["label_source"], whole)


class JoinedStore(EpisodeStore):
    """The episodes of the first store, then those of the next, as the stores know them now: those that others have
    added to them meanwhile would come between. Nothing can be added to it.

    Args:
        stores: At least one.
    """

    def __init__(self, stores: Sequence[EpisodeStore]) -> None:
        self.stores, self.path = tuple(stores), stores[0].path
        self.refresh()

    def refresh(self) -> None:
        self._homes: dict[str, EpisodeStore] = {}
        for store in self.stores:
            for id in store.ids:
                if id in self._homes:
                    first, second = self._homes[id].path, store.path
                    raise DataError(f"an episode is called '{id}' in both '{first}' and '{second}'; rename one file.")
                self._homes[id] = store
        self._ids = list(self._homes)
        self._known = {summary.id: summary for store in self.stores for summary in store.summaries()}

    def file(self, id: str) -> Path:
        return self._homes[id].file(id)

    def summaries(self) -> list[Summary]:
        return [self._known[id] for id in self._ids]

    def __contains__(self, item: object) -> bool:
        return (item.id if isinstance(item, Episode) else item) in self._homes

    def add(self, episodes: Sequence[Episode]) -> int:
        """Is an error: an episode belongs to one of the stores."""
        raise OutputError(f"'{self.path}' is one of several stores that are read together; add to one of them.")
