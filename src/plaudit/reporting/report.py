"""Report of a run: one self-contained web page to send to a colleague.

The caller decides what it shows; this module only lays it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from plaudit.reporting import html as page
from plaudit.reporting import plots
from plaudit.reporting.plots import Colour
from plaudit.reporting.progress import duration

STYLE = (
    page.STYLE.partition("section {")[0]
    + """
:root { --one: #0067b1; --two: #d04a02; --three: #00795c; --axis: #8c959f; --shade: 0 1px 3px rgb(31 35 40 / 12%); }
@media (prefers-color-scheme: dark) { :root { --one: #58a6ff; --two: #ff9350; --three: #3fc39a; --axis: #6e7681;
  --shade: none; } }
* { box-sizing: border-box; } html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body { font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  max-width: 68rem; margin: 0 auto; padding: 0 1.4rem 3rem; }
header { padding: 2.6rem 0 0; } .kicker { font-size: .78rem; letter-spacing: .09em; text-transform: uppercase;
  color: var(--soft); margin: 0; }
h1 { font-size: clamp(1.6rem, 4.5vw, 2.4rem); line-height: 1.15; letter-spacing: -.02em; margin: .25rem 0 .4rem;
  text-wrap: balance; }
h2 { font-size: 1.35rem; letter-spacing: -.01em; margin: 3.2rem 0 .4rem; padding-top: 1rem;
  border-top: 1px solid var(--line); } h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
p { max-width: 46rem; } .lead { font-size: 1.12rem; line-height: 1.6; margin: .4rem 0 1.2rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .88rem; margin: .8rem 0 1.6rem; }
a { color: var(--one); text-decoration: none; } a:hover { text-decoration: underline; }
.hero { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 21rem); gap: 2.2rem; align-items: start; }
.hero.alone { grid-template-columns: minmax(0, 1fr); }
.wide { overflow-x: auto; } table { width: 100%; font-variant-numeric: tabular-nums; font-size: .93rem; }
th, td { padding: .45rem 1rem .45rem 0; vertical-align: middle; } th { font-size: .8rem; }
td:last-child, th:last-child { padding-right: 0; } tr:last-child { border-bottom: 0; }
.rates td:first-child { font-weight: 600; } .rates .range { width: 100%; }
.rates .bar { width: 42%; } .rates small { display: block; font-weight: 400; color: var(--soft); font-size: .8rem;
  line-height: 1.35; } .rates + p { font-size: .82rem; margin-top: .5rem; }
.big { font-size: 1.25rem; font-weight: 650; line-height: 1.3; white-space: nowrap; } .big small { font-size: .78rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1.2rem 1.6rem; }
.card { margin: 0; max-width: none; min-width: 0; } .card.full { grid-column: 1 / -1; }
.card .wide + .wide { margin-top: 1.4rem; } .card th, .card td { padding-top: .36rem; padding-bottom: .36rem; }
.card figcaption { font-size: .82rem; line-height: 1.45; margin-top: .45rem; }
.card img, .card video { width: 100%; height: auto; display: block; border: 0; border-radius: 10px; background: #fff;
  box-shadow: var(--shade); image-rendering: auto; object-fit: contain; }
.card.pixels img { image-rendering: pixelated; } .card.figure img { padding: .5rem; }
@media (prefers-color-scheme: dark) { .card.figure img { filter: brightness(.92); } }
.strip { overflow-x: auto; border-radius: 10px; } .strip img { min-width: 40rem; }
.note { border-left: 3px solid var(--look); padding: .1rem 0 .1rem .9rem; color: var(--ink); font-size: .93rem; }
.note.bad { border-color: var(--bad); } .note.good { border-color: var(--good); }
details { border: 1px solid var(--line); border-radius: 10px; margin: .6rem 0; background: var(--card); }
summary { cursor: pointer; padding: .55rem .9rem; font-weight: 550; font-size: .93rem; }
pre { margin: 0; padding: .2rem .9rem .9rem; overflow-x: auto; font: .78rem/1.5 ui-monospace, SFMono-Regular, Menlo,
  Consolas, monospace; }
footer { margin-top: 3rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: .82rem;
  color: var(--soft); }
@media (max-width: 46rem) { body { padding: 0 1rem 2rem; } .hero { grid-template-columns: minmax(0, 1fr); gap: 1rem; }
  .rates .bar { display: none; } h2 { margin-top: 2.2rem; } .lead { font-size: 1.05rem; } }
