"""Lists of what there is, and the benchmarks."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plaudit.config.docs import describe
from plaudit.envs.registry import ENVS, env_config_type
from plaudit.errors import ConfigError
from plaudit.pipelines.builders import check_env


def envs() -> list[dict[str, Any]]:
    """The registered envs, a line each."""
    rows = [{"id": name, "description": ENVS.entry(name).options["about"]} for name in ENVS.names()]
    return [
        *rows,
        {"id": "gym:<id>", "description": "Any Gymnasium env with a continuous action space."},
        {"id": "maniskill:<id>", "description": "Any ManiSkill 3 task; needs plaudit[maniskill]."},
    ]


def env_keys(name: str) -> list[dict[str, Any]]:
    """The keys of an env's `env.cfg`."""
    check_env(name)
    config_type = env_config_type(name)
    if config_type is None:
        return []
    return [
        {"key": row.key, "type": row.type, "default": "(required)" if row.required else row.default, "about": row.doc}
        for row in describe(config_type)
    ]


def bench(names: Sequence[str] = (), *, quick: bool = False) -> dict[str, Any]:
    """Runs the benchmarks of a source checkout."""
    folder = Path(__file__).resolve().parents[3] / "benchmarks"
    if not (folder / "suite.py").is_file():
        raise ConfigError("the benchmarks come with the source code, not with the package: run this in a checkout.")
    sys.path.insert(0, str(folder))
    suite = importlib.import_module("suite")
    return dict(suite.run(list(names), quick=quick))
