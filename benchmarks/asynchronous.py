"""Acting and learning at the same time against taking turns: on an arm that moves in real time, and in simulation.

The arm is PushCube behind a clock of 10 Hz that waits for nobody: an action that is not there at its tick is a deadline
missed. The learner may take more gradient steps than it can, so that it never has to wait. Taking turns is then given
the same env steps and gradient steps, without the clock, for as long as it takes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from measure import Row, main, say
from plaudit.config.algorithms import SACConfig
from plaudit.config.schema import NetworkConfig, PolicyConfig, RuntimeConfig
from plaudit.envs.base import Step, VecEnv
from plaudit.envs.registry import build_env
from plaudit.envs.wrapping import EnvWrapper
from plaudit.rl import Listener, Trainer, build_algo, build_policy
from plaudit.rl.algorithms.sac import SAC
from plaudit.rl.asynchronous.actor import Actor
from plaudit.rl.evaluate import evaluate

HZ = 10.0
STARTS = 200
"""Env steps before learning begins."""

PLENTY = 200.0
"""Gradient steps for each env step: more than one core takes in a tenth of a second."""

EPISODES = 128
NETWORK = NetworkConfig(hidden_sizes=(128, 128), activation="relu")
POLICY = PolicyConfig(name="sac", cfg={"critic_layer_norm": True}, actor=NETWORK, critic=NETWORK)
KEYS = {
    "learning_rate": 6e-4,
    "gamma": 0.97,
    "n_step": 3,
    "init_temperature": 0.1,
    "backup_entropy": False,
    "learning_starts": STARTS,
    "capacity": 200_000,
}


class Clocked(EnvWrapper):
    """An env whose time goes on: each action is carried out at its tick, or, if it comes late, at the next one.

    Args:
        env: The env.

    Attributes:
        missed: Ticks that came before their action.
        longest: Seconds between an observation and the action, at most.
    """

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        self.real_time = True
        self.missed, self.longest = 0, 0.0
        self._tick: float | None = None
        self._seen = 0.0

    def reset(self, seed: int | None = None) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        self._tick = None
        return self.env.reset(seed)

    def step(self, action: torch.Tensor) -> Step:
        now = time.perf_counter()
        if self._tick is None:
            self._tick = now
        else:
            self.longest = max(self.longest, now - self._seen)
            self._tick += 1 / HZ
        while self._tick < now:
            self.missed += 1
            self._tick += 1 / HZ
        time.sleep(max(0.0, self._tick - time.perf_counter()))
        step = self.env.step(action)
        self._seen = time.perf_counter()
        return step


class Meter(Listener):
    """Notes when how many gradient steps had been taken."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, float, float]] = []

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        idle = metrics.get("charts/learning_idle", 0.0)
        self.rows.append((time.perf_counter(), step, metrics["train/updates"], idle))

    @property
    def learning(self) -> list[tuple[float, int, float, float]]:
        """The rows since learning is under way; the first gradient steps find the process just begun."""
        return [row for row in self.rows if row[2] > 0][1:]

    def per_minute(self, column: int) -> float:
        """Env steps (1) or gradient steps (2) in a minute."""
        first, last = self.learning[0], self.learning[-1]
        return 60.0 * (last[column] - first[column]) / (last[0] - first[0])

    @property
    def idle(self) -> float:
        """Share of the time for which no gradient step was owed."""
        rows = self.learning
        waited = sum((b[0] - a[0]) * b[3] for a, b in itertools.pairwise(rows))
        return waited / (rows[-1][0] - rows[0][0])


@dataclass(frozen=True)
class Outcome:
    """Of one training: the numbers, how often the policy succeeds, and how many gradient steps it took."""

    meter: Meter
    success: float
    updates: int


def train(env: VecEnv, steps: int, ratio: float, rollout: int, *, apart: bool, finishes: bool = True) -> Outcome:
    """Trains for so many env steps; without `finishes`, gradient steps that are owed in the end are left."""
    torch.manual_seed(0)
    policy = build_policy(POLICY, env.observation_space, env.action_space)
    cfg = SACConfig(**{**KEYS, "update_ratio": ratio})  # type: ignore[arg-type]
    sac = build_algo("sac", cfg, policy)
    assert isinstance(sac, SAC)
    actor = Actor(sac, env, POLICY) if apart else None
    meter = Meter()
    iterations = -(-steps // (rollout * env.num_envs))
    trainer = Trainer(
        policy,
        env,
        actor or sac,
        settings=RuntimeConfig(rollout_steps=rollout, iterations=iterations if finishes else 10**9),
        listeners=[meter],
        until=None if finishes else lambda: trainer.step >= steps,
    )
    try:
        trainer.train()
        done = sac.pace.updates if actor is None else actor.exchange.updates
    finally:
        if actor is not None:
            actor.close()
    judge = build_env("PushCube", {"num_envs": 64})
    success = evaluate(policy, judge, EPISODES, seed=1).metrics["success_once"]
    judge.close()
    return Outcome(meter, success, done)


def real_time(seconds: float) -> list[Row]:
    """One arm at 10 Hz."""
    say(f"one arm at {HZ:g} Hz, for {seconds:g} s")
    arm = Clocked(build_env("PushCube", {"num_envs": 1}, threads=1))
    steps = int(seconds * HZ)
    apart = train(arm, steps, PLENTY, 5, apart=True, finishes=False)
    arm.close()
    ratio = round(apart.updates / (steps - STARTS), 3)
    say(f"the same, taking turns without a clock: {apart.updates:,} gradient steps, {ratio:g} for each env step")
    alone = build_env("PushCube", {"num_envs": 1}, threads=1)
    turns = train(alone, steps, ratio, 5, apart=False)
    alone.close()
    slowest = f"the slowest action came {1000 * arm.longest:.0f} ms after its observation"
    counts = f"{apart.updates:,} and {turns.updates:,} gradient steps in {steps:,} env steps, {EPISODES} episodes"
    return [
        Row("10 Hz, deadlines missed", arm.missed, "", target=0.0, lower_is_better=True, note=slowest),
        Row("10 Hz, learner idle", apart.meter.idle, "of the time", target=0.01, lower_is_better=True),
        Row("10 Hz, success", apart.success, "", "taking turns", turns.success, note=counts),
    ]


def simulated(steps: int) -> list[Row]:
    """16 arms as quick as they can be, with the recipes' ratio."""
    say(f"16 simulated arms, {steps:,} env steps")
    found = {}
    for name, apart in (("turns", False), ("apart", True)):
        env = build_env("PushCube", {"num_envs": 16}, threads=1 if apart else 0)
        found[name] = train(env, steps, 0.25, 4, apart=apart)
        env.close()
    rows = []
    for what, column in (("env steps", 1), ("gradient steps", 2)):
        ours, theirs = (found[name].meter.per_minute(column) for name in ("apart", "turns"))
        rows.append(Row(f"simulation, {what}", ours, "/min", "taking turns", theirs, ours / theirs))
    idle = f"learner idle {found['apart'].meter.idle:.0%} of the time"
    both = found["apart"].success, found["turns"].success
    return [*rows, Row("simulation, success", both[0], "", "taking turns", both[1], note=idle)]


def benchmark(quick: bool) -> list[Row]:
    """Both."""
    return [*real_time(60.0 if quick else 900.0), *simulated(4000 if quick else 30_000)]


if __name__ == "__main__":
    main(benchmark)
