from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN
from plaudit.errors import DataError
from plaudit.rewards.audit import label_sheet as label_list
from plaudit.rewards.audit.frame_recorder import Moment, Watched
from plaudit.rewards.audit.label_sheet import LIST, MOST, ask_for_labels, read_labels


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
    assert ask_for_labels(tmp_path, [watched(number) for number in range(2, 2 * MOST)]) == MOST
    assert ask_for_labels(tmp_path, [watched(500)]) == MOST


def listed(folder: Path) -> set[int]:
    """Numbers of the episodes in a list."""
    with (folder / LIST).open(newline="") as file:
        return {int(row["episode"][7:11]) for row in csv.DictReader(file)}


def test_failures_leave_room_for_what_the_model_calls_a_success(tmp_path: Path) -> None:
    # Of one row the verdict is a failure, of two rows the second one's is a success.
    assert ask_for_labels(tmp_path, [watched(number, 1) for number in range(2 * MOST)]) == MOST // 2
    assert ask_for_labels(tmp_path, [watched(500, 1), watched(501)]) == MOST // 2 + 1
    assert listed(tmp_path) == {*range(MOST // 2), 501}


def test_at_an_alarm_newer_ones_replace_what_nobody_has_filled_in(tmp_path: Path) -> None:
    ask_for_labels(tmp_path, [watched(number) for number in range(MOST)])
    fill(tmp_path, "0", "", "", "", "1", "1")  # Of episode 0 a part, nothing of 1, and all of 2.
    newer = [watched(number) for number in range(MOST, MOST + 3)]
    assert ask_for_labels(tmp_path, newer) == MOST and listed(tmp_path) == set(range(MOST))
    assert ask_for_labels(tmp_path, newer, anew=True) == MOST
    assert listed(tmp_path) == {0, 2, *range(5, MOST + 3)}  # The oldest ones go first.
    assert [episode.id for episode in read_labels(tmp_path)] == ["audit-e0002-000000"]
    # With nothing new, nothing goes.
    assert ask_for_labels(tmp_path, newer, anew=True) == MOST and 5 in listed(tmp_path)


def test_what_a_person_saves_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for_labels(tmp_path, [watched(number) for number in range(MOST)])

    def write(folder: Path, one: Watched) -> list[dict[str, str]]:
        fill(tmp_path, "0", "1")
        return written(folder, one)

    written = label_list._write_pictures
    monkeypatch.setattr(label_list, "_write_pictures", write)
    ask_for_labels(tmp_path, [watched(MOST)], anew=True)
    assert [episode.id for episode in read_labels(tmp_path)] == ["audit-e0000-000000"]
    assert MOST in listed(tmp_path)


def test_a_column_of_notes_stays(tmp_path: Path) -> None:
    ask_for_labels(tmp_path, [watched(0, 1)])
    path = tmp_path / LIST
    path.write_text(path.read_text().replace("success\n", "success,notes\n").replace("failure,\n", "failure,0,dark\n"))
    ask_for_labels(tmp_path, [watched(1, 1)])
    assert path.read_text().splitlines()[1].endswith(",failure,0,dark") and listed(tmp_path) == {0, 1}


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
