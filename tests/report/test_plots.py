"""Charts: where lines and dots are, round ticks, and text that cannot break the page."""

from __future__ import annotations

import re

import pytest

from plaudit.reporting.plots import Series, interval, line_chart, nice_ticks


def test_lines_are_where_the_numbers_are() -> None:
    line = Series("a", [0, 100, 200], [0.0, 0.5, 1.0], "two")
    text = line_chart("Success", [line], axis="env steps", share=True)
    assert re.findall(r'd="M([^"]+)"', text) == ["0.00 100.00 L50.00 50.00 L100.00 0.00"]
    dots = re.findall(r'class="dot two" style="left:([\d.]+)%;bottom:([\d.]+)%"', text)
    assert dots == [("0.00", "0.00"), ("50.00", "50.00"), ("100.00", "100.00")]
    assert re.findall(r"<span>([^<]+)</span></div>", text) == ["0%", "25%", "50%", "75%", "100%"]
    assert "Success: a ends at 100.0%" in text


def test_hovering_tells_the_numbers_of_a_step() -> None:
    lines = [Series("a", [100, 200], [0.25, 0.5]), Series("b", [200], [0.75]), Series("c", [1, 2], [0, 0], thin=True)]
    tips = re.findall(r'data-tip="([^"]+)"', line_chart("t", lines, axis="x", share=True))
    assert tips == ["step 100\na: 25.0%", "step 200\na: 50.0%\nb: 75.0%"]


def test_a_legend_names_the_lines_that_are_told_apart() -> None:
    one, two = Series("a", [1], [1.0]), Series("b", [1], [2.0], "two")
    behind = Series("c", [1, 2], [1.0, 1.0], thin=True)
    assert re.search(r'<div class="legend"><span class="one">a</span><span class="two">b</span></div>', _draw(one, two))
    assert '<div class="legend"></div>' in _draw(one, behind)


def _draw(*lines: Series) -> str:
    return line_chart("t", lines, axis="x")


def test_nothing_and_one_point_can_be_drawn() -> None:
    assert line_chart("t", [], axis="x") == line_chart("t", [Series("a", [], [])], axis="x") == ""
    assert 'class="dot one"' in _draw(Series("a", [0], [3.0]))


def test_words_are_only_words() -> None:
    text = line_chart('<b>"t"', [Series('<i>"a"', [1, 2], [1.0, 2.0])], axis="<x>")
    assert "<b>" not in text and '<i>"' not in text and "<x>" not in text and '"t""' not in text


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0, 100], [0, 20, 40, 60, 80, 100]),
        ([0, 303_104], [0, 100_000, 200_000, 300_000, 400_000]),
        ([-3.5, 12], [-5, 0, 5, 10, 15]),
        ([0.013, 0.015], [0.013, 0.0135, 0.014, 0.0145, 0.015]),
        ([7, 7], [6.4, 6.6, 6.8, 7, 7.2, 7.4, 7.6]),
    ],
)
def test_ticks_are_round(values: list[float], ticks: list[float]) -> None:
    assert nice_ticks(values) == pytest.approx(ticks)


def test_an_interval_stands_where_it_is() -> None:
    text = interval(0.5, 0.25, 0.875, "three")
    assert 'style="left:25.00%;width:62.50%"' in text and '<s style="left:50.00%">' in text and "range three" in text
