"""Env steps/s of the batched PushCube on state, against a bare `mujoco.rollout` loop and Gymnasium's AsyncVectorEnv.

All sides step the same physics: actions are recorded once (random in half of the envs, the scripted expert's with
noise in the other half, so that there is contact), and the bare loop starts every step from the recorded state.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv
from numpy.typing import NDArray

from measure import Row, main, paired_ratio, say, take_turns
from plaudit.envs.mujoco.config import PushCubeConfig
from plaudit.envs.mujoco.push_cube import PushCube
from plaudit.utils.threads import claim_threads, cores
from single_env import makers

NUM_ENVS = 256
STATE = mujoco.mjtState
CONTROL = int(STATE.mjSTATE_CTRL.value | STATE.mjSTATE_MOCAP_POS.value | STATE.mjSTATE_MOCAP_QUAT.value)


@dataclass
class Recording:
    """What happened in an episode's worth of steps: everything that replays it.

    Attributes:
        actions: float32 (num_envs, action_dim), one for each step.
        states: float64 (num_envs, state size), before each step.
        controls: float64 (num_envs, substeps, nu + 7), actuator targets and scenery in each step.
    """

    actions: list[torch.Tensor]
    states: list[NDArray[np.float64]]
    controls: list[NDArray[np.float64]]


def record(env: PushCube, steps: int) -> Recording:
    """Steps `env` from seed 0 and keeps all that the peers need."""
    seen = Recording([], [], [])
    sim, inner = env.sim, env.sim.step
    ramp = np.linspace(0, 1, sim.substeps + 1)[1:, None]

    def step(target: NDArray[np.float64]) -> None:
        moves = sim.ctrl[:, None] + ramp * (target - sim.ctrl)[:, None]
        scenery = np.broadcast_to(sim.scenery[:, None], (env.num_envs, sim.substeps, 7))
        seen.states.append(sim.state.copy())
        seen.controls.append(np.concatenate([moves, scenery], axis=2))
        inner(target)

    sim.step = step  # type: ignore[method-assign]
    generator = torch.Generator().manual_seed(0)
    env.reset(0)
    env.stagger()
    for _ in range(steps):
        action = 2 * torch.rand(env.num_envs, 4, generator=generator) - 1
        expert = env.expert_action()
        half = env.num_envs // 2
        action[:half] = (expert[:half] + 0.3 * action[:half]).clamp(-1, 1)
        env.step(action)
        seen.actions.append(action)
    sim.step = inner  # type: ignore[method-assign]
    return seen


def ours(env: PushCube, seen: Recording) -> float:
    """Steps/s of our env."""
    env.reset(0)
    env.stagger()
    started = time.perf_counter()
    for action in seen.actions:
        env.step(action)
    return env.num_envs * len(seen.actions) / (time.perf_counter() - started)


def bare_loop(env: PushCube, seen: Recording, threads: int) -> Callable[[], float]:
    """The limit: nothing but the physics of the same steps.

    It runs on the env's own thread pool. With a pool for each side in one process, on two cores, our side measured 8 %
    slower than with one pool (0.78 against 0.86 of the limit), which is not a cost that a user has.
    """
    model, pool = env.sim.model, env.sim._pool
    models = [model] * env.num_envs
    data = [mujoco.MjData(model) for _ in range(threads)]
    trace = np.zeros((env.num_envs, env.sim.substeps, seen.states[0].shape[1]))
    sensors = np.zeros((env.num_envs, env.sim.substeps, model.nsensordata))
    common: dict[str, Any] = {"nstep": env.sim.substeps, "control_spec": CONTROL, "skip_checks": True}

    def run() -> float:
        started = time.perf_counter()
        for state, control in zip(seen.states, seen.controls, strict=True):
            pool.rollout(models, data, initial_state=state, control=control, state=trace, sensordata=sensors, **common)
        return env.num_envs * len(seen.states) / (time.perf_counter() - started)

    return run


def async_vector(processes: int, seen: Recording) -> tuple[AsyncVectorEnv, Callable[[], float]]:
    """Gymnasium's vector env over `processes` single envs, and a function that gives its steps/s."""
    # A fresh server forks the workers, since our own threads must not be forked.
    envs = AsyncVectorEnv(makers(processes), shared_memory=True, copy=False, context="forkserver")
    actions = [action[:processes].numpy() for action in seen.actions]

    def run() -> float:
        envs.reset()
        started = time.perf_counter()
        for _ in range(4):  # Each of its steps is short, so that one pass would be over too soon.
            for action in actions:
                envs.step(action)
        return 4 * processes * len(actions) / (time.perf_counter() - started)

    return envs, run


def benchmark(quick: bool) -> list[Row]:
    """Measures all three in turns."""
    claim_threads()
    threads, rounds = cores(), 3 if quick else 9
    env = PushCube(PushCubeConfig(num_envs=NUM_ENVS), threads=threads)
    seen = record(env, 25 if quick else 100)
    peers: dict[str, Callable[[], float]] = {}
    vectors = []
    for processes in (2, 4, 8):
        envs, peers[f"AsyncVectorEnv, {processes} processes"] = async_vector(processes, seen)
        vectors.append(envs)
    limit = bare_loop(env, seen, threads)
    ours(env, seen), limit()  # Once for nothing: the first touch of memory is slow.
    say(f"steps/s of {NUM_ENVS} envs with {threads} threads, and of the bare loop")
    speeds = take_turns({"plaudit": lambda: ours(env, seen), "rollout": limit}, rounds)
    say("steps/s beside AsyncVectorEnv")
    others = take_turns({"plaudit": lambda: ours(env, seen), **peers}, max(2, rounds // 3))
    for envs in vectors:
        envs.close()
    env.close()
    best = max(peers, key=lambda name: statistics.median(others[name]))
    value, bound, peer = (statistics.median(x) for x in (speeds["plaudit"], speeds["rollout"], others[best]))
    what, note = f"stepping, {NUM_ENVS} envs", f"{threads} threads each; same states and controls"
    return [
        Row(what, value, "steps/s", "bare rollout", bound, paired_ratio(*speeds.values()), 0.80, note=note),
        Row(
            what,
            statistics.median(others["plaudit"]),
            "steps/s",
            best,
            peer,
            paired_ratio(others["plaudit"], others[best]),
            3.0,
            note="; ".join(f"{name}: {statistics.median(others[name]):,.0f}" for name in peers),
        ),
    ]


if __name__ == "__main__":
    main(benchmark)
