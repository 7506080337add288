"""Which frames of a data set a person should look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Episode, EpisodeSource, Frames
from plaudit.reporting.contact_sheet import BAD, GOOD, UNSURE, Strip, Tile, enlarge, write_sheet

WORDS = {SUCCESS: "success", FAILURE: "failure", UNKNOWN: "unknown"}
COLOURS = {SUCCESS: GOOD, FAILURE: BAD, UNKNOWN: UNSURE}


def contact_sheet(path: str | Path, source: EpisodeSource, *, count: int = 8, seed: int = 0) -> None:
    """Writes a PNG of a data set: random positives and negatives at their end, and label changes.

    Args:
        path: Where to; folders are made.
        source: The episodes. Only those that are shown are opened.
        count: Tiles in each row.
        seed: Draws which ones.
    """
    write_sheet(path, gallery(source, count=count, seed=seed))


def gallery(source: EpisodeSource, *, count: int = 8, seed: int = 0) -> list[Strip]:
    """The rows of a contact sheet; one is empty where there is nothing of its kind."""
    summaries = source.summaries()
    random = np.random.default_rng(seed)
    positive = np.array([summary.positive for summary in summaries], bool)
    changing = np.array([len(changes(summary.labels)) > 0 for summary in summaries], bool)

    def draw(which: NDArray[np.bool_], most: int) -> list[int]:
        there = np.flatnonzero(which)
        return sorted(random.choice(there, min(most, len(there)), replace=False).tolist())

    pairs: list[Tile] = []
    for index in draw(changing, max(1, count // 2)):
        row = int(random.choice(changes(summaries[index].labels)))
        pairs += [tile(source[index], at) for at in (row - 1, row)]
    return [
        Strip("Positives: last success", [_last_success(source[i]) for i in draw(positive, count)]),
        Strip("Negatives: last frame", [tile(source[i], -1) for i in draw(~positive, count)]),
        Strip("Label changes: before and after", pairs, group=2),
    ]


def changes(labels: NDArray[np.int8]) -> NDArray[np.intp]:
    """Rows whose label is known and another than that of the known row before them."""
    known = np.flatnonzero(labels != UNKNOWN)
    rows: NDArray[np.intp] = known[1:][np.diff(labels[known]) != 0]
    return rows


def tile(episode: Episode, row: int, camera: str | None = None) -> Tile:
    """One frame with its episode, instant and label below it: of one camera, or of all side by side."""
    row %= len(episode)
    cameras = episode.cameras if camera is None else (camera,)
    label = int(episode.labels[row])
    caption = (episode.id, f"frame {episode.frame_index[row]}/{episode.length}, {WORDS[label]}")
    return Tile(_beside([episode.frames[name][row] for name in cameras]), caption, COLOURS[label])


def _last_success(episode: Episode) -> Tile:
    """The last frame that shows success: a positive may end in failure, and may have none among the frames kept."""
    rows = np.flatnonzero(episode.labels == SUCCESS)
    return tile(episode, int(rows[-1]) if len(rows) else -1)


def _beside(frames: Sequence[Frames]) -> Frames:
    """Pictures of several cameras as one, each blown up to about the same height."""
    if len(frames) == 1:
        return np.array(frames[0])  # A copy, so that one picture does not hold on to the whole episode.
    large = [enlarge(frame) for frame in frames]
    height = max(frame.shape[0] for frame in large)
    padded = [np.pad(frame, ((0, height - frame.shape[0]), (0, 2), (0, 0))) for frame in large]
    return np.concatenate(padded, axis=1)[:, :-2]
