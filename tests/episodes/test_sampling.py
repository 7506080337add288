"""Which frames are kept."""

from __future__ import annotations

import numpy as np
import pytest

from plaudit.data.frame_selection import Selection, importance, is_whole


def selected(labels: list[int], count: int | None, id: str = "a") -> list[int]:
    """Instants that are kept of an episode with these labels."""
    selection: Selection[str] = Selection(id, count)
    around = np.array([labels[0], *labels, labels[-1]], np.int8)
    weights = importance(around[:-2], around[1:-1], around[2:])
    weights[-1:] = importance(around[-3:-2], around[-2:-1], around[-1:], last=True)
    for instant, weight in enumerate(weights):
        selection.offer(instant, weight, lambda instant=instant: f"picture {instant}")
    kept = selection.pictures()
    assert all(picture == f"picture {instant}" for instant, picture in kept.items())
    return list(kept)


def test_both_sides_of_a_change_and_the_last_frame_come_first() -> None:
    labels = [0] * 20 + [1] * 3 + [0] * 20
    assert selected(labels, 1) == [42]
    assert selected(labels, 5) == [19, 20, 22, 23, 42]
    for id in "abcdef":
        assert {19, 20, 22, 23, 42} < set(selected(labels, 8, id))


def test_a_frame_without_a_label_comes_last() -> None:
    labels = [-1] * 30 + [0] * 5
    assert selected(labels, 5) == [30, 31, 32, 33, 34]
    assert len(selected(labels, 6)) == 6
    assert selected([0] * 5 + [-1] * 30, 5) == [0, 1, 2, 3, 4]
    assert selected([0] * 5 + [-1] * 30, 6) == [0, 1, 2, 3, 4, 34]
    assert selected([-1] * 30, 1) == [29]


def test_what_is_next_to_the_unknown_matters_like_a_change() -> None:
    """Failure, then a while in which nobody can tell, then success: the last failure and the first success."""
    labels = [0] * 20 + [-1] * 5 + [1] * 20
    assert selected(labels, 3) == [19, 25, 44]


def test_all_are_kept_where_there_is_no_limit_or_room_for_all() -> None:
    labels = [-1, 0, 0, 1]
    assert selected(labels, None) == selected(labels, 4) == selected(labels, 9) == [0, 1, 2, 3]


def test_the_lot_depends_on_the_id_alone() -> None:
    labels = [0] * 50
    assert selected(labels, 6) == selected(labels, 6)
    assert selected(labels, 6) != selected(labels, 6, "b")
    kept = np.concatenate([selected(labels, 6, str(i)) for i in range(400)])
    counts = np.bincount(kept, minlength=50)
    assert counts[49] == 400 and counts[:49].sum() == 5 * 400
    assert counts[:49].min() > 15 and counts[:49].max() < 75  # Even: 41 each, give or take.


@pytest.mark.parametrize("count", [1, 3, 7])
def test_few_are_ever_held(count: int) -> None:
    selection: Selection[int] = Selection("a", count)
    for instant in range(100):
        selection.offer(instant, 1.0, lambda instant=instant: instant)
        assert len(selection.pictures()) <= count


def test_a_share_of_the_episodes_is_whole() -> None:
    names = [f"PushCube-s0-w0-e{i}" for i in range(2000)]
    assert 0.27 < np.mean([is_whole(name, 0.3) for name in names]) < 0.33
    assert not any(is_whole(name, 0.0) for name in names) and all(is_whole(name, 1.0) for name in names)
