"""The examination of a whole data set, one episode at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plaudit.data import serialization as tensors
from plaudit.data.contact_sheet import tile
from plaudit.data.doctor.duplicates import Fingerprints, same_pictures
from plaudit.data.doctor.image_checks import check_end, check_pictures
from plaudit.data.doctor.issues import LOOK, SPOILS, Finding, Notebook, Spot
from plaudit.data.doctor.label_checks import check_labels
from plaudit.data.doctor.statistics import sample
from plaudit.data.episode import SUCCESS, UNKNOWN, Counts, Episode, EpisodeSource
from plaudit.data.formats.base import FileSource
from plaudit.data.image_hashing import digest, thumbnails
from plaudit.data.split import Rows
from plaudit.data.store import EpisodeStore
from plaudit.errors import DataError

EVERYTHING = "all"
"""Stands for the splits where there are none."""

RARE = 0.02
"""Share of the labels below which one kind is rare."""


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor has to say.

    Attributes:
        source: The data set.
        balance: Split to how much it holds; `all` where there are no splits.
        findings: The worst first.
    """

    source: EpisodeSource
    balance: Mapping[str, Counts]
    findings: Sequence[Finding]

    @property
    def spoiled(self) -> bool:
        """Whether something would spoil a fit."""
        return any(finding.severity == SPOILS for finding in self.findings)

    @property
    def summary(self) -> str:
        """In one sentence."""
        if not self.findings:
            return "Nothing found."
        counts = {level: sum(finding.severity == level for finding in self.findings) for level in (SPOILS, LOOK)}
        words = {SPOILS: "would spoil a fit", LOOK: "worth a look"}
        return ", ".join(f"{count} {words[level]}" for level, count in counts.items() if count) + "."


def diagnose(
    source: EpisodeSource,
    splits: Mapping[str, Mapping[str, Rows]] | None = None,
    track: Callable[[range], Iterable[int]] = iter,
) -> Diagnosis:
    """Reads every episode once, and of those that seem to be copies some frames again.

    Args:
        source: The data set.
        splits: Name to episode id to rows, where there are splits.
        track: Wraps the numbers of the episodes as they are gone through, for a progress bar.
    """
    exam = _Exam(source, splits or {})
    for index in track(range(len(source))):
        exam.take(index)
    exam.conclude()
    return Diagnosis(source, exam.balance, exam.notes.findings(len(source), exam.frames))


