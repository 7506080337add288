"""Self-contained HTML pages: images are embedded and nothing is fetched."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import numpy as np

from plaudit.reporting.contact_sheet import TALLEST, Strip, Tile, enlarge
from plaudit.utils.atomic_io import whole_file

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #59636e; --paper: #fff; --line: #d1d9e0; --card: #f6f8fa;
  --bad: #b42318; --look: #8a5a00; --good: #1a7f37; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --paper: #0d1117; --line: #3d444d;
  --card: #151b23; --bad: #ff7b72; --look: #e3b341; --good: #56d364; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 64rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.soft { color: var(--soft); } .bad { color: var(--bad); } .look { color: var(--look); } .good { color: var(--good); }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: right; }
th { color: var(--soft); font-weight: 500; } th:first-child, td:first-child { text-align: left; }
tr { border-bottom: 1px solid var(--line); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1.1rem;
  margin: 1rem 0; } section h3 { margin: 0; font-size: 1.05rem; } section p { margin: .3rem 0; }
ul { margin: .4rem 0; padding-left: 1.2rem; } li { overflow-wrap: anywhere; }
.tiles { display: flex; flex-wrap: wrap; gap: .6rem; margin: .6rem 0; } figure { margin: 0; max-width: 20rem; }
img { image-rendering: pixelated; height: 112px; display: block; border: 3px solid; border-radius: 3px;
  max-width: 100%; object-fit: contain; object-position: left; }
figcaption { font-size: .75rem; color: var(--soft); overflow-wrap: anywhere; }
"""


KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".mp4": "video/mp4"}
"""File extensions that a page can embed, with their MIME types."""


def write_page(path: str | Path, title: str, parts: Iterable[str], style: str = STYLE) -> None:
    """Write a page from parts.

    Args:
        path: File to write; parent directories are created.
        title: Title as plain text, which is escaped.
        parts: Contents of the body, already HTML.
        style: Style sheet.
    """
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def tag(name: str, text: str, kind: str = "") -> str:
    """Return an element around escaped text, with a CSS class if `kind` is set."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<{name}{attribute}>{escape(text)}</{name}>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts, which are escaped."""
    lines = ["".join(tag("th", cell) for cell in head)]
    lines += ["".join(tag("td", cell) for cell in row) for row in rows]
    return "<table>\n" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>"


def bullets(items: Sequence[str]) -> str:
    """Return a bullet list of texts, which are escaped; empty if there are none."""
    return "<ul>\n" + "\n".join(tag("li", item) for item in items) + "\n</ul>" if items else ""


def tiles(pictures: Sequence[Tile]) -> str:
    """Return images side by side, each above its caption; empty if there are none."""
    figures = "\n".join(
        f'<figure><img src="{_inline(tile)}" alt="{escape(", ".join(tile.caption))}" '
        f'style="border-color:rgb{tile.colour}">'
        f"<figcaption>{'<br>'.join(map(escape, tile.caption))}</figcaption></figure>"
        for tile in pictures
    )
    return f'<div class="tiles">\n{figures}\n</div>' if pictures else ""


def strip(row: Strip) -> str:
    """Return a titled row of images; empty if there are none."""
    return tag("h3", row.title) + tiles(row.tiles) if row.tiles else ""


def data_uri(path: str | Path) -> str:
    """Return a file as a base64 data URI."""
    path = Path(path)
    return f"data:{KINDS[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _inline(tile: Tile) -> str:
    """Return the frame of a tile as a PNG data URI, shrunk if too high."""
    from PIL import Image

    buffer = io.BytesIO()
    frame = np.ascontiguousarray(enlarge(tile.frame, tall=1, tallest=TALLEST))
    Image.fromarray(frame).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
