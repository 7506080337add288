"""From one layout of episodes to another."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from plaudit.episodes.episode import Episode, EpisodeSource
from plaudit.episodes.formats import FORMATS, EpisodeFormat, load_episodes, open_writer
from plaudit.errors import ConfigError, DataError

logger = logging.getLogger("plaudit")
T = TypeVar("T")

GROUP = 16
"""Episodes written together: a layout of one file is written anew with every group."""


def convert(
    source: Path,
    target: Path,
    format: str = "plaudit",
    *,
    source_format: str | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Writes the episodes of one place to another, and says what did not fit.

    What is at the target already stays, and those that are there are left alone: after an interruption the same command
    goes on.

    Args:
        source: Where they are.
        target: An empty or new folder, or one that this wrote.
        format: The target's layout.
        source_format: The source's layout; `None` finds out by looking.
        quiet: No progress display.

    Returns:
        What was written, was there, was left out and was lost.
    """
    _check_apart(source, target)
    layout: type[EpisodeFormat] = FORMATS.get(format)
    episodes = load_episodes(source, source_format)
    total = len(episodes)
    writer = open_writer(target, format)
    lost: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    written = there = 0
    for group in _groups(_shown(_each_once(episodes), total, quiet), GROUP):
        misfits = {episode.id: layout.misfit(episode) for episode in group}
        left_out.update(why for why in misfits.values() if why)
        fit = [episode for episode in group if not misfits[episode.id]]
        lost.update(text for episode in fit for text in layout.lost(episode))
        new = writer.add(fit)
        written, there = written + new, there + len(fit) - new
    if left_out and not written and not there:
        raise DataError(f"'{source}': none of the {total} episodes fits '{format}': {next(iter(left_out))}.")
    _tell(episodes, format, target, written, there, lost, left_out)
    return {
        "source": str(source),
        "source_format": episodes.format,
        "target": str(target),
        "format": format,
        "episodes": total,
        "written": written,
        "already_there": there,
        "left_out": dict(left_out),
        "lost": dict(lost),
        "notes": list(episodes.notes),
    }


def _check_apart(source: Path, target: Path) -> None:
    """Refuses to write among the files that are being read, or over them."""
    here, there = source.resolve(), target.resolve()
    if here == there:
        raise ConfigError(f"source and target are the same, '{source}'.")
    if here.is_relative_to(there) or there.is_relative_to(here):
        inner, outer = ("target", "source") if there.is_relative_to(here) else ("source", "target")
        raise ConfigError(
            f"the {inner} is within the {outer} ('{source}' and '{target}'), and what is written would be mixed with "
            "what is read; choose a target elsewhere."
        )


def _each_once(episodes: EpisodeSource) -> Iterator[Episode]:
    """Refuses two episodes of one name: the target would take the second for the first, and it would be lost."""
    seen = set()
    for episode in episodes:
        if episode.id in seen:
            raise DataError(f"'{episodes.path}' has two episodes called '{episode.id}'; rename one of their files.")
        seen.add(episode.id)
        yield episode


def _groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def _shown(episodes: Iterator[Episode], total: int, quiet: bool) -> Iterator[Episode]:
    """The episodes, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=quiet or not sys.stderr.isatty()) as progress:
        yield from progress.track(episodes, total, description="converting")


def _tell(
    episodes: EpisodeSource,
    format: str,
    target: Path,
    written: int,
    there: int,
    lost: Counter[str],
    left_out: Counter[str],
) -> None:
    """What happened, in words."""
    for note in episodes.notes:
        logger.info("note on %s: %s.", episodes.path, note)
    for count in sorted(set(lost.values()), reverse=True):
        things = "; ".join(text for text, times in lost.items() if times == count)
        logger.info("'%s' has no place for %s (%d of %d episodes).", format, things, count, len(episodes))
    for why, count in left_out.items():
        logger.info("%d of %d episodes left out: %s.", count, len(episodes), why)
    known = f", {there} were there already" if there else ""
    origin, place = f"'{episodes.path}' ({episodes.format})", f"'{target}' ({format})"
    logger.info("%d episodes written from %s to %s%s.", written, origin, place, known)
