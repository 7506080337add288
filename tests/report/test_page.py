"""Pages: one file, safe text, pictures that come back as they were."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
from pages import Balanced
from PIL import Image

from plaudit.reporting.contact_sheet import GOOD, Strip, Tile
from plaudit.reporting.html import bullets, strip, table, tag, tiles, write_page


def test_a_page_is_well_formed_and_fetches_nothing(tmp_path: Path) -> None:
    picture = Tile(np.zeros((4, 4, 3), np.uint8), ("one", "two"), GOOD)
    parts = [table(["a", "b"], [["1", "<2>"]]), bullets(["x"]), tiles([picture]), strip(Strip("s", [picture]))]
    write_page(tmp_path / "page.html", "A & B", parts)
    text = (tmp_path / "page.html").read_text()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == [] and "<title>A &amp; B</title>" in text and "&lt;2&gt;" in text
    assert "src=" in text and not re.search(r'src="(?!data:)', text) and "url(" not in text


def test_pictures_are_inside_as_they_are() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (12, 9, 3), np.uint8)
    text = tiles([Tile(frame, ("a",), GOOD)])
    code = re.search(r"base64,([^\"]+)", text)
    assert code is not None and "border-color:rgb(46, 160, 67)" in text
    with Image.open(io.BytesIO(base64.b64decode(code[1]))) as picture:
        np.testing.assert_array_equal(np.asarray(picture), frame)


def test_nothing_is_drawn_of_nothing() -> None:
    assert tiles([]) == bullets([]) == strip(Strip("a", [])) == ""
    assert tag("p", "a<b", "soft") == '<p class="soft">a&lt;b</p>' and tag("p", "a") == "<p>a</p>"
