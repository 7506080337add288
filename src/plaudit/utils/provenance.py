"""Which file, or the command line, each value of a config came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

COMMAND_LINE = "command line"


class Sources:
    """A table from dotted keys to where they were last set. Calling it locates a key, as `convert.fill` wants it.

    Args:
        main: The source to name for a key that nobody set.
    """

    def __init__(self, main: str) -> None:
        self.main = main
        self._leaves: dict[str, str] = {}

    def record(self, tree: Mapping[str, Any], source: str, prefix: str = "") -> None:
        """Notes that `source` set every leaf of `tree`, which lies under `prefix`."""
        for key, value in leaves(tree, prefix):
            if not (isinstance(value, Mapping) and not value):  # an empty mapping changes nothing beneath it
                self.forget(key)
            self._leaves[key] = source

    def forget(self, key: str) -> None:
        """Drops a key and everything beneath it."""
        gone = [other for other in self._leaves if other == key or other.startswith(f"{key}.")]
        for other in gone:
            del self._leaves[other]

    def of(self, key: str) -> str:
        """The source of `key`: of itself, of the nearest key above it, or of the last one beneath it."""
        key = re.sub(r"\[\d+\]", "", key)
        above = key
        while above:
            if above in self._leaves:
                return self._leaves[above]
            above = above.rpartition(".")[0]
        beneath = [source for other, source in self._leaves.items() if key and other.startswith(f"{key}.")]
        return beneath[-1] if beneath else self.main

    def __call__(self, key: str) -> tuple[str, str]:
        return self.of(key), key


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of everything in `tree` that is not a mapping with something in it."""
    for name, value in tree.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, key)
        else:
            yield key, value
