"""Tables in the terminal, and the progress bar where there is none."""

from __future__ import annotations

import pytest

from plaudit.reporting.progress import PLAIN_WIDTH, show_table, track


def test_a_table_has_a_line_for_each_row_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["name", "count"], [["[bold]a", "1,234"], ["bb", "5"]], right=["count"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0].split() == ["name", "count"] and lines[2].split() == ["[bold]a", "1,234"]
    assert lines[3].endswith("5") and len(lines) == 4


def test_long_cells_wrap(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(["a", "b"], [["x" * 100, "word " * 40]], rule=True)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= PLAIN_WIDTH and sum(line.count("word") for line in lines) == 40


def test_everything_passes_through_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([1, 2, 3], "counting")) == list(track([1, 2, 3], "counting", quiet=True)) == [1, 2, 3]
    assert capsys.readouterr().err.strip() == ""
