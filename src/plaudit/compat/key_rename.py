"""Config trees that are not checked yet: what is under a dotted key, and copies with other keys."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

from plaudit.errors import ConfigError

logger = logging.getLogger("plaudit")

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


def respelt(
    tree: dict[str, Any], names: Mapping[str, str], converted: Mapping[str, Callable[[Any], Any]], source: str
) -> dict[str, Any]:
    """A copy with what is under some dotted keys under others, of which each is logged. One thing said twice, and not
    alike, is an error.

    Args:
        tree: Of one source.
        names: From their keys to ours.
        converted: From those of their keys to a function whose values are other ones here.
        source: What messages call the source.
    """
    for old, new in names.items():
        value = get_key(tree, old)
        if value is not NOTHING:
            logger.warning("%s: '%s' is read as '%s'.", source, old, new)
            tree = without(tree, old)
            value = converted.get(old, lambda same: same)(value)
            if _differ(there := get_key(tree, new), value):
                said = f"but the one says {value} and the other {there}"
                raise ConfigError(f"{source}: {old} and {new} are the same key, {said}.")
            tree = laid(tree, new, value)
        tree = repointed(tree, old, new)
    return tree


def _differ(there: Any, value: Any) -> bool:
    """Whether both say something, and not the same."""
    if isinstance(there, Mapping) and isinstance(value, Mapping):
        return any(_differ(there[key], value[key]) for key in there.keys() & value.keys())
    return there is not NOTHING and there != value


def repointed(value: Any, old: str, new: str) -> Any:
    """All texts in a tree, with interpolations of the old key turned to the new one."""
    if isinstance(value, dict):
        return {key: repointed(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [repointed(item, old, new) for item in value]
    return re.sub(rf"\$\{{{re.escape(old)}\}}", f"${{{new}}}", value) if isinstance(value, str) else value