@media print { nav { display: none; } body { max-width: none; font-size: 10.5pt; } h2, h3 { break-after: avoid; }
  .card, .chart, table { break-inside: avoid; } details::details-content { content-visibility: visible; height: auto; }
  pre { white-space: pre-wrap; } .strip img { min-width: 0; }
  .range, .range b, .range u, .range s, .dot { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
    + plots.STYLE
)

LARGEST = 24 * 2**20
"""Size in bytes of the largest file to embed in the page; larger files are only named."""


@dataclass(frozen=True)
class Rate:
    """True success rate of one policy.

    Attributes:
        name: Name of the policy.
        about: What the policy was trained on.
        rate: Share of successful episodes.
        low, high: Bounds of the 95 % interval of the rate.
        episodes: Number of episodes evaluated.
        colour: Colour of the policy, the same in every chart.
    """

    name: str
    about: str
    rate: float
    low: float
    high: float
    episodes: int
    colour: Colour


@dataclass(frozen=True)
class Picture:
    """Image or video file with a caption.

    Attributes:
        path: PNG, JPEG or mp4 file.
        caption: Text below it.
        kind: `figure` for a drawing on white, `pixels` for frames that must stay sharp.
        full: Whether it takes the whole width; if that is too narrow, as on a phone, it scrolls sideways.
    """

    path: Path
    caption: str
    kind: str = "figure"
    full: bool = False


@dataclass(frozen=True)
class Table:
    """Table of texts, with a head row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """One section of the page, below the result.

    Attributes:
        id: Anchor for links.
        title: Heading.
        lead: Opening paragraph that says what the section shows.
        charts: HTML from `plots`.
        notes: Warnings as pairs of severity (`good`, `look`, `bad`) and text.
        tables: Tables of numbers.
        pictures: Images and videos, below everything above.
        texts: Long texts as pairs of title and text, collapsed by default.
    """

    id: str
    title: str
    lead: str = ""
    charts: Sequence[str] = ()
    notes: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    texts: Sequence[tuple[str, str]] = ()

    @property
    def empty(self) -> bool:
        """True if there is nothing but the heading and the lead."""
        return not (any(self.charts) or self.notes or self.tables or self.pictures or self.texts)


@dataclass(frozen=True)
class Report:
    """Contents of a report.

    Attributes:
        title: Task that was trained.
        about: One line with date, place and duration.
        summary: Paragraph with the result.
        rates: True success rates, one row per policy.
        film: Video of the policy that the report is about.
        sections: All further sections; empty ones are left out.
        made_by: Software versions, for the footer.
    """

    title: str
    about: str
    summary: str
    rates: Sequence[Rate] = ()
    film: Picture | None = None
    sections: Sequence[Section] = ()
    made_by: str = ""


def write_report(path: str | Path, report: Report) -> None:
    """Write the report as one HTML file with everything embedded."""
    # Empty sections get neither a heading nor a link.
    sections = [section for section in report.sections if not section.empty]
    links = "".join(f'<a href="#{section.id}">{escape(section.title)}</a>' for section in sections)

    # Without a video the result takes the whole width.
    video = "" if report.film is None else picture(report.film)

    parts = [
        f"<header>{page.tag('p', 'Plaudit report', 'kicker')}{page.tag('h1', report.title)}"
        f"{page.tag('p', report.about, 'soft')}<nav>{links}</nav></header>",
        "<main>",
        f'<div class="hero{"" if video else " alone"}" id="result"><div>{page.tag("p", report.summary, "lead")}',
        rates_table(report.rates),
        f"</div>{video}</div>",
        *map(_section, sections),
        "</main>",
        page.tag("footer", report.made_by),
    ]
    page.write_page(path, report.title, parts, STYLE)


def rates_table(rates: Sequence[Rate]) -> str:
    """Return a table of success rates with their intervals, one row per policy.

    All policies must be evaluated on the same number of episodes. Empty if there are no rates.
    """
    if not rates:
        return ""

    rows = [
        f"<tr><td>{escape(rate.name)}<small>{escape(rate.about)}</small></td>"
        f'<td class="bar">{plots.interval(rate.rate, rate.low, rate.high, rate.colour)}</td>'
        f'<td class="big">{rate.rate:.1%}<small>{rate.low:.1%} – {rate.high:.1%}</small></td></tr>'
        for rate in rates
    ]

    about = f"As the simulator tells it, over {rates[0].episodes:,} fresh episodes each, with 95% intervals."
    head = '<tr><th>policy</th><th class="bar"></th><th>true success</th></tr>'
    return f'<table class="rates">{head}{"".join(rows)}</table>{page.tag("p", about, "soft")}'


def picture(one: Picture) -> str:
    """Return an image or video with its caption as HTML.

    A file larger than `LARGEST` is not embedded; the caption then names it.
    """
    if one.path.stat().st_size > LARGEST:
        return page.tag("p", f"{one.caption} ({one.path.name} is too large for this page)", "soft")

    source = page.data_uri(one.path)
    if one.path.suffix == ".mp4":
        element = f'<video src="{source}" controls autoplay muted loop playsinline></video>'
    else:
        element = f'<img src="{source}" alt="{escape(one.caption)}">'

    # The strip scrolls sideways if the page is too narrow.
    if one.full:
        element = f'<div class="strip">{element}</div>'
    full = " full" if one.full else ""
    return f'<figure class="card {one.kind}{full}">{element}{page.tag("figcaption", one.caption)}</figure>'


def timing(rows: Iterable[tuple[str, str, float, int]]) -> Table:
    """Return a table of stages from name, start time, seconds and number of tries.

    The table has a column of notes only if a stage was resumed.
    """
    lines = [
        [name, started, duration(seconds), "" if tries == 1 else f"stopped and resumed, {tries} tries"]
        for name, started, seconds, tries in rows
    ]
    has_notes = any(line[3] for line in lines)
    cells = [line if has_notes else line[:3] for line in lines]
    return Table(["stage", "began", "took", *["note"] * has_notes], cells)


def _section(section: Section) -> str:
    """Return a section as HTML."""
    # Tables share a row with a picture unless all pictures take the whole width.
    has_small_pictures = not all(item.full for item in section.pictures)
    tables = "".join(f'<div class="wide">{page.table(table.head, table.rows)}</div>' for table in section.tables)
    cards = f'<div class="card{"" if has_small_pictures else " full"}">{tables}</div>' if tables else ""
    cards += "".join(map(picture, section.pictures))

    # Every part is optional; the long texts are collapsed.
    return "\n".join(
        [
            f'<article id="{section.id}">{page.tag("h2", section.title)}',
            page.tag("p", section.lead) if section.lead else "",
            *(page.tag("p", words, f"note {mood}") for mood, words in section.notes),
            f'<div class="cards">{"".join(section.charts)}</div>' if any(section.charts) else "",
            f'<div class="cards">{cards}</div>' if cards else "",
            *(
                f"<details><summary>{escape(title)}</summary>{page.tag('pre', text)}</details>"
                for title, text in section.texts
            ),
            "</article>",
        ]
    )
