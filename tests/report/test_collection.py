"""The live table, with a clock that the test turns."""

from __future__ import annotations

import io

import pytest
from terminals import Clock, Terminal

from plaudit.reporting.progress import CollectionCounts, CollectionDisplay


def tally(positive: int, negative: int, wanted: tuple[int | None, int | None] = (100, 50)) -> CollectionCounts:
    frames = 12 * (positive + negative)
    return CollectionCounts(positive, negative, wanted, frames, frames // 4, 0, frames * 25_000)


def test_lines_every_few_seconds_without_a_terminal() -> None:
    stream, clock = io.StringIO(), Clock()
    display = CollectionDisplay(stream=stream, clock=clock)
    for second in range(9):
        clock.now = float(second)
        display.update(tally(10 + 10 * second, 50))
    display.close()
    assert stream.getvalue().splitlines() == [
        "positive 10/100  negative 50/50  720 frames  25% success, 75% failure  18 MB  0:00 so far",
        "positive 60/100  negative 50/50  1,320 frames  25% success, 75% failure  120 frames/s  33 MB  0:04 left",
        "positive 90/100  negative 50/50  1,680 frames  25% success, 75% failure  120 frames/s  42 MB  0:01 left",
    ]


def test_nothing_was_collected() -> None:
    stream = io.StringIO()
    CollectionDisplay(stream=stream).close()
    assert stream.getvalue() == ""


def test_the_time_left_is_the_slower_class_and_unknown_without_a_limit() -> None:
    stream, clock = io.StringIO(), Clock()
    display = CollectionDisplay(stream=stream, interval=0.0, clock=clock)
    display.update(tally(0, 0))
    clock.now = 10.0
    display.update(tally(50, 5))
    display.update(tally(50, 5, (None, 50)))
    display.update(tally(100, 50))
    lines = stream.getvalue().splitlines()
    assert [line.rsplit("  ", 1)[1] for line in lines] == ["0:00 so far", "1:30 left", "0:10 so far", "0:10 in all"]
    assert lines[2].startswith("positive 50  negative 5/50")


def test_labels_that_are_not_known_are_told() -> None:
    assert CollectionCounts(1, 1, (None, None), 8, 2, 4, 0).balance == "25% success, 25% failure, 50% unknown"
    assert CollectionCounts(0, 0, (None, None), 0, 0, 0, 0).balance == ""


def test_live_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream, clock = Terminal(), Clock()
    display = CollectionDisplay(stream=stream, clock=clock)
    display.update(tally(0, 0))
    clock.now = 1.0
    display.update(tally(30, 20))
    display.say("that was [all]")
    display.close()
    display.close()
    text = stream.getvalue()
    assert "that was [all]\n" in text.replace("\r", "")
    assert "positive episodes" in text and "30/100" in text and "20/50" in text and "25% success" in text
