"""Our PPO against Stable-Baselines3's: same network, same batch sizes, same settings, in turns.

Two settings. `batched` hands our batched env to SB3, so that only the algorithms differ: the time outside the env is
compared, and SB3's env time includes the adapter. `as its users run it` gives SB3 a process for each single env, with
its `Monitor` around it as `make_vec_env` does, and leaves torch's number of threads as it is, which SB3 does too; a
second row has it held to one thread by hand, as a user who measured would. Both sides do as they are shipped: ours also
normalises observations, keeps episode statistics and checks every number.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv

from measure import Row, Stopwatch, main, paired_ratio, say
from plaudit import pipelines as stages
from plaudit.config.schema import RuntimeConfig
from plaudit.envs.registry import build_env
from plaudit.rl import Trainer, build_algo, build_policy
from plaudit.utils.threads import cores
from sb3_adapter import Sb3Adapter, ppo
from single_env import makers

NUM_ENVS, STEPS = 256, 16
BATCH = NUM_ENVS * STEPS
HIDDEN = (128, 128)
GRADIENT_STEPS = 4 * BATCH // 256


@dataclass
class Sample:
    """Seconds of some iterations."""

    total: float
    env: float
    update: float
    iterations: int

    @property
    def outside(self) -> float:
        """Seconds an iteration outside the env."""
        return (self.total - self.env) / self.iterations

    @property
    def steps_per_second(self) -> float:
        """Of the whole loop."""
        return BATCH * self.iterations / self.total

    @property
    def updates_per_second(self) -> float:
        """Gradient steps in a second of the update."""
        return GRADIENT_STEPS * self.iterations / self.update


class Learner:
    """One side: something that learns for some iterations while watches run.

    Args:
        learn: Runs that many iterations.
        env: Watch on the env's step.
        update: Watch on the update.
        close: Gives back what it holds.
    """

    def __init__(
        self, learn: Callable[[int], object], env: Stopwatch, update: Stopwatch, close: Callable[[], None]
    ) -> None:
        self.learn, self.env, self.update, self.close = learn, env, update, close

    def sample(self, iterations: int, threads: int) -> Sample:
        """Learns for `iterations` with so many torch threads."""
        torch.set_num_threads(threads)
        env, update, started = self.env.seconds, self.update.seconds, time.perf_counter()
        self.learn(iterations)
        total = time.perf_counter() - started
        return Sample(total, self.env.seconds - env, self.update.seconds - update, iterations)


def plaudit_learner() -> Learner:
    """Our PPO, with the recipe's settings, under our trainer."""
    config = stages.load("push_cube", [f"env.cfg.num_envs={NUM_ENVS}", f"runtime.rollout_steps={STEPS}"])
    env = build_env("PushCube", {"num_envs": NUM_ENVS})
    policy = build_policy(config.policy, env.observation_space, env.action_space, torch.device("cpu"))
    settings = {"learning_rate": 1e-3, "n_epochs": 4, "batch_size": 256, "gamma": 0.97, "gae_lambda": 0.9}
    algorithm = build_algo("ppo", settings, policy)
    trainer = Trainer(policy, env, algorithm, settings=RuntimeConfig(rollout_steps=STEPS))
    watches = Stopwatch(env, "step"), Stopwatch(algorithm, "update")
    return Learner(lambda count: trainer.train(trainer.iteration + count), *watches, env.close)


