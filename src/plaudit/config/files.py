"""Config files: finding recipes, reading YAML and JSON, and composing Hydra's defaults lists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from plaudit.config.aliases import translate
from plaudit.config.sources import Sources
from plaudit.errors import ConfigError, nearest

SHIPPED = Path(str(files("plaudit.config"))) / "recipes"
SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Include:
    """One entry of a defaults list.

    Attributes:
        path: File to read, without suffix, relative to the file that names it. `_self_` is that file's own content.
        package: Dotted key to place it under; "" for the top.
        optional: Whether it may be missing.
    """

    path: str
    package: str = ""
    optional: bool = False


def recipe_names() -> dict[str, str]:
    """Shipped recipes and what the first comment of each says. A leading underscore marks a building block."""
    paths = sorted(p for p in SHIPPED.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("_"))
    return {path.stem: _first_comment(path) for path in paths}


def find_recipe(recipe: str | Path) -> Path:
    """The file of a shipped recipe's name, or of the user's own path."""
    path = Path(recipe)
    if path.suffix in SUFFIXES or path.is_file() or len(path.parts) > 1:
        return path
    found = _with_suffix(SHIPPED / path.name)
    if found is None:
        raise ConfigError(
            f"unknown recipe '{recipe}'.{nearest(str(recipe), recipe_names())} "
            "A file of your own needs its suffix: .yaml, .yml or .json."
        )
    return found


def display_name(path: Path) -> str:
    """A file as messages call it: the user's own as given, a shipped one from `recipes/` on."""
    return str(Path("recipes") / path.relative_to(SHIPPED)) if path.is_relative_to(SHIPPED) else str(path)


def read_file(path: Path) -> dict[str, Any]:
    """A YAML or JSON file as plain dicts, interpolations unresolved, in canonical spelling."""
    name = display_name(path)
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{name}: a config file ends in .yaml, .yml or .json.")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{name}: no such file.{_nearby(path)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: cannot be read: {error}.") from None
    tree = _parse_json(text, name) if path.suffix == ".json" else _parse_yaml(text, name)
    if not isinstance(tree, dict):
        raise ConfigError(f"{name}: expected a mapping at the top, got {type(tree).__name__}.")
    return tree


def compose(path: Path, sources: Sources, package: str = "", chain: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A file with everything that its defaults list names, merged in that order; `sources` learns who set what.

    Args:
        path: The file.
        sources: Filled in on the way.
        package: Dotted key that this file is placed under, for `sources`.
        chain: Files that are being composed already, to find cycles.
    """
    if path.resolve() in chain:
        loop = " -> ".join(display_name(p) for p in (*chain, path.resolve()))
        raise ConfigError(f"{display_name(path)}: defaults: these files include each other: {loop}.")
    tree = read_file(path)
    tree.pop("hydra", None)  # Hydra's own settings: where it logs, how it sweeps
    includes = _defaults(tree.pop("defaults", []), display_name(path))
    tree = translate(tree, display_name(path)) if not package else tree
    merged: dict[str, Any] = {}
    for include in includes:
        if include.path == "_self_":
            sources.record(tree, display_name(path), package)
            part = tree
        else:
            found = _find_include(include, path)
            if found is None:
                continue
            inner = ".".join(p for p in (package, include.package) if p)
            part = nest(include.package, compose(found, sources, inner, (*chain, path.resolve())))
        merged = merge(merged, part)
    return merged


def merge(*trees: dict[str, Any], resolve: bool = False) -> dict[str, Any]:
    """Plain dicts laid over each other, lists as a whole; with `resolve`, `${...}` replaced by what it stands for."""
    from omegaconf import OmegaConf

    return cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.merge(*trees), resolve=resolve))


def nest(key: str, value: Any) -> Any:
    """`value` under a dotted key: `nest("a.b", 1)` is `{"a": {"b": 1}}`."""
    for name in reversed(key.split(".") if key else []):
        value = {name: value}
    return value


def _defaults(entries: Any, name: str) -> list[Include]:
    if not isinstance(entries, list):
        raise ConfigError(f"{name}: defaults: expected a list, got {type(entries).__name__}.")
    includes = [include for entry in entries for include in _entry(entry, name)]
    if Include("_self_") not in includes:
        includes.append(Include("_self_"))  # as Hydra does: a file has the last word over what it includes
    return includes


def _entry(entry: Any, name: str) -> list[Include]:
    """One entry: `recipe`, `group/option`, `group: option`, `group: [a, b]`, any with `@package`."""
    key, options = entry, [None]
    if isinstance(entry, Mapping) and len(entry) == 1:
        key, option = next(iter(entry.items()))
        options = option if isinstance(option, list) else [option]
    if not isinstance(key, str) or not all(isinstance(o, (str, type(None))) for o in options):
        raise ConfigError(f"{name}: defaults: expected 'recipe' or 'group: option', got {entry!r}.")
    words = key.split()
    if words[-1].startswith("hydra/"):
        return []
    if "override" in words:
        raise ConfigError(f"{name}: defaults: '{key}': only 'override hydra/...' can be overridden here.")
    group, _, package = words[-1].partition("@")
    optional = "optional" in words
    if isinstance(entry, Mapping):
        package = (package or group).replace("/", ".")
        return [Include(f"{group}/{option}", package, optional) for option in options if option is not None]
    return [Include(group, (package or group.rpartition("/")[0]).replace("/", "."), optional)]


def _find_include(include: Include, parent: Path) -> Path | None:
    """Beside the file that names it, then among the shipped ones."""
    beside = _with_suffix(parent.parent / include.path)
    shipped = _with_suffix(SHIPPED / include.path)
    # A user's push_cube.yaml may build on the shipped push_cube.
    if beside is not None and shipped is not None and beside.resolve() == parent.resolve():
        return shipped
    found = beside or shipped
    if found is None and not include.optional:
        known = {p.stem for p in (*parent.parent.glob("*"), *SHIPPED.iterdir()) if p.suffix in SUFFIXES}
        raise ConfigError(
            f"{display_name(parent)}: defaults: no config '{include.path}' beside it or among the shipped ones."
            f"{nearest(include.path, known)}"
        )
    return found


def _with_suffix(path: Path) -> Path | None:
    if path.suffix in SUFFIXES:
        return path if path.is_file() else None
    candidates = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
    return next((c for c in candidates if c.is_file()), None)


def _parse_yaml(text: str, name: str) -> Any:
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        # OmegaConf's loader, because it reads 1e-3 as a number and refuses a key that is given twice.
        return OmegaConf.to_container(OmegaConf.create(text or "{}"), resolve=False)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ConfigError(f"{name}:{place} not valid YAML: {error.problem}.") from None
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{name}: not valid YAML: {str(error).splitlines()[0]}.") from None


def _parse_json(text: str, name: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f"{name}: the key '{key}' is given twice in one object.")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name}: line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}.") from None


def _first_comment(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((line.lstrip("# ").strip() for line in lines if line.startswith("#")), "")


def _nearby(path: Path) -> str:
    """A suggestion among the config files of the same folder."""
    if not path.parent.is_dir():
        return ""
    names = [p.name for p in path.parent.iterdir() if p.suffix in SUFFIXES]
    hint = nearest(path.name, names)
    return hint if "Did you mean" in hint else ""
