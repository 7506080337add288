from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from plaudit.episodes.episode import FAILURE, SUCCESS, UNKNOWN
from plaudit.errors import DataError
from plaudit.rewards.followed import Moment, Watched
from plaudit.rewards.label_list import LIST, MOST, ask_for_labels, read_labels


def watched(number: int, count: int = 2) -> Watched:
    random = np.random.default_rng(number)
    moments = [
        Moment(
            3 * (row + 1),
            {camera: random.integers(0, 256, (4, 6, 3), np.uint8) for camera in ("front", "side")},
            2.0 * row - 1,
            row > 0,
            UNKNOWN,
        )
        for row in range(count)
    ]
    return Watched(number, 0, 9, False, None, moments)


def fill(folder: Path, *words: str) -> None:
    """Writes into the last column of the first lines."""
    lines = (folder / LIST).read_text().splitlines()
    filled = [line + word for line, word in zip(lines[1:], words, strict=False)]
    (folder / LIST).write_text("\n".join([lines[0], *filled, *lines[1 + len(words) :]]) + "\n")


def test_what_a_person_fills_in_comes_back_as_episodes(tmp_path: Path) -> None:
    assert ask_for_labels(tmp_path, [watched(0), watched(1), watched(2)]) == 3
    head, first, *_ = (tmp_path / LIST).read_text().splitlines()
    assert head == "file,episode,step,score,verdict,success"
    assert first == "audit-e0000-000000_0003_front.png,audit-e0000-000000,3,-1.000,failure,"
    assert read_labels(tmp_path) == []
    fill(tmp_path, "0", "Yes", "?", "1", "1", "")
    one, two = read_labels(tmp_path)  # The third is not filled in yet.
    assert one.labels.tolist() == [FAILURE, SUCCESS] and two.labels.tolist() == [UNKNOWN, SUCCESS]
    assert one.frame_index.tolist() == [3, 6] and one.label_source == "person"
    for row, moment in enumerate(watched(0).moments):
        assert all(np.array_equal(one.frames[camera][row], pixels) for camera, pixels in moment.frames.items())


def test_more_episodes_leave_what_was_filled_in(tmp_path: Path) -> None:
    ask_for_labels(tmp_path, [watched(0)])
    fill(tmp_path, "0", "1")
    assert ask_for_labels(tmp_path, [watched(0), watched(1)]) == 2
    assert [episode.id for episode in read_labels(tmp_path)] == ["audit-e0000-000000"]
    assert ask_for_labels(tmp_path, [watched(number, 1) for number in range(2, 2 * MOST)]) == MOST
    assert ask_for_labels(tmp_path, [watched(500)]) == MOST


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",failure,\n", ",failure,maybe\n", "line 2: success is 'maybe'"),
        ("success\n", "sucess\n", "lacks the column 'success'"),
        (",3,-1.000,failure,\n", ",3\n", "lacks a value"),
        (",3,-1.000,failure,\n", ",three,-1.0,failure,1\n", "no number"),
    ],
)
def test_what_is_wrong_in_a_list_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    ask_for_labels(tmp_path, [watched(0, 1)])
    path = tmp_path / LIST
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataError, match=message) as caught:
        read_labels(tmp_path)
    assert LIST in str(caught.value)


def test_a_picture_that_is_gone_or_torn_is_named(tmp_path: Path) -> None:
    ask_for_labels(tmp_path, [watched(0)])
    fill(tmp_path, "0", "1")
    picture = tmp_path / "audit-e0000-000000_0006_side.png"
    picture.write_bytes(picture.read_bytes()[:20])
    with pytest.raises(DataError, match="0006_side"):
        read_labels(tmp_path)
    picture.unlink()
    with pytest.raises(DataError, match="0006_side"):
        read_labels(tmp_path)
