"""Record the source of each config value: a file or the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

COMMAND_LINE = "command line"


class Sources:
    """Table from dotted config keys to the sources that last set them.

    Calling the table with a key returns the pair (source, key), the interface that `convert.fill` expects.

    Args:
        main: Source to report for a key that no source has set.
    """

    def __init__(self, main: str) -> None:
        self.main = main
        self._leaves: dict[str, str] = {}

    def record(self, tree: Mapping[str, Any], source: str, prefix: str = "") -> None:
        """Record `source` for every leaf of `tree`, whose keys start with `prefix`."""
        for key, value in leaves(tree, prefix):
            if not (isinstance(value, Mapping) and not value):  # An empty mapping changes no key below it.
                self.forget(key)
            self._leaves[key] = source

    def forget(self, key: str) -> None:
        """Delete a key and all keys below it."""
        obsolete = [leaf for leaf in self._leaves if leaf == key or leaf.startswith(f"{key}.")]
        for leaf in obsolete:
            del self._leaves[leaf]

    def of(self, key: str) -> str:
        """Return the source of `key`.

        It is the source of the key itself, else of its nearest ancestor, else of its last recorded descendant, else
        `main`.
        """
        key = re.sub(r"\[\d+\]", "", key)  # A list is recorded as one leaf, without indices.

        ancestor = key
        while ancestor:
            if ancestor in self._leaves:
                return self._leaves[ancestor]
            ancestor = ancestor.rpartition(".")[0]

        descendants = [source for leaf, source in self._leaves.items() if key and leaf.startswith(f"{key}.")]
        return descendants[-1] if descendants else self.main

    def __call__(self, key: str) -> tuple[str, str]:
        return self.of(key), key


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and values of `tree` that are not non-empty mappings."""
    for name, value in tree.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, key)
        else:
            yield key, value
