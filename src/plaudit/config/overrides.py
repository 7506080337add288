"""Overrides in Hydra's grammar: `a.b=1`, `+a.b=1`, `++a.b=1`, `~a.b`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plaudit.config.aliases import translate
from plaudit.config.files import merge, nest
from plaudit.config.sources import COMMAND_LINE, Sources
from plaudit.errors import ConfigError, nearest


def apply_overrides(tree: dict[str, Any], overrides: Sequence[str], sources: Sources) -> dict[str, Any]:
    """`tree` with every override laid over it in turn; whether the keys are valid is for the schema to say."""
    for text in overrides:
        override = _parse(text)
        if override.is_delete():
            tree = _delete(tree, override.key_or_group, override.value(), text)
            sources.forget(override.key_or_group)
            continue
        if override.is_add() and _has(tree, override.key_or_group):
            raise ConfigError(f"{COMMAND_LINE}: '{text}': the key is there already; change it without the '+'.")
        tree = _set(tree, override.key_or_group, override.value(), sources)
    return tree


def _parse(text: str) -> Any:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_overrides([text])[0]
    except HydraException as error:
        reason = " ".join(str(error).split("\nSee https")[0].split())
        raise ConfigError(
            f"{COMMAND_LINE}: '{text}' is not an override: {reason}. Write key=value, such as runtime.seed=2."
        ) from None
    if override.is_sweep_override():
        raise ConfigError(
            f"{COMMAND_LINE}: '{text}' is a sweep, and a run has one config: start one run for each value. "
            "A list is written [a,b], a text with a comma in it 'a,b' in quotes."
        )
    if override.package is not None or "/" in override.key_or_group:
        raise ConfigError(f"{COMMAND_LINE}: '{text}' chooses from a config group; use a defaults list in a file.")
    return override


def _set(tree: dict[str, Any], key: str, value: Any, sources: Sources) -> dict[str, Any]:
    change = translate(nest(key, value), COMMAND_LINE)
    sources.record(change, COMMAND_LINE)
    return merge(tree, change)


def _delete(tree: dict[str, Any], key: str, value: Any, text: str) -> dict[str, Any]:
    """A copy of `tree` without `key`; with a value given (`~a.b=1`), only where it is that value."""
    head, _, rest = key.partition(".")
    if head not in tree or (rest and not isinstance(tree[head], Mapping)):
        raise ConfigError(f"{COMMAND_LINE}: '{text}': there is no key '{head}' to remove.{nearest(head, tree)}")
    if rest:
        return {**tree, head: _delete(tree[head], rest, value, text)}
    if value is not None and tree[head] != value:
        raise ConfigError(f"{COMMAND_LINE}: '{text}': the value there is {tree[head]!r}.")
    return {name: item for name, item in tree.items() if name != head}


def _has(tree: Any, key: str) -> bool:
    for name in key.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return False
        tree = tree[name]
    return True
