"""Episodes that a person is asked to label: pictures, and a list with an empty column.

    DIR/list.csv                                    file, episode, step, score, verdict, success
    DIR/<episode>_<step>_<camera>.png

The person fills in `success` with 1 or 0, or with ? where a picture does not tell. What is filled in is never touched.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Episode
from plaudit.errors import DataError
from plaudit.rewards.audit.frame_recorder import Watched
from plaudit.utils.atomic_io import whole_file

LIST = "list.csv"
COLUMNS = ("file", "episode", "step", "score", "verdict", "success")
MOST = 64
"""Episodes in a list, at most."""

WORDS = {
    **dict.fromkeys(("1", "yes", "y", "true", "success"), SUCCESS),
    **dict.fromkeys(("0", "no", "n", "false", "failure"), FAILURE),
    "?": UNKNOWN,
}
"""What a person may write."""

Row = dict[str, str]


def ask_for_labels(folder: Path, episodes: Sequence[Watched], *, anew: bool = False) -> int:
    """Adds episodes to the list in a folder, as far as there is room, and returns how many are in it. Half of the room
    is kept for those that the model calls a success.

    Args:
        folder: Where to.
        episodes: The most telling ones first.
        anew: Whether they may take the place of older ones for which nobody has filled in anything.
    """
    there = _by_episode(_read(folder)) if (folder / LIST).exists() else {}
    untouched = [name for name, rows in there.items() if anew and not _touched(rows)]
    room = _Room()
    for name, rows in there.items():
        if name not in untouched:
            room.take(_claimed(rows))
    new = [one for one in episodes if one.id not in there and room.take(one.claimed)]
    if not new:
        return len(there)
    # Their pictures stay, since somebody may be looking at them with an older list at hand.
    dropped = {name for name in untouched[::-1] if not room.take(_claimed(there[name]))}
    added = {one.id: _write_pictures(folder, one) for one in new}
    # Pictures take time to write, and somebody may have filled in something meanwhile.
    there = _by_episode(_read(folder)) if (folder / LIST).exists() else {}
    there = {name: rows for name, rows in there.items() if name not in dropped or _touched(rows)} | added
    with whole_file(folder / LIST) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        every = [row for rows in there.values() for row in rows]
        # A column of notes that a person has added stays.
        names = dict.fromkeys([*COLUMNS, *(name for row in every for name in row if name)])
        writer = csv.DictWriter(file, list(names), restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(every)
    return len(there)


class _Room:
    """Room in a list, half of it for what the model calls a success alone."""

    def __init__(self) -> None:
        self.left, self.for_others = MOST, MOST // 2

    def take(self, claimed: bool) -> bool:
        """Takes the room of one episode; returns whether there was any."""
        if self.left <= 0 or (not claimed and self.for_others <= 0):
            return False
        self.left -= 1
        self.for_others -= not claimed
        return True


def _by_episode(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["episode"], []).append(row)
    return groups


def _touched(rows: Sequence[Row]) -> bool:
    """Whether somebody has filled in any of an episode's rows."""
    return any(row["success"].strip() for row in rows)


def _claimed(rows: Sequence[Row]) -> bool:
    """Whether the model called any of an episode's rows a success."""
    return any(row["verdict"] == "success" for row in rows)


def read_labels(folder: str | Path) -> list[Episode]:
    """The episodes of a list that a person has filled in, with those labels. One of which a row is still empty waits.

    Args:
        folder: What `ask_for_labels` has filled. What is written there that is no label is a `DataError`.
    """
    folder = Path(folder)
    groups: dict[str, list[tuple[Row, int]]] = {}
    waiting = set()
    for number, row in enumerate(_read(folder), 2):
        word = row["success"].strip().lower()
        if not word:
            waiting.add(row["episode"])
            continue
        if word not in WORDS:
            raise DataError(
                f"{folder / LIST}, line {number}: success is '{row['success']}', but must be 1, 0, or ? where the "
                "picture does not tell."
            )
        groups.setdefault(row["episode"], []).append((row, WORDS[word]))
    return [_episode(folder, name, rows) for name, rows in groups.items() if name not in waiting]


def _write_pictures(folder: Path, one: Watched) -> list[Row]:
    from PIL import Image

    rows = []
    for moment in one.moments:
        names = {camera: _name(one.id, moment.instant, camera) for camera in moment.frames}
        for camera, pixels in moment.frames.items():
            with whole_file(folder / names[camera]) as temporary:
                Image.fromarray(np.ascontiguousarray(pixels)).save(temporary, format="PNG")
        score, verdict = f"{moment.logit:.3f}", "success" if moment.verdict else "failure"
        values = (next(iter(names.values())), one.id, str(moment.instant), score, verdict, "")
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def _name(episode: str, instant: int, camera: str) -> str:
    return f"{episode}_{instant:04d}_{camera}.png"


def _read(folder: Path) -> list[Row]:
    """The rows of a list, as text."""
    path = folder / LIST
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # Spreadsheets may put a mark before the text.
            reader = csv.DictReader(file)
            rows = [dict(row) for row in reader]
            given = reader.fieldnames or ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read: {error}.") from error
    missing = [name for name in COLUMNS if name not in given]
    if missing or any(None in row.values() for row in rows):
        what = f"the column '{missing[0]}'" if missing else "a value in some line"
        raise DataError(f"{path}: lacks {what}; it must have {', '.join(COLUMNS)}, with commas between them.")
    return rows


def _episode(folder: Path, name: str, rows: Sequence[tuple[Row, int]]) -> Episode:
    """An episode from its pictures and labels."""
    try:
        steps = np.array([int(row["step"]) for row, _ in rows], np.int32)
    except ValueError as error:
        raise DataError(f"{folder / LIST}: a step of episode '{name}' is no number: {error}.") from None
    prefix = f"{name}_{int(steps[0]):04d}_"
    cameras = sorted(path.name.removeprefix(prefix).removesuffix(".png") for path in folder.glob(f"{prefix}*.png"))
    order = np.argsort(steps)
    frames = {
        camera: np.stack([_picture(folder / _name(name, int(step), camera)) for step in steps[order]])
        for camera in cameras
    }
    labels = np.array([label for _, label in rows], np.int8)[order]
    return Episode(
        id=name,
        frames=frames,
        labels=labels,
        frame_index=steps[order],
        length=int(steps.max()),
        label_source="person",
        meta={"actor": "training"},
    ).check(folder / LIST)


def _picture(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read, but {LIST} names it: {error}.") from error
