"""The benchmarks in turn, each in a process of its own; `plaudit bench` calls `run`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import Row, machine, say, table
from plaudit.errors import ConfigError, MissingDependencyError, PlauditError, nearest

BENCHMARKS = {
    "step": "env steps/s, against bare mujoco.rollout and AsyncVectorEnv",
    "render": "frames/s, against bare mujoco.Renderer",
    "ppo": "PPO, against Stable-Baselines3's",
    "sac": "SAC's gradient steps, against Stable-Baselines3's",
    "asynchronous": "SAC that acts and learns at the same time, against taking turns, in real time and in simulation",
    "visual": "PPO from pictures, against its envs alone",
    "frames": "random frames and bytes on disk, against a loader of whole .npy files",
    "collect": "collecting episodes, with and without the writer",
    "fit": "fitting a head on a frozen encoder, against running the encoder in every epoch",
    "fit_memory": "memory of a fit, for few and many frames",
    "engine": "scored images/s, against eager torch",
    "reward_loop": "PPO on a learned reward in each of its modes, against PPO on the env's own",
    "footprint": "memory of training, and time to start",
    "maniskill": "ManiSkill's env steps/s, against a bare loop and AsyncVectorEnv",
}
PEERS = {
    "ppo": ("stable_baselines3", "pip install stable-baselines3"),
    "sac": ("stable_baselines3", "pip install stable-baselines3"),
    "maniskill": ("mani_skill", "make maniskill"),
}
"""Benchmarks whose peer does not come with us: its module, and how to get it."""


def run(names: Sequence[str] = (), quick: bool = False) -> dict[str, Any]:
    """Runs the benchmarks called `names`; prints a table and returns its rows.

    Args:
        names: Keys of `BENCHMARKS`; by default all, without ManiSkill's where it is not installed.
        quick: Fewer and shorter rounds.
    """
    chosen = list(names) or [name for name in BENCHMARKS if name != "maniskill" or _installed("mani_skill")]
    for name in chosen:
        if name not in BENCHMARKS:
            raise ConfigError(f"unknown benchmark '{name}'.{nearest(name, BENCHMARKS)}")
        if name in PEERS and not _installed(PEERS[name][0]):
            raise MissingDependencyError(f"the benchmark '{name}' needs its peer: {PEERS[name][1]}")
    where = machine()
    _introduce(where)
    rows: dict[str, list[dict[str, Any]]] = {}
    failed = []
    for name in chosen:
        say(f"\n{name}: {BENCHMARKS[name]}")
        found = _run_one(name, quick)
        if found is None:
            failed.append(name)
        else:
            rows[name] = found
    every = [
        Row(**{key: value for key, value in row.items() if key != "met"}) for part in rows.values() for row in part
    ]
    print(f"\n{table(every)}\nload average at the end: {os.getloadavg()[0]:.2f}")
    if failed:
        raise PlauditError(f"these benchmarks failed: {', '.join(failed)}; see above for why.")
    return {"machine": where, "quick": quick, "benchmarks": rows, "met": all(row.met is not False for row in every)}


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _run_one(name: str, quick: bool) -> list[dict[str, Any]] | None:
    """The rows of one benchmark, or `None` if it failed; its progress goes to stderr as it runs."""
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *(["--quick"] if quick else [])]
    # Threads that spin while they wait take cores from the simulator; passive ones are best for all sides.
    environ = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "MUJOCO_GL": "egl", "LP_NUM_THREADS": "0"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environ, check=False)
    if done.returncode:
        return None
    found: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _introduce(where: dict[str, Any]) -> None:
    """Says where this runs, and warns if it is not alone there."""
    versions = ", ".join(f"{package} {version}" for package, version in where["versions"].items())
    print(f"{where['cores']} cores ({where['cpu']}), load average {where['load'][0]} at the start")
    print(f"Python {where['python']}, {versions}")
    if where["load"][0] > 0.5:
        print("The machine is busy: ratios are still of some use, absolute numbers are not.")
