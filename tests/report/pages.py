"""Pages, looked at: whether their tags are closed, and what a real browser makes of them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to look at the page with: scripts/browser.sh")

LOOK = """<script>addEventListener("load", () => setTimeout(() => {
  const all = (what) => [...document.querySelectorAll(what)];
  parent.postMessage(JSON.stringify({
    fetched: performance.getEntries().filter((one) => one.entryType == "resource" && !one.name.startsWith("data:")),
    pictures: all("img").map((one) => one.naturalWidth),
    films: all("video").map((one) => [one.videoWidth, one.error ? one.error.message : null]),
    sections: all("article > h2").map((one) => one.textContent),
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    plot: all(".plot").map((one) => [one.clientWidth, one.clientHeight]),
    links: all("nav a").map((one) => Boolean(document.querySelector(one.getAttribute("href")))),
  }), "*");
}, 500));</script>"""
"""What a browser makes of the page, told to the page around it."""

FRAME = """<!doctype html><body><iframe src="{name}" width="{width}" height="900" style="border: 0"></iframe>
<script>onmessage = (event) => { document.body.dataset.seen = event.data; };</script>"""
"""Shows a page in any width, which windows have a least one of, and keeps what it tells for `--dump-dom`."""

VOID = {"meta", "img", "br"}


class Balanced(HTMLParser):
    """Complains about tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def look(page: Path, width: int) -> dict[str, Any]:
    """Opens a page in a headless browser; what it complains about is an assertion error."""
    watched = page.with_name("watched.html")
    watched.write_text(page.read_text().replace("</body>", f"{LOOK}</body>"))
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.replace("{name}", watched.name).replace("{width}", str(width)))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={page.parent / f'profile{width}'}", "--window-size=1300,1000"]
    command += ["--virtual-time-budget=5000", "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert done.returncode == 0 and not complaints, (complaints, done.stderr[-2000:])
    found = re.search(r'data-seen="([^"]+)"', done.stdout)
    assert found is not None, done.stdout[-500:]
    content: dict[str, Any] = json.loads(html.unescape(found[1]))
    return content
