"""What must be true of the splits before anything is built: both classes to learn from, and nothing on both sides."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from plaudit.data.episode import Episode
from plaudit.data.image_hashing import digest
from plaudit.data.split import TEST, TRAIN, VAL, Split
from plaudit.errors import DataError


def check_splits(splits: Mapping[str, Split]) -> None:
    """Raises a `DataError` that says why these splits cannot be fitted to.

    Args:
        splits: `train` and `val`, and `test` where there is one; they may be of different data sets.
    """
    for name in (TRAIN, VAL):
        if name not in splits:
            raise DataError(f"there is no split '{name}': a fit learns from train, and val picks epoch and threshold.")
        _check_classes(splits[name])
    if TEST in splits and not sum(map(len, splits[TEST].rows)):
        raise DataError(f"{splits[TEST].source.path}: the test split has no frame with a label.")
    _check_names(splits)
    _check_copies(splits)


def _check_classes(split: Split) -> None:
    counts = split.counts
    failures = counts.frames - counts.unknown_frames - counts.success_frames
    for kind, number in (("success", counts.success_frames), ("failure", failures)):
        if not number:
            raise DataError(
                f"{split.source.path}: the split '{split.name}' has no {kind} frame among its {counts.frames:,} "
                f"({counts.episodes:,} episodes). A model learns nothing from one class; collect the other one too."
            )


def _check_names(splits: Mapping[str, Split]) -> None:
    """Whether an episode of one data set is in two splits of it."""
    seen: dict[tuple[str, str], str] = {}
    for name, split in splits.items():
        for summary in split.summaries:
            key = str(split.source.path.resolve()), summary.id
            if key in seen:
                raise DataError(_leak(f"episode '{summary.id}'", seen[key], name, split))
            seen[key] = name


def _check_copies(splits: Mapping[str, Split]) -> None:
    """Whether the pictures of an episode are in two splits, under whatever names.

    Labels and the last picture tell most episodes apart; only those that agree in them are compared as a whole.
    """
    seen: dict[tuple[bytes, int], list[tuple[Split, int]]] = {}
    for split in splits.values():
        for number in map(int, split.index):
            episode = split.source[number]
            others = seen.setdefault(_look(episode), [])
            for where, its_number in others:
                other = where.source[its_number]  # Read again: not all files can stay open.
                if where.name != split.name and digest(other) == digest(episode):
                    pair = f"episode '{episode.id}', with the same pictures as '{other.id}',"
                    raise DataError(_leak(pair, where.name, split.name, split))
            others.append((split, number))


def _look(episode: Episode) -> tuple[bytes, int]:
    last = np.ascontiguousarray(episode.frames[episode.cameras[0]][-1])
    return episode.labels.tobytes(), zlib.crc32(last.data)


def _leak(what: str, first: str, second: str, split: Split) -> str:
    return (
        f"{split.source.path}: {what} is in '{first}' and in '{second}', so that what is measured there would be "
        "learned by heart. plaudit doctor lists all of them; remove the copies, or split anew with plaudit process."
    )
