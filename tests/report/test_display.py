"""The progress display, with a clock that the test turns."""

from __future__ import annotations

import io

import pytest
from terminals import Clock, Terminal

from plaudit.reporting.progress import ProgressDisplay, compact, duration

METRICS = {"rollout/success_once": 0.4, "rollout/return": 12.34, "charts/steps_per_second": 10_100.0}


def test_lines_every_few_seconds_without_a_terminal() -> None:
    stream, clock = io.StringIO(), Clock()
    display = ProgressDisplay(stream=stream, interval=5.0, clock=clock)
    display.on_start(0, 100_000)
    for second in range(1, 9):
        clock.now = float(second)
        display.on_metrics(second * 10_000, METRICS)
    lines = stream.getvalue().splitlines()
    assert lines == [
        "step 10,000/100,000 (10%)  success 40%  return 12.3  10.1k steps/s  0:09 left",
        "step 60,000/100,000 (60%)  success 40%  return 12.3  10.1k steps/s  0:04 left",
    ]
    display.on_eval(80_000, {"eval/success_once": 0.97, "eval/return": 31.0})
    clock.now = 10.0
    display.on_metrics(100_000, {"rollout/return": float("nan")})
    display.close()
    assert stream.getvalue().splitlines()[2:] == [
        "step 80,000/100,000 (80%)  success 40%  return 12.3  10.1k steps/s  0:02 left",
        "step 80,000  evaluation:  success 97%  return 31",
        "step 100,000/100,000 (100%)  0:10 in all",
    ]


def test_time_left_of_a_resumed_run_counts_from_where_it_went_on() -> None:
    stream, clock = io.StringIO(), Clock()
    display = ProgressDisplay(stream=stream, clock=clock)
    display.on_resume(80_000)
    display.on_start(80_000, 100_000)
    clock.now = 10.0
    display.on_metrics(90_000, {})
    assert stream.getvalue().splitlines() == ["resumed at step 80,000", "step 90,000/100,000 (90%)  0:10 left"]


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_a_run_that_is_prolonged_has_longer_to_go(make: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream, clock = make(), Clock()
    display = ProgressDisplay(stream=stream, clock=clock)
    display.on_start(0, 1000)
    display.on_prolonged(4000)
    clock.now = 10.0
    display.on_metrics(1000, {})
    display.close()
    assert "25%" in stream.getvalue() and "0:30 left" in stream.getvalue()


def test_live_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    display = ProgressDisplay("success_at_end", stream=stream)
    display.on_start(0, 1000)
    display.on_metrics(500, {"rollout/success_at_end": 0.5, "rollout/success_once": 0.9})
    display.on_eval(500, {"eval/success_at_end": 0.75})
    display.close()
    display.close()
    text = stream.getvalue()
    assert "success 50%" in text and "evaluation:  success 75%" in text and "50%" in text and "90%" not in text


def test_numbers_in_words() -> None:
    assert [compact(x) for x in (950, 12_345, 1_250_000, 0.5)] == ["950", "12.3k", "1.25M", "0.5"]
    assert [duration(x) for x in (42, 185, 3723)] == ["0:42", "3:05", "1:02:03"]
