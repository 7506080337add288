"""The report: one file that fetches nothing, and that a real browser shows without a complaint."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from pages import Balanced, look, needs_browser
from PIL import Image

from plaudit.reporting.plots import Series, line_chart
from plaudit.reporting.report import LARGEST, Picture, Rate, Report, Section, Table, timing, write_report
from plaudit.reporting.video import write_video


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A report with everything in it."""
    frames = np.zeros((8, 32, 48, 3), np.uint8)
    frames[:, 8:16] = 200
    write_video(tmp_path / "film.mp4", frames, 10)
    Image.fromarray(frames[0]).save(tmp_path / "picture.png")
    film, picture = Picture(tmp_path / "film.mp4", "A film", "pixels"), Picture(tmp_path / "picture.png", "A <picture>")
    chart = line_chart("Success", [Series("a", [1, 2, 3], [0.1, 0.5, 0.9])], axis="steps", share=True)
    report = Report(
        title="Pushing & <pulling>",
        about="a run",
        summary="It works.",
        rates=[Rate("Learned", "by pictures", 0.95, 0.92, 0.97, 256, "one")],
        film=film,
        sections=[
            Section("learning", "Learning", "How it went.", charts=[chart, ""]),
            Section("nothing", "Nothing", "Only a lead, and so it is left out."),
            Section("model", "Model", notes=[("bad", "Oh.")], tables=[Table(["a"], [["<1>"]])], pictures=[picture]),
            Section("wide", "Wide", pictures=[Picture(picture.path, "Wide", full=True), film]),
            Section("stages", "Stages", tables=[timing([("fit", "now", 75.0, 2)])], texts=[("Config", "a: <b>\n")]),
        ],
        made_by="Made by us",
    )
    write_report(tmp_path / "report.html", report)
    return tmp_path / "report.html"


def test_it_is_one_file_that_fetches_nothing(page: Path) -> None:
    text = page.read_text()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    assert set(re.findall(r'(?:src|href)="([^"]{5})', text)) == {"data:", "#lear", "#mode", "#wide", "#stag"}
    assert "url(" not in text and "@import" not in text and "<script" not in text and "http" not in text
    assert "<title>Pushing &amp; &lt;pulling&gt;</title>" in text and "a: &lt;b&gt;" in text
    assert "nothing" not in text and "95.0%" in text and "92.0% – 97.0%" in text
    assert "over 256 fresh episodes each" in text and "stopped and resumed, 2 tries" in text and "1:15" in text


def test_what_is_too_large_is_only_named(tmp_path: Path) -> None:
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(LARGEST + 1)
    write_report(
        tmp_path / "r.html", Report("t", "a", "s", sections=[Section("x", "X", pictures=[Picture(large, "Big")])])
    )
    assert "Big (large.png is too large for this page)" in (tmp_path / "r.html").read_text()


@needs_browser
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_it_without_complaint(page: Path, width: int) -> None:
    seen = look(page, width)
    assert seen["fetched"] == []
    assert seen["pictures"] == [48, 48] and seen["films"] == [[48, None], [48, None]]
    assert seen["sections"] == ["Learning", "Model", "Wide", "Stages"] and seen["links"] == [True] * 4
    assert seen["overflow"] == 0  # Nothing is wider than the window, also on a phone.
    ((wide, high),) = seen["plot"]
    assert 250 < wide <= width and high > 150
