"""What the doctor can find, how bad it is, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from plaudit.reporting.contact_sheet import Tile

Severity = Literal["spoils a fit", "worth a look"]
SPOILS: Severity = "spoils a fit"
LOOK: Severity = "worth a look"

MANY = 0.05
"""The share of frames, or of episodes, from which on a fault that a fit would survive spoils it."""

FEWEST_SUSPICIONS = 3
"""Suspicions that confirm each other, where they are also `MANY`."""

MOST_SPOTS = 100
"""Places that are named of one kind; the rest is counted."""

MOST_TILES = 8
"""Pictures that are kept of one kind."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        title: A few words.
        why: What it does to a fit, and what to do about it.
        severity: Always the same, or `None` where it depends on how much of the data is affected.
    """

    title: str
    why: str
    severity: Severity | None = None


KINDS = {
    "unreadable": Kind(
        "files that do not load",
        "A fit stops at them. Delete them or restore them from a copy.",
        SPOILS,
    ),
    "one_class": Kind(
        "only one kind of label",
        "A model cannot learn a difference that it never sees. Collect the other kind, or split anew.",
        SPOILS,
    ),
    "cameras": Kind(
        "cameras or sizes that differ",
        "A batch needs the same cameras in the same size. Remove the odd ones, or keep them apart.",
        SPOILS,
    ),
    "two_splits": Kind(
        "episodes in more than one split",
        "What is trained on cannot judge. Make the splits anew: plaudit process.",
        SPOILS,
    ),
    "copies_across": Kind(
        "the same pictures in two splits",
        "Held-out figures would be too good. Remove one of the two, then split anew: plaudit process.",
        SPOILS,
    ),
    "gone": Kind(
        "episodes of a split that are not there",
        "The splits are older than the data. Make them anew: plaudit process.",
        SPOILS,
    ),
    "unsplit": Kind(
        "episodes in no split",
        "They were added since, and nothing uses them. Run plaudit process again; the others stay where they are.",
        LOOK,
    ),
    "copies": Kind(
        "episodes that are there twice",
        "They count double, and may end up in two splits. Remove one of the two.",
        LOOK,
    ),
    "wrong_end": Kind(
        "last frames that show the next episode",
        "The picture is of the reset that follows, the label is not. Take the final observation, not the next one.",
    ),
    "contradiction": Kind(
        "episodes whose outcome and labels disagree",
        "One of the two is wrong. Look at the pictures, then correct or remove the episode.",
    ),
    "frozen": Kind(
        "frozen cameras",
        "The robot moves and the picture does not, so labels belong to other pictures. Check the camera; remove these.",
    ),
    "dark": Kind("dark frames", "There is nothing to see. Check the light and the camera; remove these episodes."),
    "blown_out": Kind("blown-out frames", "There is nothing to see. Check the exposure; remove these episodes."),
    "blank": Kind("blank frames", "All of the picture is one colour. Check the camera; remove these episodes."),
    "glitch": Kind(
        "frames unlike those before and after",
        "Torn or noisy pictures, or some of another episode. Look at them; remove the episodes if they are broken.",
    ),
    "flicker": Kind(
        "labels that flicker",
        "Success comes and goes, so frames that look alike have both labels. Hold success for some steps, or relabel.",
        LOOK,
    ),
    "ends_failing": Kind(
        "successes that end in failure",
        "Right only if the success was lost again; often the last frames were not labelled. Look at them.",
        LOOK,
    ),
    "unknown": Kind("frames without a label", "A fit leaves them out. Label them, or ignore this.", LOOK),
    "imbalance": Kind(
        "few labels of one kind",
        "Accuracy says little here. Collect more of the rare kind, or set fail_success_ratio.",
        LOOK,
    ),
    "not_finite": Kind(
        "numbers that are not finite",
        "Pictures and labels are whole, but learning from these actions or states would fail. Remove the episodes.",
        LOOK,
    ),
}
"""Every kind of fault, in the order in which they are told."""


@dataclass(frozen=True)
class Spot:
    """One place where something was found.

    Attributes:
        episode: Its id, or the file's name where the episode does not load.
        detail: What exactly.
        frames: Instants.
        file: Where it is on the disk, where that is known.
    """

    episode: str
    detail: str = ""
    frames: tuple[int, ...] = ()
    file: str = ""


@dataclass(frozen=True)
class Finding:
    """All that was found of one kind.

    Attributes:
        kind: Key of `KINDS`.
        severity: How bad it is.
        count: How many frames or episodes; `unit` says which.
        unit: What is counted.
        spots: Where, the first of them.
        places: How many spots there are in all.
        tiles: Pictures of some.
    """

    kind: str
    severity: Severity
    count: int
    unit: str
    spots: Sequence[Spot]
    places: int
    tiles: Sequence[Tile] = ()

    @property
    def title(self) -> str:
        """In a few words."""
        return KINDS[self.kind].title

    @property
    def amount(self) -> str:
        """How many, in words."""
        return f"{self.count:,} {self.unit if self.count != 1 else self.unit.removesuffix('s')}"

    @property
    def advice(self) -> str:
        """What to do about it."""
        return KINDS[self.kind].why

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        spots = [
            {"episode": spot.episode, "detail": spot.detail, "frames": list(spot.frames), "file": spot.file}
            for spot in self.spots
        ]
        return {
            "kind": self.kind,
            "severity": self.severity,
            "title": self.title,
            "count": self.count,
            "unit": self.unit,
            "places": self.places,
            "advice": self.advice,
            "where": spots,
        }


@dataclass
class _Open:
    """A finding while more of it may come."""

    count: int = 0
    unit: str = "episodes"
    spots: list[Spot] = field(default_factory=list)
    places: int = 0
    tiles: list[Tile] = field(default_factory=list)

    def take(self, spots: Sequence[Spot], count: int, places: int, tiles: Sequence[Tile]) -> None:
        """Adds to it, as long as there is room for more."""
        self.count += count
        self.places += places
        self.spots += spots[: MOST_SPOTS - len(self.spots)]
        self.tiles += tiles[: MOST_TILES - len(self.tiles)]


class Notebook:
    """Collects what is found. Its size does not grow with the data set."""

    def __init__(self) -> None:
        self._sure: dict[str, _Open] = {}
        self._suspected: dict[str, _Open] = {}

    def add(
        self,
        kind: str,
        spot: Spot,
        *,
        frames: int | None = None,
        unit: str = "episodes",
        tiles: Sequence[Tile] = (),
        suspicion: bool = False,
    ) -> None:
        """Notes one spot.

        Args:
            kind: Key of `KINDS`.
            spot: Where it is.
            frames: How many frames are affected; `None` where it is something as a whole.
            unit: What that is.
            tiles: Pictures of it.
            suspicion: It counts only if there are many of this kind, since some come about by chance.
        """
        entries = self._suspected if suspicion else self._sure
        entry = entries.setdefault(kind, _Open(unit=unit if frames is None else "frames"))
        entry.take([spot], 1 if frames is None else frames, 1, tiles)

    def wants_tiles(self, kind: str) -> bool:
        """Whether there is room for more pictures of a kind."""
        return all(
            len(entries[kind].tiles) < MOST_TILES for entries in (self._sure, self._suspected) if kind in entries
        )

    def findings(self, episodes: int, frames: int) -> list[Finding]:
        """All findings, the worst first, given how many episodes and frames there are."""
        totals = {"episodes": episodes, "frames": frames}
        for kind, more in self._suspected.items():
            if more.places >= FEWEST_SUSPICIONS and more.count >= MANY * totals[more.unit]:
                entry = self._sure.setdefault(kind, _Open(unit=more.unit))
                entry.take(more.spots, more.count, more.places, more.tiles)
        found = []
        for kind in (kind for kind in KINDS if kind in self._sure):
            entry = self._sure[kind]
            severity = KINDS[kind].severity
            if severity is None:
                severity = SPOILS if entry.count >= MANY * totals[entry.unit] else LOOK
            found.append(Finding(kind, severity, entry.count, entry.unit, entry.spots, entry.places, entry.tiles))
        return sorted(found, key=lambda finding: finding.severity != SPOILS)
