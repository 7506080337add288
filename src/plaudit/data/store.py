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
"""Prefix of temporary names. Machines and containers may share the folder, but process ids are unique only per host."""


class EpisodeStore(EpisodeSource):
    """Episode store in a folder, ordered by episode id.

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
        self._index_offset = 0  # Bytes of the index that have been read.
        self._index_inode = -1
        self.refresh()

    @classmethod
    def create(cls, path: str | Path) -> EpisodeStore:
        """Open the store at `path`, creating it if it does not exist."""
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
        """Update the episode list with what other processes have added or removed."""
        self._read_index()
        names = {entry.name for entry in os.scandir(self.folder)}
        present = {name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX) and not name.startswith(".")}

        for removed_id in self._known.keys() - present:
            del self._known[removed_id]

        # A damaged file stays without a summary; reading it raises an error that says what is wrong.
        for new_id in present - self._known.keys():
            with suppress(DataError):
                self._known[new_id] = summarise(tensors.read(self.file(new_id)))

        self._ids = sorted(present)

    def file(self, id: str) -> Path:
        """Return the path of an episode's file, whether or not it exists."""
        return self.folder / f"{id}{SUFFIX}"

    def read(self, index: int) -> Episode:
        return tensors.read(self.file(self._ids[index]))

    def summaries(self) -> list[Summary]:
        missing = [id for id in self._ids if id not in self._known]
        for id in missing:
            tensors.read(self.file(id))  # Raises the error that prevented a summary.
        return [self._known[id] for id in self._ids]

    @property
    def ids(self) -> Sequence[str]:
        """Ids of all episodes, in order."""
        return self._ids

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, item: object) -> bool:
        if isinstance(item, Episode):
            item = item.id
        return isinstance(item, str) and self.file(item).exists()

    def positives(self, beginning: str) -> int:
        """Return the number of positive episodes whose ids start with `beginning`."""
        return sum(summary.positive for id, summary in self._known.items() if id.startswith(beginning))

    @property
    def counts(self) -> Counts:
        """Counts of episodes and frames, without damaged files."""
        known = self._known.values()
        positive = sum(summary.positive for summary in known)
        labels = np.concatenate([np.zeros(0, np.int8), *(summary.labels for summary in known)])
        return Counts(positive, len(known) - positive, len(labels), int((labels == 1).sum()), int((labels == -1).sum()))

    # Writing.

    def add(self, episodes: Sequence[Episode]) -> int:
        """Add episodes as one group; all are on disk when this returns.

        Returns:
            The number of new episodes. An episode whose id exists already is left unchanged.
        """
        new_episodes = {episode.id: episode for episode in episodes if episode.check() not in self}

        # Stage every file first and sync afterwards, so that the disk writes overlap.
        staged: list[tuple[Episode, Path]] = []
        try:
            for episode in new_episodes.values():
                staged.append((episode, self._stage(episode)))
            for episode, temporary in staged:
                with self._writing(episode):
                    _sync(temporary)
        except OutputError:
            for _, temporary in staged:
                temporary.unlink(missing_ok=True)
            raise

        # Publish under the lock; another process may have written the same id meanwhile.
        with self._locked():
            published = [episode for episode, temporary in staged if self._publish(temporary, self.file(episode.id))]
            self._read_index()
            self._known |= {episode.id: summarise(episode) for episode in published}
            self._ids = sorted({*self._ids, *self._known})
            self._append_index(published)
            self._write_manifest()

        return len(published)

    def next_writer(self) -> int:
        """Return a unique writer number that no id in the store has as its `-w<number>-`.

        No other call returns the same number, so ids with it never collide with those of another process or run.
        """
        with self._locked():
            path = self.path / "writers"
            number = max(_number_in(path), 1 + max(map(_writer_of, self._ids), default=-1))
            with whole_file(path) as temporary:
                temporary.write_text(str(number + 1))
        return number

    def _stage(self, episode: Episode) -> Path:
        """Write an episode under a temporary name and start its transfer to disk."""
        temporary = self.folder / f"{_HERE}{os.getpid()}.{episode.id}"
        try:
            with self._writing(episode), temporary.open("wb") as file:
                file.write(tensors.encode(episode))
                file.flush()
                if hasattr(os, "posix_fadvise"):
                    # Dirty pages stay cached, but their write-out starts at once: when all episodes of a group are
                    # staged, little is left to wait for. Syncing one after the other takes twice as long.
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        except OutputError:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    @contextmanager
    def _writing(self, episode: Episode) -> Iterator[None]:
        """Convert an `OSError` into an `OutputError` that names the episode's file."""
        try:
            yield
        except OSError as error:
            raise OutputError(f"cannot write {self.file(episode.id)}: {error.strerror or error}.") from error

    @staticmethod
    def _publish(temporary: Path, path: Path) -> bool:
        """Rename a staged file to its final name, unless another process wrote it first."""
        if path.exists():
            temporary.unlink()
            return False
        os.replace(temporary, path)
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the store's lock, which only one process can hold at a time."""
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
        """Remove temporary files left by processes of this machine that no longer run."""
        for entry in os.scandir(self.folder):
            owner = entry.name.removeprefix(_HERE).partition(".")[0]
            if entry.name.startswith(_HERE) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
                with suppress(OSError):
                    os.unlink(entry.path)

    # Index and manifest.

    def _read_index(self) -> None:
        """Read the index lines added since the last call.

        Incomplete or invalid lines are skipped; `refresh` reads the files of those episodes instead.
        """
        with suppress(FileNotFoundError), (self.path / "index.jsonl").open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._index_inode:  # Another process has rebuilt the index.
                self._index_offset = 0
                self._index_inode = inode

            file.seek(self._index_offset)
            for line in file:
                if not line.endswith(b"\n"):  # Still being written.
                    break
                self._index_offset += len(line)
                with suppress(ValueError, KeyError, TypeError, AttributeError):
                    summary = _from_line(json.loads(line))
                    self._known[summary.id] = summary

    def _append_index(self, episodes: Sequence[Episode]) -> None:
        """Append the summaries of new episodes to the index and sync it to disk."""
        text = "".join(_to_line(self._known[episode.id]) for episode in episodes).encode()
        handle = os.open(self.path / "index.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            # The last writer was killed in mid-line: start a new one.
            if os.fstat(handle).st_size != self._index_offset:
                text = b"\n" + text
            os.write(handle, text)
            os.fsync(handle)

            status = os.fstat(handle)
            self._index_offset = status.st_size
            self._index_inode = status.st_ino
        finally:
            os.close(handle)

        _sync(self.folder)

    def _write_index(self) -> None:
        """Rebuild the index, ordered by id."""
        self.refresh()
        path = self.path / "index.jsonl"
        with whole_file(path) as temporary:
            temporary.write_text("".join(_to_line(self._known[id]) for id in self._ids if id in self._known))
        self._read_index()
        self._write_manifest()

    def _write_manifest(self) -> None:
        """Write the manifest: schema, camera sizes and counts."""
        counts = self.counts

        # A camera has several sizes if the episodes differ.
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
    """Return whether a folder looks like an episode store."""
    if (path / "manifest.json").is_file():
        with suppress(OSError, ValueError, AttributeError):
            if json.loads((path / "manifest.json").read_text()).get("format") == _MARK:
                return True
    folder = path / "episodes"
    return folder.is_dir() and (not any(folder.iterdir()) or any(folder.glob(f"*{SUFFIX}")))


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _number_in(path: Path) -> int:
    """Return the number in a file, or 0 if there is none."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _writer_of(id: str) -> int:
    """Return the writer number in an episode id, or -1 if there is none."""
    match = re.search(r"-w(\d+)-", id)
    return int(match.group(1)) if match else -1


def _check_manifest(path: Path) -> None:
    """Reject a store written by a newer version. A missing or damaged manifest is written again."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        schema = json.loads(path.read_text())["schema"]
        if schema > tensors.SCHEMA:
            raise DataError(f"{path}: was written by a newer version of Plaudit (schema {schema}); update Plaudit.")


def _to_line(summary: Summary) -> str:
    """Return the index line of a summary; a label is one of the letters ?, 0 and 1."""
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
    """Return the summary in a parsed index line."""
    labels = np.array(["?01".index(letter) - 1 for letter in line["labels"]], np.int8)
    cameras = {name: (int(height), int(width)) for name, (height, width) in line["cameras"].items()}
    whole = bool(line.get("whole"))  # Stores of the first version lack this key.
    return Summary(line["id"], labels, bool(line["positive"]), cameras, line["label_source"], whole)


class JoinedStore(EpisodeStore):
    """Read-only concatenation of several stores, in the order in which they are given.

    It shows the episodes that the stores have loaded: episodes that other processes have added since then would come
    in between. Nothing can be added to it.

    Args:
        stores: At least one.
    """

    def __init__(self, stores: Sequence[EpisodeStore]) -> None:
        self.stores = tuple(stores)
        self.path = stores[0].path
        self.refresh()

    def refresh(self) -> None:
        self._homes: dict[str, EpisodeStore] = {}
        for store in self.stores:
            for id in store.ids:
                if id in self._homes:
                    first = self._homes[id].path
                    second = store.path
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
        """Raise an `OutputError`: an episode must be added to one of the stores."""
        raise OutputError(f"'{self.path}' is one of several stores that are read together; add to one of them.")
