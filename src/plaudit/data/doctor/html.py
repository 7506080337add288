"""The diagnosis as a web page and as rows for a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plaudit.data.contact_sheet import gallery
from plaudit.data.doctor.checks import Diagnosis
from plaudit.data.doctor.issues import SPOILS, Finding, Spot
from plaudit.data.episode import Counts
from plaudit.errors import DataError
from plaudit.reporting import html as page

LISTED = 12
"""Spots that the page names of each finding."""


def write_diagnosis(path: str | Path, diagnosis: Diagnosis, *, seed: int = 0) -> None:
    """Writes the page: balance, findings with pictures, and random pictures of the data set."""
    source = diagnosis.source
    mood = "bad" if diagnosis.spoiled else "look" if diagnosis.findings else "good"
    rows = [[name, *balance_row(counts).values()] for name, counts in diagnosis.balance.items()]
    parts = [
        page.tag("h1", "Data set examined"),
        page.tag("p", f"{source.path} ({source.format})", "soft"),
        page.tag("p", diagnosis.summary, mood),
        page.bullets(list(source.notes)),
        page.tag("h2", "Balance"),
        page.table(["split", *balance_row(Counts())], rows),
        page.tag("h2", "Findings") if diagnosis.findings else "",
        *map(_card, diagnosis.findings),
        *_pictures(diagnosis, seed),
    ]
    page.write_page(path, f"Data set examined: {source.path.name}", parts)


def balance_row(counts: Counts) -> dict[str, str]:
    """How much there is, in words."""
    known = counts.frames - counts.unknown_frames
    return {
        "episodes": f"{counts.episodes:,}",
        "positive": f"{counts.positive:,}",
        "negative": f"{counts.negative:,}",
        "frames": f"{counts.frames:,}",
        "success": f"{counts.success_frames / known:.1%}" if known else "none",
    }


def where(spot: Spot) -> str:
    """One spot in words; its file, whose name is mostly that of the episode, is left out."""
    frames = ", ".join(map(str, spot.frames[:8])) + (" …" if len(spot.frames) > 8 else "")
    parts = [spot.episode, spot.detail, f"frame {frames}" if frames else ""]
    return ": ".join(part for part in parts if part)


def _card(finding: Finding) -> str:
    mood = "bad" if finding.severity == SPOILS else "look"
    spots = [where(spot) + (f" ({spot.file})" if spot.file else "") for spot in finding.spots[:LISTED]]
    if finding.places > len(spots):
        spots.append(f"and {finding.places - len(spots):,} more")
    return "\n".join(
        [
            "<section>",
            page.tag("h3", f"{finding.title}: {finding.amount}"),
            page.tag("p", finding.severity, mood),
            page.tag("p", finding.advice),
            page.bullets(spots),
            page.tiles(finding.tiles),
            "</section>",
        ]
    )


def _pictures(diagnosis: Diagnosis, seed: int) -> list[Any]:
    """Random pictures, where the data set is whole enough for them."""
    try:
        strips = gallery(diagnosis.source, seed=seed)
    except DataError as error:
        return [page.tag("h2", "Pictures"), page.tag("p", str(error), "soft")]
    return [page.tag("h2", "Pictures"), *map(page.strip, strips)]