class _Exam:
    """What is known while the episodes pass by."""

    def __init__(self, source: EpisodeSource, splits: Mapping[str, Mapping[str, Rows]]) -> None:
        self.source, self.splits = source, splits
        self.notes = Notebook()
        self.balance = dict.fromkeys(splits or [EVERYTHING], Counts())
        self.ids: dict[int, str] = {}
        self.frames = 0
        self.damaged: list[str | None] = []
        self.kinds: dict[tuple[Any, ...], list[int]] = {}
        self.whole: dict[bytes, int] = {}
        self.copies: set[tuple[int, int]] = set()
        self.usual = sample(source)
        self.prints = None if self.usual.hash is None else Fingerprints(self.usual.hash)

    def take(self, index: int) -> None:
        """Examines one episode."""
        try:
            episode, file = self._read(index)
        except DataError as error:
            self.damaged.append(self._name(index))
            self.notes.add("unreadable", Spot(self.damaged[-1] or f"number {index}", str(error)))
            return
        self.ids[index] = episode.id
        self.frames += len(episode)
        self._count(episode)
        check_labels(episode, file, self.notes)
        kind = tuple((camera, *episode.frames[camera].shape[1:3]) for camera in episode.cameras)
        self.kinds.setdefault(kind, []).append(index)
        small = {camera: thumbnails(episode.frames[camera]) for camera in episode.cameras}
        for camera, pictures in small.items():
            check_pictures(episode, camera, pictures, self.usual.steps, file, self.notes)
        check_end(episode, small, file, self.notes)
        if self.prints is not None:
            self.prints.add(index, episode, small[episode.cameras[0]])
        first = self.whole.setdefault(digest(episode), index)
        if first != index:
            self.copies.add((first, index))

    def conclude(self) -> None:
        """Looks at what only all episodes together can show."""
        self._check_cameras()
        self._check_splits()
        self._check_balance()
        for first, second in sorted(self.copies):
            self._note_copy(first, second, "all pixels are the same")
        if self.prints is not None:
            self._check_copies(self.prints)

    def _check_copies(self, prints: Fingerprints) -> None:
        """Looks again at what may be the same."""
        splits = [", ".join(self._splits_of(index)) for index in prints.episodes]
        for pair in itertools.chain(prints.pairs(), prints.neighbours(splits)):
            known = (pair.first, pair.second) in self.copies or (pair.second, pair.first) in self.copies
            rows = [] if known else same_pictures(self.source, pair)
            if rows:
                detail = f"{len(rows)} of {len(pair.rows)} frames that were compared look the same"
                at = int(pair.rows[rows[0]]), int(pair.others[rows[0]])
                self._note_copy(pair.first, pair.second, detail, at, suspicion=not pair.sure)

    def _read(self, index: int) -> tuple[Episode, str]:
        """An episode, every byte of it checked where there is a checksum, and its file where that is known."""
        if isinstance(self.source, EpisodeStore):
            path = self.source.file(self.source.ids[index])
            return tensors.verify(path), str(path)
        file = str(self.source.files[index][1]) if isinstance(self.source, FileSource) else ""
        return self.source[index], file

    def _name(self, index: int) -> str | None:
        """The id of an episode that does not load, where it can be told."""
        if isinstance(self.source, EpisodeStore):
            return self.source.ids[index]
        return self.source.files[index][0] if isinstance(self.source, FileSource) else None

    def _count(self, episode: Episode) -> None:
        mine = {name: rows[episode.id] for name, rows in self.splits.items() if episode.id in rows}
        if not self.splits:
            mine = {EVERYTHING: np.arange(len(episode), dtype=np.int32)}
        for name, rows in mine.items():
            labels = episode.labels[rows[rows < len(episode)]]
            old = self.balance[name]
            self.balance[name] = Counts(
                old.positive + episode.positive,
                old.negative + (not episode.positive),
                old.frames + len(labels),
                old.success_frames + int((labels == SUCCESS).sum()),
                old.unknown_frames + int((labels == UNKNOWN).sum()),
            )

    def _check_cameras(self) -> None:
        kinds = sorted(self.kinds.items(), key=lambda item: -len(item[1]))
        for kind, indices in kinds[1:]:
            for index in indices:
                odd = f"{_words(kind)}; most others have {_words(kinds[0][0])}"
                tiles = self._tiles("cameras", index, -1)
                self.notes.add("cameras", Spot(self.ids[index], odd), tiles=tiles)

    def _check_splits(self) -> None:
        for index in sorted(self.ids) if self.splits else ():
            names = self._splits_of(index)
            if len(names) > 1:
                self.notes.add("two_splits", Spot(self.ids[index], " and ".join(names)))
            elif not names:
                self.notes.add("unsplit", Spot(self.ids[index]))
        there = {*self.ids.values(), *self.damaged}
        if None in there:
            return  # Which episodes are missing cannot be told.
        for name, rows in self.splits.items():
            for id in rows.keys() - there:
                self.notes.add("gone", Spot(id, name))

    def _splits_of(self, index: int) -> list[str]:
        return [name for name, rows in self.splits.items() if self.ids[index] in rows]

    def _check_balance(self) -> None:
        for name, counts in self.balance.items():
            success = counts.success_frames
            failure = counts.frames - counts.unknown_frames - success
            detail = f"{success} success and {failure} failure frames"
            if not success or not failure:
                self.notes.add("one_class", Spot(name, detail), unit="splits")
            elif min(success, failure) < RARE * (success + failure):
                self.notes.add("imbalance", Spot(name, detail), unit="splits")

    def _note_copy(
        self, first: int, second: int, detail: str, at: tuple[int, int] = (-1, -1), *, suspicion: bool = False
    ) -> None:
        splits = [self._splits_of(index) for index in (first, second)]
        across = bool(self.splits) and bool(splits[0]) and bool(splits[1]) and splits[0] != splits[1]
        if across:
            detail += f" ({' and '.join(', '.join(names) for names in splits)})"
        kind = "copies_across" if across else "copies"
        tiles = self._tiles(kind, first, at[0]) + self._tiles(kind, second, at[1])
        spot = Spot(f"{self.ids[first]} and {self.ids[second]}", detail)
        self.notes.add(kind, spot, tiles=tiles, suspicion=suspicion)

    def _tiles(self, kind: str, index: int, row: int) -> list[Any]:
        return [tile(self.source[index], row)] if self.notes.wants_tiles(kind) else []


def _words(kind: tuple[Any, ...]) -> str:
    return ", ".join(f"{camera} {height}×{width}" for camera, height, width in kind)
