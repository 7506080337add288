"""What pictures say of themselves: too dark, too bright, empty, torn, frozen, or of another episode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from plaudit.data.contact_sheet import tile
from plaudit.data.doctor.issues import Notebook, Spot
from plaudit.data.episode import Episode
from plaudit.data.image_hashing import Thumbnails

DARK, BRIGHT = 12.0, 243.0
"""Mean grey levels beyond which there is nothing to see."""

BLANK = 3.0
"""Grey levels within which a picture is one colour."""

TORN, NOISY = 15.0, 6.0
"""Mean grey levels by which a frame must differ from those a step before and after it to be torn; fewer are enough
where it is also rougher than they are, and..."""

ROUGHER = 1.5
"""...so many times as rough. A robot that shakes moves much of a wrist camera's picture, but roughens nothing."""

UNLIKE = 4.0
"""In any case it must be this many times what frames of the episode usually differ by."""

JUMP = 2.5
"""A last frame that differs so many times more than any other from the one before it is of another episode. If it does
so at all, that is a suspicion, which many episodes together confirm."""

REPEATS = 3
"""Repeats of a frame, one after the other, from which on a camera may be frozen."""

FAR = 1.25
"""The robot moves under a frozen picture where its state ends up so many large steps away..."""

MANY = 0.25
"""...in this share of its numbers: one alone may be a clock. The way is not added up either: a robot that is held in
place shakes, and a picture need not show that."""

BUSY = 0.8
"""Where only actions are known, they must be this large beside those that change the picture: an action may be large
and move nothing, such as one that keeps the gripper closed."""

Rows = NDArray[np.intp]
Bools = NDArray[np.bool_]


def check_pictures(
    episode: Episode,
    camera: str,
    small: Thumbnails,
    usual: NDArray[np.float64] | None,
    file: str,
    notes: Notebook,
) -> None:
    """Notes what is wrong with one camera's frames, given their thumbnails (n, h, w) and usual steps of the state."""
    mean, low, high = small.mean((1, 2)), small.min((1, 2)), small.max((1, 2))
    blank = high - low < BLANK
    found = {
        "dark": np.flatnonzero(mean < DARK),
        "blown_out": np.flatnonzero(mean > BRIGHT),
        "blank": np.flatnonzero(blank & (mean >= DARK) & (mean <= BRIGHT)),
    }
    steps = np.abs(np.diff(small, axis=0)).mean((1, 2))
    good = (mean >= DARK) & (mean <= BRIGHT) & ~blank
    found["glitch"] = torn(episode.frame_index, small, steps, good)
    found["frozen"], certain = frozen(episode, camera, steps, usual)
    for kind, rows in found.items():
        if len(rows):
            instants = tuple(episode.frame_index[rows].tolist())
            tiles = [tile(episode, row, camera) for row in rows[:2].tolist()] if notes.wants_tiles(kind) else []
            spot, suspicion = Spot(episode.id, camera, instants, file), kind == "frozen" and not certain
            notes.add(kind, spot, frames=len(rows), tiles=tiles, suspicion=suspicion)


def torn(index: NDArray[np.int32], small: Thumbnails, steps: NDArray[np.float32], good: Bools) -> Rows:
    """Frames that differ much from those a step before and after them, which are like each other.

    Frames that are further apart say nothing: in the meantime a robot can go anywhere and come back.

    Args:
        index: Their instants (n,).
        small: Thumbnails (n, h, w).
        steps: Mean differences (n - 1,) of one from the next.
        good: Which frames, (n,), are not empty, which is a fault of its own.
    """
    if len(small) < 3:
        return np.zeros(0, np.intp)
    odd = np.minimum(steps[:-1], steps[1:])
    around = np.abs(small[2:] - small[:-2]).mean((1, 2))
    rough = np.abs(np.diff(small, axis=2)).mean((1, 2))
    limit = np.where(rough[1:-1] > ROUGHER * np.maximum(rough[:-2], rough[2:]), NOISY, TORN)
    limit = np.maximum(limit, UNLIKE * float(np.median(around)))
    close = index[2:] - index[:-2] == 2
    return 1 + np.flatnonzero((odd > limit) & (around < 0.5 * odd) & good[1:-1] & close)


