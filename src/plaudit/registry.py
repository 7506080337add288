"""Names to things, imported when asked for."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from plaudit.errors import RegistryError, nearest

T = TypeVar("T")


@dataclass
class Entry:
    """What a registry holds under one name.

    Attributes:
        target: The thing itself, or `module:attribute` to import when it is first asked for.
        config: Its config dataclass, the same way, or `None` to look for a `cfg` or `config` annotation on it.
        options: Whatever else was said at registration.
    """

    target: Any
    config: Any = None
    options: dict[str, Any] = field(default_factory=dict)


def load(target: Any) -> Any:
    """Imports `module:attribute`; anything that is not such a string is returned as it is."""
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry(Generic[T]):
    """A table of names. A duplicate is an error, an unknown name lists the known ones.

    Args:
        kind: What the things are called in messages ("env", "policy", "algorithm").
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, target: Any, *, config: Any = None, override: bool = False, **options: Any) -> None:
        """Registers `target` (an object or `module:attribute`) under `name`."""
        if name in self._entries and not override:
            raise RegistryError(
                f"{self.kind} '{name}' is already registered; choose another name or pass override=True."
            )
        self._entries[name] = Entry(target, config, options)

    def register(self, name: str, *, override: bool = False, **options: Any) -> Callable[[type[T]], type[T]]:
        """The decorator form of `add`, for users' own classes."""

        def decorate(cls: type[T]) -> type[T]:
            self.add(name, cls, override=override, **options)
            return cls

        return decorate

    def entry(self, name: str) -> Entry:
        """The entry under `name`, without importing it."""
        if name not in self._entries:
            raise RegistryError(f"unknown {self.kind} '{name}'.{nearest(name, self._entries)}")
        return self._entries[name]

    def get(self, name: str) -> Any:
        """The thing registered under `name`."""
        return load(self.entry(name).target)

    def config_type(self, name: str) -> type | None:
        """The config dataclass of `name`, or `None` where it takes any keys."""
        entry = self.entry(name)
        if entry.config is not None:
            found: type = load(entry.config)
            return found
        return annotated_config(load(entry.target))

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._entries)


def annotated_config(cls: Any) -> type | None:
    """The dataclass that a class names by annotating `cfg` or `config` in its body, if it does."""
    owners = inspect.getmro(cls) if inspect.isclass(cls) else (cls,) if callable(cls) else ()
    for key in ("cfg", "config"):
        owner = next((owner for owner in owners if key in inspect.get_annotations(owner)), None)
        hint = None if owner is None else _resolve(owner, key)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return hint
    return None


def _resolve(owner: Any, key: str) -> Any:
    """What one annotation stands for. The others are left alone: a class may name what it does not import."""
    annotation = inspect.get_annotations(owner)[key]
    alone = type(owner.__name__, (), {"__annotations__": {key: annotation}, "__module__": owner.__module__})
    try:
        return typing.get_type_hints(alone)[key]
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise RegistryError(
            f"{owner.__module__}.{owner.__qualname__}: the annotation '{key}: {annotation}' cannot be resolved "
            f"({error}). Define or import the config class at the top level of {owner.__module__}."
        ) from None
