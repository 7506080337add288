"""Config trees that are not checked yet: what is under a dotted key, and copies with other keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

NOTHING: Any = object()
"""Stands for no value, as null is one."""


def get_key(tree: Any, key: str) -> Any:
    """What is under a dotted key, or `NOTHING`."""
    for name in key.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return NOTHING
        tree = tree[name]
    return tree


def without(tree: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy without a dotted key, and without sections that are empty then."""
    head, _, rest = key.partition(".")
    left = without(tree[head], rest) if rest else {}
    return {**{name: value for name, value in tree.items() if name != head}, **({head: left} if left else {})}


def laid(tree: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with a value under a dotted key, beneath what is there already."""
    head, _, rest = key.partition(".")
    there = tree.get(head)
    if rest:
        value = laid(there if isinstance(there, Mapping) else {}, rest, value)
    elif isinstance(there, Mapping) and isinstance(value, Mapping):
        value = {**value, **there}
    elif head in tree:
        value = there
    return {**tree, head: value}


def repointed(value: Any, old: str, new: str) -> Any:
    """All texts in a tree, with interpolations of the old key turned to the new one."""
    if isinstance(value, dict):
        return {key: repointed(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [repointed(item, old, new) for item in value]
    return re.sub(rf"\$\{{{re.escape(old)}\}}", f"${{{new}}}", value) if isinstance(value, str) else value