def check_end(episode: Episode, small: Mapping[str, Thumbnails], file: str, notes: Notebook) -> None:
    """Notes a last frame that shows the next episode: it jumps away from the one before it, and back to the first.

    Args:
        episode: The episode.
        small: Camera to thumbnails (n, h, w).
        file: Where it is.
        notes: Where to write it down.
    """
    index = episode.frame_index
    if len(index) < 5 or index[0] != 0 or (np.diff(index) != 1).any():
        return
    jump, camera = max((_jump(pictures), camera) for camera, pictures in small.items())
    if jump > 1:
        spot = Spot(episode.id, camera, (int(index[-1]),), file)
        tiles = [tile(episode, row, camera) for row in (-2, -1)] if notes.wants_tiles("wrong_end") else []
        notes.add("wrong_end", spot, tiles=tiles, suspicion=jump < JUMP)


def _jump(small: Thumbnails) -> float:
    """How many times more the last frame differs from the one before it than others do; 0 if it is unlike the first."""
    steps = np.abs(np.diff(small, axis=0)).mean((1, 2))
    back = float(np.abs(small[-1] - small[0]).mean())
    usual = float(steps[:-1].max())
    return float(steps[-1]) / usual if usual > 0 and back < steps[-1] else 0.0


def frozen(
    episode: Episode, camera: str, steps: NDArray[np.float32], usual: NDArray[np.float64] | None
) -> tuple[Rows, bool]:
    """Frames that repeat the one before them while the robot moves, and whether that it moves is certain.

    Args:
        episode: The episode.
        camera: Whose frames.
        steps: Mean differences (n - 1,) of one thumbnail from the next.
        usual: How far each number of the state goes in a large step, (k,), where that is known.
    """
    pixels = episode.frames[camera]
    same = steps == 0
    alike = np.flatnonzero(same)
    same[alike] = [np.array_equal(pixels[row], pixels[row + 1]) for row in alike]
    runs = [(first, last) for first, last in _runs(same) if last - first >= REPEATS]
    state = episode.state_at(episode.frame_index)
    if state is not None and usual is not None and state.shape[1] == len(usual):
        runs = [run for run in runs if _went_far(state[run[1]] - state[run[0]], usual)]
    elif episode.actions is not None:
        size = np.abs(episode.actions).mean(1)
        runs = [run for run in runs if _is_busy(episode.frame_index, size, same, *run)]
    else:  # A robot that is done may well rest; only if it never moves is that suspicious.
        runs = runs if same.all() else []
    rows = [row for first, last in runs for row in range(first + 1, last + 1)]
    return np.array(rows, np.intp), state is not None or episode.actions is not None


def _went_far(way: NDArray[np.float32], usual: NDArray[np.float64]) -> bool:
    """Whether the state, of which some numbers never change, went far."""
    moving = usual > 0
    far = int((np.abs(way[moving]) > FAR * usual[moving]).sum())
    numbers = int(moving.sum())
    return far >= max(1, min(2, numbers - 1), MANY * numbers)


def _is_busy(index: NDArray[np.int32], size: NDArray[np.float32], same: Bools, first: int, last: int) -> bool:
    """Whether the actions from row `first` to row `last` are as large as those that change the picture.

    Args:
        index: Instants of the frames (n,).
        size: Of the actions (T,).
        same: Which frames (n - 1,) are equal to the next.
        first: A row.
        last: A later row.
    """
    steps = np.diff(index) == 1
    if not steps[first:last].all():  # In the time between, the actions may have taken each other back.
        return False
    changing = size[index[:-1][steps & ~same]]
    return bool(size[index[first] : index[last]].mean() > (BUSY * changing.mean() if len(changing) else 0))


def _runs(same: Bools) -> Iterator[tuple[int, int]]:
    """First and last row of each run of equal frames."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