def sb3_learner(env: Any) -> Learner:
    """SB3's PPO on an SB3 `VecEnv`, with a batch of the same size."""
    model = ppo(env, BATCH // env.num_envs, HIDDEN)
    watches = Stopwatch(env, "step_wait"), Stopwatch(model, "train")

    def learn(count: int) -> None:
        model.learn(count * BATCH, reset_num_timesteps=False, log_interval=None)

    return Learner(learn, *watches, env.close)


def compare(
    sides: dict[str, Learner], choices: dict[str, tuple[int, ...]], rounds: int, iterations: int
) -> dict[tuple[str, int], list[Sample]]:
    """Samples of all sides, with each of their numbers of torch threads, in turns."""
    seen: dict[tuple[str, int], list[Sample]] = {(name, n): [] for name in sides for n in choices[name]}
    for learner in sides.values():
        learner.sample(1, 1)  # Once for nothing: starts the envs.
    for turn in range(rounds):
        for (name, threads), samples in seen.items():
            samples.append(sides[name].sample(iterations, threads))
        found = (f"{name} {samples[-1].steps_per_second:,.0f} ({n}t)" for (name, n), samples in seen.items())
        say(f"  {turn + 1}/{rounds}: " + ", ".join(found))
    return seen


def best(seen: dict[tuple[str, int], list[Sample]], *names: str) -> tuple[str, int]:
    """Which of some sides, with which number of threads, was the fastest."""
    return max((key for key in seen if key[0] in names), key=lambda key: _median(seen[key]))


def _median(samples: list[Sample]) -> float:
    return statistics.median(sample.steps_per_second for sample in samples)


def batched(quick: bool) -> list[Row]:
    """Both algorithms on our batched env."""
    say(f"steps/s of the whole loop on the batched env, {NUM_ENVS} envs x {STEPS} steps")
    sides = {
        "plaudit": plaudit_learner(),
        "sb3": sb3_learner(Sb3Adapter(build_env("PushCube", {"num_envs": NUM_ENVS}))),
    }
    threads = tuple(sorted({1, min(2, cores())}))
    seen = compare(sides, dict.fromkeys(sides, threads), *((3, 2) if quick else (7, 6)))
    our_best, their_best = best(seen, "plaudit"), best(seen, "sb3")
    ours, theirs = seen[our_best], seen[their_best]
    for learner in sides.values():
        learner.close()
    note = f"torch threads: {our_best[1]} for ours, {their_best[1]} for SB3's; simulation: {cores()} threads for both"
    rows = []
    for name, unit, get, target, lower in (
        ("PPO, time outside the env", "ms/iteration", lambda s: 1e3 * s.outside, 0.5, True),
        ("PPO, time inside the env", "ms/iteration", lambda s: 1e3 * s.env / s.iterations, None, True),
        ("PPO, gradient steps", "updates/s", lambda s: s.updates_per_second, None, False),
        ("PPO, whole loop", "steps/s", lambda s: s.steps_per_second, None, False),
    ):
        mine, other = [get(sample) for sample in ours], [get(sample) for sample in theirs]
        value, peer, ratio = statistics.median(mine), statistics.median(other), paired_ratio(mine, other)
        rows.append(Row(name, value, unit, "SB3, same batched env", peer, ratio, target, lower, note))
        note = ""
    return rows


def _monitored(make: Callable[[], Any]) -> Monitor:
    return Monitor(make())


def as_users_run_it(quick: bool) -> list[Row]:
    """Our whole loop against SB3 with a process for each env."""
    say(f"steps/s of the whole loop, SB3 with SubprocVecEnv, batches of {BATCH}")
    sides, choices = {"plaudit": plaudit_learner()}, {"plaudit": (1,)}
    for processes in (2, 8) if quick else (2, 4, 8, 16):
        name = f"{processes} processes"
        sides[name] = sb3_learner(SubprocVecEnv([partial(_monitored, make) for make in makers(processes)]))
        choices[name] = (cores(), 1) if cores() > 1 else (1,)
    seen = compare(sides, choices, *((1, 1) if quick else (5, 2)))
    for learner in sides.values():
        learner.close()
    rows = []
    for threads, how, target in ((cores(), "as shipped", 5.0), (1, "torch held to 1 thread", None)):
        column = {key: samples for key, samples in seen.items() if key[0] != "plaudit" and key[1] == threads}
        key = best(column, *sides)
        speeds = [[s.steps_per_second for s in samples] for samples in (seen["plaudit", 1], column[key])]
        value, peer = (statistics.median(side) for side in speeds)
        note = "; ".join(f"{name}: {_median(samples):,.0f}" for (name, _), samples in column.items())
        peer_name = f"SB3 {how}, SubprocVecEnv, {key[0]}"
        rows.append(Row("PPO, whole loop", value, "steps/s", peer_name, peer, paired_ratio(*speeds), target, note=note))
    return rows


def benchmark(quick: bool) -> list[Row]:
    """Both settings."""
    return [*batched(quick), *as_users_run_it(quick)]


if __name__ == "__main__":
    main(benchmark)
