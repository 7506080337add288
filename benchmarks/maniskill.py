"""Env steps/s of the ManiSkill adapter, against a bare loop over one of ManiSkill's envs, and its own CPU wrapper.

All sides play the same random actions on PickCube-v1: on state, with pictures as observations, and, to see what a
`terminal` reward costs, on state with a picture of each episode's last state. With `--hour`, memory is watched instead.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measure import Row, main, paired_ratio, say, take_turns
from plaudit.envs.maniskill.adapter import ManiSkillEnv
from plaudit.envs.maniskill.config import ManiSkillConfig
from plaudit.envs.maniskill.process_pool import WorkerPool
from plaudit.utils.threads import claim_threads, cores

TASK = "PickCube-v1"
PER_WORKER = 8
"""Envs of one of our processes; the peers have one."""


def one_env(mode: str) -> Any:
    """ManiSkill's env as its documentation makes it, single and unbatched."""
    import gymnasium
    import mani_skill.envs  # noqa: F401 - registers the tasks
    from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

    torch.set_num_threads(1)
    size = {"height": 64, "width": 64}
    env = gymnasium.make(
        TASK, obs_mode=mode, sim_backend="physx_cpu", render_backend="cpu", num_envs=1, sensor_configs=size
    )
    return CPUGymWrapper(env, ignore_terminations=True)


def ours(env: ManiSkillEnv, steps: int) -> float:
    """Steps/s of our env, resets included."""
    generator = torch.Generator().manual_seed(0)
    env.reset(0)
    env.stagger()
    started = time.perf_counter()
    for _ in range(steps):
        env.step(2 * torch.rand(env.num_envs, env.action_space.shape[0], generator=generator) - 1)
    return env.num_envs * steps / (time.perf_counter() - started)


def bare_loop(env: Any, steps: int) -> float:
    """Steps/s of one env in this process, reset when its episode ends."""
    random = np.random.default_rng(0)
    env.reset(seed=0)
    started = time.perf_counter()
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(random.uniform(-1, 1, env.action_space.shape).astype(np.float32))
        if terminated or truncated:
            env.reset()
    return steps / (time.perf_counter() - started)


def async_vector(envs: Any, steps: int) -> float:
    """Steps/s of Gymnasium's vector env over ManiSkill's wrapper."""
    random = np.random.default_rng(0)
    envs.reset(seed=0)
    started = time.perf_counter()
    for _ in range(steps):
        envs.step(random.uniform(-1, 1, envs.action_space.shape).astype(np.float32))
    return int(envs.num_envs) * steps / (time.perf_counter() - started)


def compare(mode: str, steps: int, rounds: int) -> list[Row]:
    """One observation mode: ours, the bare loop and the vector wrapper in turns."""
    from gymnasium.vector import AsyncVectorEnv

    processes = cores()
    with ExitStack() as stack:
        cfg = ManiSkillConfig(num_envs=PER_WORKER * processes, obs_mode="rgb" if mode == "rgb" else "state")
        env = ManiSkillEnv(TASK, cfg)
        stack.callback(env.close)
        single = one_env(mode)
        stack.callback(single.close)
        vector = AsyncVectorEnv([partial(one_env, mode)] * processes, context="forkserver")
        stack.callback(vector.close)
        runs: dict[str, Callable[[], float]] = {
            "plaudit": lambda: ours(env, steps),
            "bare": lambda: bare_loop(single, PER_WORKER * steps),
            "async": lambda: async_vector(vector, PER_WORKER * steps),
        }
        # Once for nothing: with the first frame of a process, Mesa spends many seconds on compiling shaders.
        ours(env, 1), bare_loop(single, 1), async_vector(vector, 1)
        say(f"steps/s, {mode}")
        speeds = take_turns(runs, rounds)
        terminal = None
        if mode == "state":
            env.request_frames("terminal")
            env.render()
            terminal = take_turns({"terminal frames": runs["plaudit"]}, 1)["terminal frames"]
    value, bare, peer = (statistics.median(speeds[name]) for name in runs)
    note = f"{processes} processes with {PER_WORKER} envs each"
    rows = [
        Row(
            f"ManiSkill, {mode}",
            value,
            "steps/s",
            "bare loop",
            bare,
            paired_ratio(speeds["plaudit"], speeds["bare"]),
            1.7,
        ),
        Row(
            f"ManiSkill, {mode}",
            value,
            "steps/s",
            f"AsyncVectorEnv, {processes} processes",
            peer,
            paired_ratio(speeds["plaudit"], speeds["async"]),
            1.0,
            note=note,
        ),
    ]
    if terminal is not None:
        rows.append(
            Row(
                "ManiSkill, state and last frames", terminal[0], "steps/s", "without frames", value, terminal[0] / value
            )
        )
    return rows


def benchmark(quick: bool) -> list[Row]:
    """State and pictures."""
    claim_threads()
    os.environ["LP_NUM_THREADS"] = "0"  # Mesa draws in the thread that asks, so that every process uses one core.
    rounds = 2 if quick else 5
    return [*compare("state", 25 if quick else 100, rounds), *compare("rgb", 5 if quick else 25, rounds)]


def watch(minutes: float) -> list[Row]:
    """Memory of a rollout: of us and of the workers, now and then; last frames of episodes included."""
    claim_threads()
    env = ManiSkillEnv(TASK, ManiSkillConfig(num_envs=4 * cores(), frames="terminal"))
    assert isinstance(env.sim, WorkerPool)
    pids = [os.getpid(), *(worker.process.pid for worker in env.sim._workers)]
    seen: list[list[float]] = []
    env.reset(0)
    env.stagger()
    started = time.perf_counter()
    steps = 0
    while (passed := (time.perf_counter() - started) / 60) < minutes:
        env.step(2 * torch.rand(env.num_envs, env.action_space.shape[0]) - 1)
        steps += env.num_envs
        if passed >= len(seen) * minutes / 20:
            seen.append([_resident(pid) for pid in pids])
            say(f"  {passed:5.1f} min, {steps:,} steps: {', '.join(f'{size:,.0f}' for size in seen[-1])} MiB")
    env.close()
    settled, last = sum(seen[len(seen) // 4]), sum(seen[-1])
    note = f"{minutes:g} minutes, {steps:,} steps; from the first quarter to the end, all processes together"
    return [Row("ManiSkill, memory", last, "MiB", "after a quarter", settled, last / settled, 1.05, True, note)]


def _resident(pid: int) -> float:
    """Memory that a process holds, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--hour", type=float, nargs="?", const=60.0, metavar="MINUTES", help="watch memory for an hour")
    args, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    main(benchmark if args.hour is None else lambda _: watch(args.hour))
