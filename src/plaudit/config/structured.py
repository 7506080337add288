"""Convert plain dicts to frozen dataclasses and back, with errors that name file, key and value."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, Union

from plaudit.errors import ConfigError, nearest

T = TypeVar("T")

Locate: TypeAlias = Callable[[str], tuple["str | None", str]]
"""From a dotted key to the source that set it and the key as the user wrote it."""


@dataclass(frozen=True)
class Where:
    """A place in a config, as messages name it."""

    key: str
    locate: Locate

    def child(self, name: str) -> Where:
        """The place of the key `name` in this section."""
        return Where(f"{self.key}.{name}" if self.key else name, self.locate)

    def item(self, index: int) -> Where:
        """The place of one element of this list."""
        return Where(f"{self.key}[{index}]", self.locate)

    def error(self, problem: str) -> ConfigError:
        """An error that starts with the source and the key."""
        source, key = self.locate(self.key)
        return ConfigError(": ".join(part for part in (source, key, problem) if part))


def fill(cls: type[T], data: Any, where: str = "", source: str | Locate | None = None) -> T:
    """Makes a `cls` from a mapping, or raises a `ConfigError` about the first key that does not fit.

    Args:
        cls: A dataclass. Its `__post_init__` may raise `ValueError("field: why")`.
        data: The values; missing keys take their defaults.
        where: Dotted key of this section in the whole config.
        source: The file that `data` is from, or a function that tells it for a dotted key.
    """
    locate = source if callable(source) else lambda key: (source, key)
    return typing.cast(T, _section(cls, data, Where(where, locate)))


def to_dict(value: Any) -> Any:
    """A dataclass as plain dicts, lists and scalars: what `fill` takes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_dict(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
    if isinstance(value, Mapping):
        return {key: to_dict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_dict(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def written(part: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a filled dataclass as plain data that `fill` takes back.

    Args:
        part: What `fill` made.
        data: What it was made from, for fields that plain data cannot say: those not in it are left out.
    """
    hints, result = type_hints(type(part)), {}
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if field.init and _can_be_written(hints[field.name], value):
            result[field.name] = to_dict(value)
        elif field.name in data:
            result[field.name] = data[field.name]
    return result


def _can_be_written(hint: Any, value: Any) -> bool:
    """Whether a value is the same again once it was written as plain data and read."""
    data = to_dict(value)
    try:
        return _is_plain(data) and bool(_value(hint, data, Where("", lambda key: (None, key))) == value)
    except ConfigError:
        return False


def _is_plain(data: Any) -> bool:
    if isinstance(data, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in data.items())
    if isinstance(data, list):
        return all(_is_plain(item) for item in data)
    return type(data) in (bool, int, float, str, type(None))


def type_hints(cls: type) -> dict[str, Any]:
    """Resolved annotations; those that name something out of reach (a local class) count as `Any`."""
    try:
        return typing.get_type_hints(cls)
    except NameError:
        return {field.name: _type_hint(cls, field) for field in dataclasses.fields(cls)}


def _type_hint(cls: type, field: dataclasses.Field[Any]) -> Any:
    """The resolved annotation of one field, or `Any`."""
    alone = type(cls.__name__, (), {"__annotations__": {field.name: field.type}, "__module__": cls.__module__})
    try:
        return typing.get_type_hints(alone)[field.name]
    except NameError:
        return Any


def type_text(hint: Any) -> str:
    """A type as a user reads it: `float or null`, `one of 'mlp', 'cnn'`, `list of int`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "null"
    if hint is Any:
        return "anything"
    if origin in (Union, types.UnionType):
        return " or ".join(type_text(arg) for arg in args)
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if (origin or hint) in (list, tuple):
        if origin is tuple and Ellipsis not in args:
            return f"list of {len(args)}: {', '.join(type_text(arg) for arg in args)}"
        return f"list of {type_text(args[0])}" if args else "list"
    if (origin or hint) in (dict, Mapping) or dataclasses.is_dataclass(hint):
        return "mapping"
    return str(getattr(hint, "__name__", hint))


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default; `REQUIRED` where it has none."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return REQUIRED if field.default is dataclasses.MISSING else field.default


def is_required(value: Any) -> bool:
    """Whether a value stands for "the user must give this"."""
    return isinstance(value, str) and value == REQUIRED


def given(value: Any) -> str:
    """A value as messages show it: `'abc' (str)`, shortened where it is long."""
    if value is None:
        return "null"
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"


def _section(cls: Any, data: Any, at: Where) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls) if f.init}
    if not isinstance(data, Mapping):
        raise at.error(f"expected a mapping with keys such as '{next(iter(fields), '')}', got {given(data)}.")
    for name, value in data.items():
        if name not in fields:
            raise at.child(str(name)).error(f"unknown key, given {given(value)}.{_suggest(cls, str(name))}")
    hints = type_hints(cls)
    values = {name: _member(f, hints[name], data, at.child(name)) for name, f in fields.items()}
    try:
        return cls(**values)
    except (ValueError, ConfigError) as error:
        raise _complaint(str(error), values, at) from None


def _member(field: dataclasses.Field[Any], hint: Any, data: Mapping[str, Any], at: Where) -> Any:
    """The value of one field, from `data` or its default."""
    if field.name in data:
        return _value(hint, data[field.name], at)
    default = default_of(field)
    if is_required(default):
        raise at.error(f"missing required value ({type_text(hint)}).")
    if dataclasses.is_dataclass(default) and not isinstance(default, type):
        # A section that is left out may still have required keys in it.
        return _section(type(default), to_dict(default), at)
    return default


def _complaint(text: str, values: Mapping[str, Any], at: Where) -> ConfigError:
    """A dataclass' own `field: why` as an error at that field."""
    name, _, why = text.partition(": ")
    if name not in values or not why:
        return at.error(text)
    why, value = why.rstrip("."), values[name]
    said = any(f"{word} {value}" in why for word in ("got", "not"))
    return at.child(name).error(f"{why}." if said else f"{why}, got {given(value)}.")


def _suggest(cls: Any, name: str) -> str:
    """The nearest key of this section, or the same key one section further in."""
    hints = type_hints(cls)
    for section, hint in hints.items():
        if dataclasses.is_dataclass(hint) and name in {f.name for f in dataclasses.fields(hint)}:
            return f" Did you mean '{section}.{name}'?"
    return nearest(name, [f.name for f in dataclasses.fields(cls) if f.init])


def _value(hint: Any, value: Any, at: Where) -> Any:
    if is_required(value):
        raise at.error(f"missing required value ({type_text(hint)}).")
    if hint is Any:
        return value
    origin = typing.get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(hint, value, at)
    if origin is Literal:
        return _literal(hint, value, at)
    if dataclasses.is_dataclass(hint):
        return _section(hint, value, at)
    if (origin or hint) in (list, tuple):
        return _sequence(hint, value, at)
    if (origin or hint) in (dict, Mapping):
        return _mapping(hint, value, at)
    return _scalar(hint, value, at)


def _union(hint: Any, value: Any, at: Where) -> Any:
    arms = [arm for arm in typing.get_args(hint) if arm is not type(None)]
    if value is None and len(arms) < len(typing.get_args(hint)):
        return None
    if len(arms) == 1 and isinstance(value, (Mapping, list)):
        return _value(arms[0], value, at)  # its message says more than ours would
    for arm in arms:
        try:
            return _value(arm, value, at)
        except ConfigError:
            continue
    raise _mismatch(hint, value, at)


def _literal(hint: Any, value: Any, at: Where) -> Any:
    options = typing.get_args(hint)
    # 1 == True and 1.0 == 1 in Python, and neither is what the user chose.
    if any(type(option) is type(value) and option == value for option in options):
        return value
    close = nearest(value, [o for o in options if isinstance(o, str)]) if isinstance(value, str) else ""
    raise at.error(f"expected {type_text(hint)}, got {given(value)}.{close if 'mean' in close else ''}")


def _sequence(hint: Any, value: Any, at: Where) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _mismatch(hint, value, at)
    kind, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    fixed = kind is tuple and args and Ellipsis not in args
    if fixed and len(value) != len(args):
        raise _mismatch(hint, value, at)
    arms = args if fixed else [args[0] if args else Any] * len(value)
    return kind(_value(arm, item, at.item(i)) for i, (arm, item) in enumerate(zip(arms, value, strict=True)))


def _mapping(hint: Any, value: Any, at: Where) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _mismatch(hint, value, at)
    args = typing.get_args(hint)
    for key in value:
        if not isinstance(key, str):
            raise at.error(f"keys must be text, got {given(key)}.")
    return {key: _value(args[1], item, at.child(key)) if args else item for key, item in value.items()}


def _scalar(hint: Any, value: Any, at: Where) -> Any:
    if hint is float and type(value) in (int, float):
        if math.isnan(value):
            raise at.error("expected a number, got nan.")
        return float(value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    if hint in (bool, int, str):
        if type(value) is hint:  # not isinstance: True is an int to Python
            return value
    elif isinstance(hint, type) and hint is not float and isinstance(value, hint):
        return value
    raise _mismatch(hint, value, at)


def _mismatch(hint: Any, value: Any, at: Where) -> ConfigError:
    arms = typing.get_args(hint) or (hint,)
    whole = int in arms and isinstance(value, float) and value.is_integer()
    return at.error(
        f"expected {type_text(hint)}, got {given(value)}." + (f" Write it as {int(value)}." if whole else "")
    )


REQUIRED: Any = "???"
"""Default of a key that the user must give (Hydra's and OmegaConf's spelling)."""


def require(ok: bool, key: str, why: str) -> None:
    """Raises the `ValueError("key: why")` that `convert.fill` turns into a message with file and dotted key."""
    if not ok:
        raise ValueError(f"{key}: {why}")
