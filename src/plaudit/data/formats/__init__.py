"""Formats of episodes on disk: Plaudit's own and those of other systems.

All of them can be read, and most of them written.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plaudit.data.episode import Episode, EpisodeSource, EpisodeWriter
from plaudit.data.formats.base import EpisodeFormat, LoadedSource
from plaudit.errors import ConfigError, DataError
from plaudit.registry import Registry

__all__ = ["FORMATS", "EpisodeFormat", "load_episodes", "lost", "open_writer", "register_format", "writable"]

FORMATS: Registry[EpisodeFormat] = Registry("format")
for _name, _target in {
    "episode_pkl": "episode_pkl:EpisodePklFormat",
    "hilserl": "hilserl:HilserlFormat",
    "images": "images:ImagesFormat",
    "npy": "npy:NpyFormat",
    "plaudit": "plaudit_store:PlauditFormat",
    "realworld": "realworld:RealworldFormat",
    "realworld_raw": "realworld_raw:RealworldRawFormat",
    "rlinf": "rlinf:RlinfFormat",
    "rlinf_pt": "rlinf:RlinfPtFormat",
}.items():
    FORMATS.add(_name, f"{__name__}.{_target}")

register_format = FORMATS.register
"""Decorator that registers a user-defined `EpisodeFormat`."""


def load_episodes(path: str | Path, format: str | None = None) -> EpisodeSource:
    """Return the episodes at a path, each of which is read on access.

    Args:
        path: A folder or a file.
        format: Name of the format; `None` detects it.

    Raises:
        DataError: The path does not exist, has no known format, or contains no episode.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise DataError(f"there is nothing at '{path}'.")

    episode_format: type[EpisodeFormat] = FORMATS.get(format if format is not None else _recognise(path))
    source = episode_format.read(path)

    # A `LoadedSource` reports that it is empty itself, once its file is read.
    if not isinstance(source, LoadedSource) and not len(source):
        raise DataError(f"there are no episodes in '{path}'.{_contents(path)}")
    return source


def open_writer(path: str | Path | None, format: str = "plaudit", **options: Any) -> EpisodeWriter:
    """Return a writer of episodes; existing episodes are kept and counted.

    Args:
        path: The folder; `None` if the options specify the locations instead.
        format: Name of the format.
        options: Options of the format, such as `positive_dir` and `negative_dir` of `npy`.
    """
    writer = FORMATS.get(format).writer
    if writer is None:
        raise ConfigError(f"format '{format}' is only read. Those that are written: {', '.join(writable())}.")

    # Check the options first, so that a `TypeError` within the writer is not mistaken for a wrong option.
    folder = None if path is None else Path(path).expanduser()
    try:
        inspect.signature(writer).bind(folder, **options)
    except TypeError as error:
        raise ConfigError(f"format '{format}': {error}.") from None

    opened: EpisodeWriter = writer(folder, **options)
    return opened


def writable() -> list[str]:
    """Return the names of the formats that can be written."""
    return [name for name in FORMATS.names() if FORMATS.get(name).writer is not None]


def lost(episodes: Iterable[Episode], format: str) -> dict[str, int]:
    """Describe what a format cannot store, with the number of episodes concerned."""
    episode_format: type[EpisodeFormat] = FORMATS.get(format)
    return dict(Counter(text for episode in episodes for text in episode_format.lost(episode)))


def _recognise(path: Path) -> str:
    """Return the name of the only format that matches a path."""
    try:
        matches = [name for name in FORMATS.names() if FORMATS.get(name).matches(path)]
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror}.") from None

    if len(matches) > 1:
        raise DataError(f"'{path}' could be read as {' or '.join(matches)}; say which format it is.")
    if not matches:
        known = "\n".join(f"  {name:<14} {FORMATS.get(name).about}" for name in FORMATS.names())
        raise DataError(f"'{path}' holds no episodes in a layout that is known.{_contents(path)} Known are:\n{known}")
    return matches[0]


def _contents(path: Path) -> str:
    """Describe the content of a path in a sentence, for an error message."""
    if not path.is_dir():
        return f" It is a file of {path.stat().st_size} bytes."
    entries = sorted(path.iterdir())
    folders = [entry.name for entry in entries if entry.is_dir()]
    kinds = Counter(entry.suffix or "without a suffix" for entry in entries if not entry.is_dir())
    parts = [f"the folder{'s' if len(folders) > 1 else ''} {', '.join(folders[:5])}"] if folders else []
    parts += [f"{count} file{'s' if count > 1 else ''} {kind}" for kind, count in kinds.most_common(5)]
    return f" It holds {' and '.join(parts)}." if parts else " It is empty."
