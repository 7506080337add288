"""What labels say of themselves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plaudit.data.contact_sheet import changes, tile
from plaudit.data.doctor.issues import Notebook, Spot
from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Episode

FLICKER = 4
"""Changes of label in an episode beyond which they flicker."""

HOVER = 3
"""A simulator's labels are exact, and a robot that hovers at the edge of success makes them change honestly: with them
it is flicker only where they change in more than one of so many steps."""


def check_labels(episode: Episode, file: str, notes: Notebook) -> None:
    """Notes labels that are missing, flicker, or do not fit the episode's outcome."""
    labels = episode.labels
    # Of the reset many layouts do not say; it is not counted. A simulator that does not say has its reasons, such as a
    # success that no picture shows yet; only many of them are a fault.
    unknown = int(((labels == UNKNOWN) & (episode.frame_index > 0)).sum())
    if unknown:
        spot = Spot(episode.id, f"{unknown} of {len(labels)} frames", file=file)
        notes.add("unknown", spot, frames=unknown, suspicion=episode.label_source == "simulator")
    _check_flicker(episode, file, notes)
    _check_outcome(episode, file, notes)
    broken = [name for name in ("state", "actions", "rewards") if not _finite(episode, name)]
    if broken:
        notes.add("not_finite", Spot(episode.id, " and ".join(broken), file=file))


def _check_flicker(episode: Episode, file: str, notes: Notebook) -> None:
    rows = changes(episode.labels)
    limit = max(FLICKER, episode.length // HOVER) if episode.label_source == "simulator" else FLICKER
    if len(rows) > limit:
        _note(episode, "flicker", rows, f"{len(rows)} changes", file, notes)


def _check_outcome(episode: Episode, file: str, notes: Notebook) -> None:
    """Outcome against labels, and successes that are lost at the very end."""
    labels = episode.labels
    success = np.flatnonzero(labels == SUCCESS)
    last = np.array([len(labels) - 1])
    whole = len(labels) >= episode.length and not (labels[episode.frame_index > 0] == UNKNOWN).any()
    if episode.success is False and len(success):
        _note(episode, "contradiction", success, "the outcome is failure, some labels are success", file, notes)
    elif episode.success and not len(success) and whole:
        _note(episode, "contradiction", last, "the outcome is success, but no label of any step is", file, notes)
    elif episode.label_source != "simulator" and len(success) and labels[-1] == FAILURE:
        rows = np.arange(success[-1], len(labels))
        _note(episode, "ends_failing", rows, f"failure in the last {len(rows) - 1}", file, notes)


def _note(episode: Episode, kind: str, rows: NDArray[np.intp], detail: str, file: str, notes: Notebook) -> None:
    instants = tuple(episode.frame_index[rows].tolist())
    tiles = [tile(episode, row) for row in rows[:4].tolist()] if notes.wants_tiles(kind) else []
    notes.add(kind, Spot(episode.id, detail, instants, file), tiles=tiles)


def _finite(episode: Episode, name: str) -> bool:
    """Whether all numbers of a kind are; a row that is NaN as a whole was not recorded, and is no fault."""
    values = getattr(episode, name)
    if values is None:
        return True
    rows = values.reshape(len(values), -1)
    return bool((np.isfinite(rows).all(1) | np.isnan(rows).all(1)).all())
