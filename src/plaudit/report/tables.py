"""Tables and progress bars in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

PLAIN_WIDTH = 120
"""Characters in a line where there is no terminal."""


def show_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), rule: bool = False
) -> None:
    """Prints a table to stdout.

    Args:
        head: Names of the columns.
        rows: Texts.
        right: Columns that are aligned to the right.
        rule: A line between rows, where they are of several lines.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_lines=rule, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False).print(table)


def track(items: Collection[T], what: str, *, quiet: bool = False) -> Iterator[T]:
    """The items one by one, with a bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty()) as progress:
        yield from progress.track(items, len(items), description=what)
