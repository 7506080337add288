"""Data sets on their way to a fit: divided, thinned out and examined."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plaudit.episodes.doctor import SPOILS, Finding, diagnose
from plaudit.episodes.doctor.page import balance_row, where, write_diagnosis
from plaudit.episodes.episode import Counts, EpisodeSource
from plaudit.episodes.formats import load_episodes, open_writer
from plaudit.episodes.manifests import earlier_assignment, read_members, save_splits
from plaudit.episodes.split import Split, SplitSettings, split_episodes
from plaudit.episodes.stationary import without_still_steps
from plaudit.errors import ConfigError
from plaudit.report.tables import show_table, track

logger = logging.getLogger("plaudit")

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
    """Seed 002's processing: takes steps that stand still out of a raw `data.pkl`, and writes the episodes beside it.

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
