"""Figures of a reward model: that they come out whatever the numbers are, and show what they were given."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from plaudit.errors import OutputError
from plaudit.reporting import reward_figures
from plaudit.reporting.reward_figures import (
    Track,
    draw_precision_recall,
    draw_reliability,
    draw_roc,
    draw_timelines,
    shorten,
    shown,
)

BLUE, VERMILION, GROUND = (0, 114, 178), (213, 94, 0), (207, 232, 247)


@pytest.fixture(autouse=True)
def strict() -> Any:
    """A layout that does not fit is only a warning of matplotlib's."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout")
        yield


def picture(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def pixels(path: Path, colour: tuple[int, int, int]) -> int:
    """How many pixels have a colour exactly."""
    return int((picture(path) == colour).all(-1).sum())


@pytest.mark.parametrize("chosen", [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.003, 0.97)])
def test_roc(chosen: tuple[float, float], tmp_path: Path) -> None:
    path = tmp_path / "new" / "roc.png"
    draw_roc(path, np.array([0, 0, 0.01, 1]), np.array([0, 0.9, 1, 1]), auc=0.99, chosen=chosen)
    assert pixels(path, BLUE) > 200 and pixels(path, VERMILION) > 50


@pytest.mark.parametrize(("chosen", "width"), [((0.97, 0.99), 1045), ((0.2, 0.9), 605), ((0.0, math.nan), 605)])
def test_precision_recall(chosen: tuple[float, float], width: int, tmp_path: Path) -> None:
    path = tmp_path / "pr.png"
    draw_precision_recall(path, np.array([0.5, 1]), np.array([1, 0.4]), average=0.7, chosen=chosen, successes=0.4)
    assert picture(path).shape[1] == width  # A second panel where there is a corner to look into.
    assert pixels(path, BLUE) > 200
    assert (pixels(path, VERMILION) > 50) == (not math.isnan(chosen[1]))


@pytest.mark.parametrize("counts", [[5], [0, 1, 2000], [100] * 15])
def test_reliability(counts: list[int], tmp_path: Path) -> None:
    count = np.array(counts)
    said = np.where(count > 0, (np.arange(len(count)) + 0.5) / len(count), math.nan)
    draw_reliability(tmp_path / "reliability.png", said, said**2, count, ece=0.1)
    assert pixels(tmp_path / "reliability.png", BLUE) > 500


def track(p: list[float], success: list[int], fired: list[int]) -> Track:
    return Track("episode", np.arange(len(p)) * 3, np.array(p), np.array(success, bool), np.array(fired, bool))


def ground_and_marks(path: Path, one: Track) -> tuple[int, int]:
    draw_timelines(path, [one], threshold=0.5, title="")
    return pixels(path, GROUND), pixels(path, VERMILION)


def test_timelines_show_truth_and_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "timelines.png"
    plain, legend = ground_and_marks(path, track([0.1, 0.2, 0.1], [0, 0, 0], [0, 0, 0]))
    ground, marks = ground_and_marks(path, track([0.1, 0.9, 0.9], [0, 0, 1], [0, 1, 1]))
    assert ground > plain + 1000 and marks > legend
    right, none = ground_and_marks(path, track([0.1, 0.2, 0.9], [0, 0, 1], [0, 0, 1]))
    assert right > plain + 1000 and none == legend


@pytest.mark.parametrize("count", [1, 5, 24])
def test_any_number_of_timelines(count: int, tmp_path: Path) -> None:
    tracks = [track([0.5, 0.4], [index % 2, 0], [1, 0]) for index in range(count)]
    draw_timelines(
        tmp_path / "timelines.png", tracks, threshold=0.1, title="A title that is as long as such titles are"
    )
    assert pixels(tmp_path / "timelines.png", BLUE) > 10 * count


@pytest.mark.parametrize("count", [0, 25])
def test_not_too_many_and_not_none(count: int, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=f"1 to 24 episodes, not {count}"):
        draw_timelines(tmp_path / "timelines.png", [track([0.5], [0], [0])] * count, threshold=0.5, title="")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("instants", "edges"), [([4], [3.5, 4.5]), ([0, 1, 2], [-0.5, 0.5, 1.5, 2.5]), ([0, 10], [-0.5, 5, 10.5])]
)
def test_ground_reaches_half_way_to_the_next_frame(instants: list[int], edges: list[float]) -> None:
    found: NDArray[np.float64] = reward_figures._edges(np.array(instants))
    assert found.tolist() == edges


@pytest.mark.parametrize(
    ("probability", "text"),
    [
        (0.5, "0.500"),
        (0.8073, "0.807"),
        (0.9933, "0.9933"),
        (0.99993, "0.999930"),
        (1.0, "1.000"),
        (3e-7, "0.00000030"),
    ],
)
def test_probabilities_are_told_from_certainty(probability: float, text: str) -> None:
    assert shown(probability) == text


def test_shorten() -> None:
    assert shorten("short", 5) == "short"
    assert shorten("push_cube_seed3_000017", 13) == "push…3_000017"
    assert len(shorten("a" * 100, 20)) == 20
