"""From one recipe to the configs of all stages of a run, each of them checked before any work."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plaudit.compat.config_dialects import translate
from plaudit.config.loader import (
    apply_overrides,
    check_config,
    check_fit_config,
    compose,
    display_name,
    interpolated,
    merge,
    named_files,
    nest,
)
from plaudit.config.schema import Config, FitConfig, RunConfig
from plaudit.config.structured import Where, fill, to_dict
from plaudit.config.validation import ConfigType
from plaudit.utils.provenance import COMMAND_LINE, Sources, leaves

DECIDED: dict[str, dict[str, Any]] = {
    "collect": {
        "reward.collect_data": True,
        "reward.use_reward_model": False,
        "reward.data_collection.save_dir": None,
        "reward.data_collection.positive_dir": None,
        "reward.data_collection.format": "plaudit",
    },
    "fit": {
        "reward.training.data.path": "1_collect/data",
        "reward.training.data.positive_dir": None,
        "reward.training.save_dir": None,
    },
    "train": {
        "reward.collect_data": False,
        "reward.use_reward_model": True,
        "reward.checkpoint_path": "2_fit/best_model",
    },
}
"""Keys of each stage that connect it with the others; places are in the run's folder."""


@dataclass(frozen=True)
class Plan:
    """A run: what each of its stages does.

    Attributes:
        collect: A policy that learns on the env's own reward, and what it keeps on the way.
        fit: The reward model.
        train: A policy that learns on that model.
        episodes: Fresh episodes on which each policy is judged at the end.
    """

    collect: Config
    fit: FitConfig
    train: Config
    episodes: int

    def to_dict(self) -> dict[str, Any]:
        """As a config file that gives the same plan."""
        return {"run": to_dict(self)}


def load_plan(
    recipe: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    config_file: str | Path | None = None,
    registries: Mapping[str, ConfigType] | None = None,
    prepare: Callable[[Config | FitConfig], None] | None = None,
) -> Plan:
    """Composes, overrides and checks the configs of all stages.

    A stage has the recipe's keys, over them those of its own block (`run.collect`, `run.fit`, `run.train`), over them
    the overrides: the command line has the last word. An override `run.train.runtime.seed=2` is for one stage only, and
    goes before `runtime.seed=1`, which is for all of them. The arguments are those of `load_config`.
    """
    paths = named_files(recipe, config_file)
    sources = Sources(display_name(paths[-1]))
    tree = merge({}, *[compose(path, sources) for path in paths])
    about_run = [text for text in overrides if re.match(r"[+~]*run\b", text) and not _of_stage(text)]
    block = apply_overrides({"run": tree.pop("run", None) or {}}, about_run, sources)["run"]
    keys = fill(RunConfig, block, "run", sources)
    shared = [text for text in overrides if text not in about_run and not _of_stage(text)]

    def read(stage: str) -> tuple[dict[str, Any], Sources]:
        own = [words[1] for text in overrides if (words := _of_stage(text)) and words[0] == stage]
        return _stage_tree(stage, tree, getattr(keys, stage), [*shared, *own], sources)

    fit = check_fit_config(*read("fit"), registries, prepare)
    train, known = read("train")
    return Plan(
        collect=check_config(*read("collect"), registries, prepare, trains=False),
        fit=fit,
        train=_fitted_alike(check_config(train, known, registries, prepare), fit, known),
        episodes=keys.episodes,
    )


def _fitted_alike(train: Config, fit: FitConfig, sources: Sources) -> Config:
    """A training that fits its reward model further, where it has to, as it was fitted before."""
    before = dict(leaves(to_dict(fit.reward.training)))
    for key, value in leaves(to_dict(train.reward.training)):
        source = sources.of(f"reward.training.{key}")
        if before.get(key) != value and (source == COMMAND_LINE or source.endswith("run.train")):
            raise Where(f"reward.training.{key}", sources).error(
                f"{value!r}: a run refreshes its reward model with the settings of its fit; set run.fit instead."
            )
    return replace(train, reward=replace(train.reward, training=fit.reward.training))


def has_stages(recipe: str | Path) -> bool:
    """Whether a recipe says how the stages of a run differ."""
    paths = named_files(recipe, None)
    return "run" in compose(paths[0], Sources(""))


def _of_stage(override: str) -> tuple[str, str] | None:
    """The stage that an override is for, and what it says there: `run.fit.a=1` is `a=1` of `fit`."""
    found = re.match(r"([+~]*)run\.(collect|fit|train)\.(.+)", override, re.DOTALL)
    return None if found is None else (found[2], found[1] + found[3])


def _stage_tree(
    stage: str, tree: dict[str, Any], block: dict[str, Any], overrides: Sequence[str], sources: Sources
) -> tuple[dict[str, Any], Sources]:
    """All keys of one stage, and who set them."""
    known = copy.deepcopy(sources)
    block = translate(block, f"{sources.of(f'run.{stage}')}, run.{stage}")
    for key, value in leaves(block):
        known.record(nest(key, value), f"{sources.of(f'run.{stage}.{key}')}, run.{stage}")
    whole = interpolated(apply_overrides(merge(tree, block), overrides, known), known)
    for key, value in DECIDED[stage].items():
        given = _value(whole, key)
        if given is not None and given != value:
            raise Where(key, known).error(
                f"{given!r}: plaudit run itself connects its stages by this key; leave it out."
            )
        whole = merge(whole, nest(key, value))
    return whole, known


def _value(tree: Any, key: str) -> Any:
    for name in key.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return None
        tree = tree[name]
    return tree
