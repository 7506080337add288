"""Convert, split and check data sets."""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from plaudit.data.doctor import SPOILS, Finding, diagnose
from plaudit.data.doctor.html import balance_row, where, write_diagnosis
from plaudit.data.episode import Counts, Episode, EpisodeSource
from plaudit.data.formats import FORMATS, EpisodeFormat, load_episodes, open_writer
from plaudit.data.frame_selection import without_still_steps
from plaudit.data.split import Split, SplitSettings, split_episodes
from plaudit.data.split_files import earlier_assignment, read_members, save_splits
from plaudit.errors import ConfigError, DataError
from plaudit.reporting.progress import show_table, track

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


DEFAULT = "default"
"""The name of a data set's own splits; others are found by their path."""


def process(path: Path, *, format: str | None = None, out: Path | None = None, **settings: Any) -> dict[str, Any]:
    """Divides a data set into training, validation and test by episode, and writes the manifests.

    Args:
        path: The data set.
        format: Its layout; `None` finds out by looking.
        out: Folder for the manifests; by default `splits/default` in the data set, or beside it where that is a file.
        settings: Fields of `SplitSettings`; those that are left out have their defaults.
    """
    try:
        wanted = SplitSettings(**settings)
    except ValueError as error:
        raise ConfigError(f"{error}.") from None
    source = load_episodes(path, format)
    folder = out or home_of_splits(source)
    earlier = earlier_assignment(folder, wanted)
    splits = split_episodes(source, wanted, earlier)
    save_splits(folder, splits)
    _tell_splits(source, splits, earlier, folder)
    return {
        "data": str(source.path),
        "format": source.format,
        "splits": str(folder),
        **{name: _counts(split.counts, split) for name, split in splits.items()},
        "notes": list(source.notes),
    }


def doctor(
    path: Path, *, format: str | None = None, splits: Path | None = None, out: Path | None = None, quiet: bool = False
) -> dict[str, Any]:
    """Examines a data set, with its splits where there are any.

    Args:
        path: The data set.
        format: Its layout; `None` finds out by looking.
        splits: Folder of the manifests; by default the data set's own, if it has some.
        out: A web page to write.
        quiet: No progress bar.

    Returns:
        The findings, with `exit_code` 1 where something would spoil a fit.
    """
    source = load_episodes(path, format)
    home = home_of_splits(source)
    folder = splits or (home if home.is_dir() else None)
    members = None if folder is None else read_members(folder, source)
    diagnosis = diagnose(source, members, lambda items: track(items, "examining", quiet=quiet))
    for note in source.notes:
        logger.info("note: %s.", note)
    _show_balance(diagnosis.balance.items())
    _show_findings(diagnosis.findings)
    print(f"{source.path}: {diagnosis.summary}")
    if out is not None:
        write_diagnosis(out, diagnosis)
        logger.info("page with pictures: %s", out)
    return {
        "data": str(source.path),
        "format": source.format,
        "splits": None if folder is None else str(folder),
        "balance": {name: _counts(counts) for name, counts in diagnosis.balance.items()},
        "findings": [finding.as_dict() for finding in diagnosis.findings],
        "page": None if out is None else str(out),
        "exit_code": int(diagnosis.spoiled),
    }


def process_realworld(path: Path) -> Path:
    """Process a raw `data.pkl` as RLinf's real-world guide does: drop idle steps and write the episodes beside it.

    Returns:
        The folder `collected_data`.
    """
    source = load_episodes(path, "realworld_raw")
    folder = source.path.parent / "collected_data"
    episodes = [without_still_steps(episode) for episode in source]
    new = open_writer(folder, "realworld").add(episodes)
    before, after = (sum(episode.length for episode in some) for some in (source, episodes))
    positive = sum(episode.positive for episode in episodes)
    logger.info(
        "%d episodes (%d successes), of whose %d steps %d stand still and were left out; %d are new in %s.",
        len(episodes),
        positive,
        before,
        before - after,
        new,
        folder,
    )
    return folder


def home_of_splits(source: EpisodeSource) -> Path:
    """Where the splits of a data set are: in its folder, or beside its file."""
    path = source.path
    return path / "splits" / DEFAULT if path.is_dir() else path.parent / "splits" / path.stem


def _counts(counts: Counts, split: Split | None = None) -> dict[str, Any]:
    known = counts.frames - counts.unknown_frames
    share = counts.success_frames / known if known else None
    more = {} if split is None else {"dropped": dict(split.dropped)}
    return {"episodes": counts.episodes, **asdict(counts), "success_share": share, **more}


def _tell_splits(source: EpisodeSource, splits: dict[str, Split], earlier: dict[str, str], folder: Path) -> None:
    for note in source.notes:
        logger.info("note: %s.", note)
    _show_balance((name, split.counts) for name, split in splits.items())
    kept = sum(summary.id in earlier for split in splits.values() for summary in split.summaries)
    if kept:
        logger.info("%d episodes stay in the split that they were in.", kept)
    for name, split in splits.items():
        for why, count in split.dropped.items():
            logger.info("%s: %s frames left out: %s.", name, f"{count:,}", why)
    logger.info("splits: %s", folder)


def _show_balance(splits: Iterable[tuple[str, Counts]]) -> None:
    columns = list(balance_row(Counts()))
    rows = [[name, *balance_row(counts).values()] for name, counts in splits]
    show_table(["split", *columns], rows, right=columns)


def _show_findings(findings: Iterable[Finding]) -> None:
    rows = []
    for finding in findings:
        more = f"\nand {finding.places - 2:,} more" if finding.places > 2 else ""
        spots = "\n".join(where(spot) for spot in finding.spots[:2]) + more
        mark = "SPOILS A FIT" if finding.severity == SPOILS else finding.severity
        rows.append([mark, f"{finding.title}: {finding.amount}", spots, finding.advice])
    if rows:
        show_table(["", "what", "where", "what to do"], rows, rule=True)
