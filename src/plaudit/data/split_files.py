"""Splits as files: a JSON manifest each, which refers to the data set by its relative path."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from plaudit.data.episode import EpisodeSource, Summary
from plaudit.data.formats import load_episodes
from plaudit.data.split import TEST, TRAIN, VAL, Rows, Split, SplitSettings
from plaudit.errors import DataError, OutputError, nearest
from plaudit.utils.atomic_io import whole_file

SCHEMA = 1
_MARK = "plaudit-split"


def save_splits(folder: str | Path, splits: Mapping[str, Split]) -> None:
    """Writes `folder/<name>.json` for each split, and removes that of a split which is no more."""
    folder = Path(folder)
    for name, split in splits.items():
        with whole_file(folder / f"{name}.json") as temporary:
            temporary.write_text(_text(split, folder))
    for name in {TRAIN, VAL, TEST} - splits.keys():
        try:
            (folder / f"{name}.json").unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(f"cannot remove {folder / name}.json: {error.strerror}.") from error


def load_split(path: str | Path) -> Split:
    """The split in a manifest, with its data set opened."""
    path = Path(path)
    content = _read(path)
    source = _open(path, content)
    return _split(path, content, source, source.summaries())


def load_splits(folder: str | Path) -> dict[str, Split]:
    """All splits in a folder, by name."""
    folder = Path(folder)
    paths = [path for name in (TRAIN, VAL, TEST) if (path := folder / f"{name}.json").is_file()]
    if not paths:
        raise DataError(f"'{folder}' holds no splits, such as a train.json. They are made by plaudit process.")
    contents = {path: _read(path) for path in paths}
    if len({(content["source"], content["format"]) for content in contents.values()}) > 1:
        raise DataError(f"'{folder}': the manifests refer to different data sets. Make them anew: plaudit process.")
    source = _open(paths[0], contents[paths[0]])
    summaries = source.summaries()
    return {path.stem: _split(path, content, source, summaries) for path, content in contents.items()}


def earlier_assignment(folder: str | Path, settings: SplitSettings) -> dict[str, str]:
    """Episode id to split, of manifests made with the same seed and shares; empty where there are none."""
    names: dict[str, str] = {}
    for name in (TRAIN, VAL, TEST):
        path = Path(folder) / f"{name}.json"
        if path.is_file():
            content = _read(path)
            made = content["settings"]
            same = ("seed", "val_fraction", "test_fraction")
            if any(made.get(key) != getattr(settings, key) for key in same):
                return {}
            names |= dict.fromkeys(content["episodes"], name)
    return names


def read_members(folder: str | Path, source: EpisodeSource) -> dict[str, dict[str, Rows]]:
    """Split to episode id to rows, as the manifests say, whether or not the episodes are there and whole."""
    members = {}
    for name in (TRAIN, VAL, TEST):
        path = Path(folder) / f"{name}.json"
        if path.is_file():
            content = _read(path)
            if _place(path, content) != source.path.resolve():
                raise DataError(f"{path}: is of another data set, '{_place(path, content)}', not of '{source.path}'.")
            members[name] = {id: _rows(path, id, values) for id, values in content["episodes"].items()}
    if not members:
        raise DataError(f"'{folder}' holds no splits, such as a train.json. They are made by plaudit process.")
    return members


def _text(split: Split, folder: Path) -> str:
    """The manifest as JSON, with a line for each episode."""
    counts = split.counts
    about = {
        "manifest": _MARK,
        "schema": SCHEMA,
        "split": split.name,
        "source": os.path.relpath(split.source.path.resolve(), folder.resolve()),
        "format": split.source.format,
        "settings": dataclasses.asdict(split.settings),
        "counts": {**dataclasses.asdict(counts), "dropped": dict(split.dropped)},
    }
    head = json.dumps(about, indent=2).removesuffix("\n}")
    lines = [
        f"    {json.dumps(summary.id)}: {json.dumps(rows.tolist(), separators=(',', ':'))}"
        for summary, rows in zip(split.summaries, split.rows, strict=True)
    ]
    return head + ',\n  "episodes": {\n' + ",\n".join(lines) + "\n  }\n}\n"


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        there = [entry.name for entry in path.parent.glob("*.json")] if path.parent.is_dir() else []
        raise DataError(f"there is no split manifest '{path}'.{nearest(path.name, there)}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a split manifest: {error}.") from None
    if not isinstance(content, dict) or content.get("manifest") != _MARK:
        raise DataError(f"{path}: is not a split manifest. They are made by plaudit process.")
    if content.get("schema") != SCHEMA:
        raise DataError(f"{path}: has schema {content.get('schema')}, but this Plaudit reads {SCHEMA}; update Plaudit.")
    kinds = {"split": str, "source": str, "format": str, "settings": dict, "counts": dict, "episodes": dict}
    for key, kind in kinds.items():
        if not isinstance(content.get(key), kind):
            raise DataError(f"{path}: '{key}' is missing or damaged. Make the split anew: plaudit process.")
    return content


def _open(path: Path, content: Mapping[str, Any]) -> EpisodeSource:
    place = _place(path, content)
    if not place.exists():
        raise DataError(
            f"{path}: its data set is not at '{place}' any more. Put it back, or make the split anew: plaudit process."
        )
    return load_episodes(place, content["format"])


def _place(path: Path, content: Mapping[str, Any]) -> Path:
    return Path(os.path.normpath(path.resolve().parent / content["source"]))


def _split(path: Path, content: Mapping[str, Any], source: EpisodeSource, summaries: Sequence[Summary]) -> Split:
    places = {summary.id: i for i, summary in enumerate(summaries)}
    gone = [id for id in content["episodes"] if id not in places]
    if gone:
        raise DataError(
            f"{path}: {len(gone)} of its episodes, such as '{gone[0]}', are not in {source.path} any more. "
            "Make the split anew: plaudit process."
        )
    index = np.array([places[id] for id in content["episodes"]], np.int64)
    mine = [summaries[i] for i in index]
    rows = [_rows(path, id, values) for id, values in content["episodes"].items()]
    for summary, row in zip(mine, rows, strict=True):
        if len(row) and row[-1] >= len(summary.labels):
            raise DataError(
                f"{path}: names frame {row[-1]} of episode '{summary.id}', which has {len(summary.labels)}. "
                "Make the split anew: plaudit process."
            )
    try:
        settings = SplitSettings(**content["settings"])
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: 'settings' is damaged ({error}). Make the split anew: plaudit process.") from None
    return Split(content["split"], source, index, mine, rows, settings, content["counts"].get("dropped", {}))


def _rows(path: Path, id: str, values: Any) -> Rows:
    try:
        rows = np.array(values, np.int32).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        rows = np.array([-1], np.int32)
    if len(rows) and (rows[0] < 0 or (np.diff(rows) <= 0).any()):
        raise DataError(f"{path}: the rows of episode '{id}' do not ascend. Make the split anew: plaudit process.")
    return rows
