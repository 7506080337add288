"""Acting and learning at the same time against taking turns: on an arm that moves in real time, and in simulation.

Both learn PickCube as RLPD's recipe does, from 20 demonstrations and the simulator's verdict. The arm stands behind a
clock of 10 Hz that waits for nobody: an action that is not there at its tick is a deadline missed. What the machine, or
its host, misses by itself is told by a process that only sleeps until each tick meanwhile; and what of a tick is ours,
by how long the acting thread was at work, and for how long it stood in line for a core, so that a late action that was
the host's can be told from one that was ours.

The learner may take more gradient steps than it can, so that it never has to wait. One arm is slow, these are many for
each env step, and so Adam's step is that of RLPD's paper, and the actor takes part about once for each env step, as
there. Both log and save on the way. Taking turns is then given the same env steps, and the same gradient steps, without
the clock, for as long as it takes.
"""

from __future__ import annotations

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from measure import Row, main, say
from plaudit.config.schema import RuntimeConfig
from plaudit.envs.base import Step, VecEnv
from plaudit.envs.registry import build_env
from plaudit.envs.wrapper import EnvWrapper
from plaudit.pipelines import collect, load
from plaudit.pipelines.demonstrations import pick, show
from plaudit.rl import Callback, Policy, RunFolder, Trainer, build_algo, build_policy
from plaudit.rl.algorithms.sac import SAC
from plaudit.rl.async_.actor import Actor
from plaudit.rl.evaluation import evaluate
from plaudit.rl.loggers import Aside, default_listeners
from plaudit.utils.realtime import has_priority
from plaudit.utils.threads import apart_threads, claim_threads, learning_threads, simulation_threads
from ticking import NOTHING, Ticking, Used, stolen, used

RECIPE = "rlpd_pick_cube"
HZ = 10.0
STARTS = 200
"""Env steps of the arm before learning begins."""

PLENTY = 200.0
"""Gradient steps for each env step: more than one core takes in a tenth of a second."""

MANY = ["algorithm.cfg.learning_rate=3e-4", "algorithm.cfg.actor_interval=40"]
"""For many gradient steps for each env step: small ones, and few of the actor. One core takes some 40 in a tenth of a
second."""

SEEDS = (0, 1, 2)

EPISODES = 256

LAST = (0.8, 0.85, 0.9, 0.95, 1.0)
"""Shares of a training after which its policy is judged: with so few steps one that was better than another is worse a
hundred steps later, and the mean of several tells more."""

WORSE = 0.05
"""By how much success may fall behind that of taking turns, in the mean of the seeds, and count as good as that."""


class Late(NamedTuple):
    """Of an action that missed its tick.

    Attributes:
        seconds: Since the tick before.
        acting: Those of them since the observation: before it, the clock itself was late, or the simulator.
        used: What our thread had of the machine since the action before was there, but for the wait for its tick.
        taken: For how long the host of a virtual machine gave its cores to others meanwhile, all cores together: up to
            a tenth of a second of it while the action before waited for its tick.
    """

    seconds: float
    acting: float
    used: Used
    taken: float

    @property
    def by_host(self) -> bool:
        """Whether the host alone made it late: it waited for nothing, what was ours fits into a tick, and the host took
        the rest. Why it did, as where a virtual machine may use its cores for a part of the time only, nobody tells.
        """
        ours = self.used.work + self.used.line
        return self.used.waits == 0 and ours < 1 / HZ and self.taken >= self.seconds - ours

    def __str__(self) -> str:
        parts = self.seconds, self.acting, self.used.work, self.used.line, self.taken
        late, acting, work, line, taken = (round(1000 * part) for part in parts)
        return (
            f"{late} ms after the tick before, {acting} ms of them acting; at work for {work} ms, in line for a core "
            f"for {line} ms, {self.used.waits} waits, {self.used.faults} new pages, the host took {taken} ms"
        )


class Clocked(EnvWrapper):
    """An env whose time goes on: each action is carried out at its tick, or, if it comes late, at the next one.

    Args:
        env: The env.

    Attributes:
        missed: Ticks that came before their action.
        late: The actions that missed them.
        longest: Seconds between an observation and the action, at most.
        busiest: Seconds for which our thread was at work from one action to the next, or in line for a core, at most.
        waits: How often it waited meanwhile for something other than the tick, all together.
        ahead: Whether it had real-time priority.
    """

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        self.real_time, self.can_save_state = True, False  # Time does not come back.
        self.missed, self.longest, self.busiest, self.waits = 0, 0.0, 0.0, 0
        self.late: list[Late] = []
        self.ahead = False
        self._tick: float | None = None
        self._seen = self._stolen = 0.0
        self._used = NOTHING

    def reset(self, seed: int | None = None) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        self._tick = None
        return self.env.reset(seed)

    def step(self, action: torch.Tensor) -> Step:
        now, total = time.perf_counter(), used()
        since = total.since(self._used)
        since = since._replace(waits=max(0, since.waits))
        if self._tick is None:
            self._tick, self.ahead = now, has_priority()
        else:
            self.longest = max(self.longest, now - self._seen)
            self.busiest = max(self.busiest, since.work + since.line)
            self.waits += since.waits
            self._tick += 1 / HZ
        if self._tick < now:
            self.late.append(Late(now - self._tick + 1 / HZ, now - self._seen, since, stolen() - self._stolen))
        while self._tick < now:
            self.missed += 1
            self._tick += 1 / HZ
        self._stolen = stolen()
        pause = max(0.0, self._tick - time.perf_counter())
        # Before the sleep, from which the host may be late to wake us, or another thread, if it has Python's lock.
        self._used = total._replace(waits=total.waits + (pause > 0.0))
        time.sleep(pause)
        step = self.env.step(action)
        self._seen = time.perf_counter()
        return step


class Meter(Callback):
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


class Snapshots(Callback):
    """Keeps what the policy was at the shares `LAST` of a training of so many env steps.

    Args:
        policy: The policy.
        steps: Of the training.

    Attributes:
        kept: Its weights, each time.
    """

    def __init__(self, policy: Policy, steps: int) -> None:
        self.policy, self.due = policy, [share * steps for share in LAST]
        self.kept: list[dict[str, torch.Tensor]] = []

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.due and step >= self.due[0]:
            self.due = [later for later in self.due if later > step]
            self.kept.append({name: value.clone() for name, value in self.policy.state_dict().items()})

    def success(self, seed: int) -> float:
        """How often they succeed, in the mean."""
        judge, found = arms(64), []
        for weights in self.kept:
            self.policy.load_state_dict(weights)
            found.append(evaluate(self.policy, judge, EPISODES, seed=seed).metrics["success_at_end"])
        judge.close()
        return statistics.mean(found)


@dataclass(frozen=True)
class Outcome:
    """Of one training: the numbers, how often the last policies succeed, and how many gradient steps it took."""

    meter: Meter
    success: float
    updates: int


class Live(NamedTuple):
    """Of one seed on the arm.

    Attributes:
        missed: Deadlines.
        late: The actions that missed them.
        longest: Seconds of the slowest action.
        busiest: Seconds from one action to the next that were ours, at most.
        waits: How often the acting thread waited for something other than its tick.
        bare: What a process missed that only slept meanwhile.
        idle: The learner's share of the time.
        apart: What came of it.
        turns: What comes of taking turns.
    """

    missed: int
    late: list[Late]
    longest: float
    busiest: float
    waits: int
    bare: Ticking
    idle: float
    apart: Outcome
    turns: Outcome


def train(
    data: Path,
    env: VecEnv,
    words: Sequence[str],
    steps: int,
    *,
    apart: bool,
    finishes: bool = True,
    seed: int = 0,
    beside: AbstractContextManager[object] | None = None,
) -> Outcome:
    """Trains for so many env steps on the simulator's verdict, with the demonstrations in `data`, beside which the run
    is kept, while `beside` lasts; without `finishes`, gradient steps that are owed in the end are left.
    """
    config = load(RECIPE, [f"algorithm.cfg.demonstrations={json.dumps(str(data))}", *words])
    claim_threads(learning_threads(), 0 if apart else simulation_threads())
    torch.manual_seed(seed)
    policy = build_policy(config.policy, env.observation_space, env.action_space)
    sac = build_algo("sac", config.algorithm.cfg, policy)
    assert isinstance(sac, SAC)
    actor = Actor(sac, env, config.policy, seed=seed) if apart else None
    meter, snapshots = Meter(), Snapshots(policy, steps)
    rollout = config.runtime.rollout_steps
    iterations = -(-steps // (rollout * env.num_envs)) if finishes else 10**9
    run = RunFolder.create(data.parent, "run")
    settings = RuntimeConfig(
        rollout_steps=rollout, iterations=iterations, seed=seed, save_seconds=config.runtime.save_seconds
    )
    trainer = Trainer(
        policy,
        env,
        actor or sac,
        settings=settings,
        run=run,
        listeners=[meter, snapshots, Aside(default_listeners(run, settings, {}))],
        until=None if finishes else lambda: trainer.step >= steps,
    )
    try:
        show(actor or sac, env, pick(sac, env, None))
        with beside or nullcontext():
            if trainer.train()["interrupted"]:
                raise KeyboardInterrupt  # What was cut short is not compared with anything.
        done = sac.pace.updates if actor is None else actor.exchange.updates
    finally:
        if actor is not None:
            actor.close()
    return Outcome(meter, snapshots.success(1000 + seed), done)


def arms(count: int, threads: int = 0) -> VecEnv:
    """Simulated ones, with the reward of the demonstrations."""
    return build_env("PickCube", {"num_envs": count, "reward_mode": "sparse"}, threads=threads)


def real_time(data: Mapping[int, Path], seconds: float) -> list[Row]:
    """One arm at 10 Hz, seed after seed, each with demonstrations of its own."""
    found = [at_ten_hertz(place, seconds, seed) for seed, place in data.items()]
    pairs = [(one.apart, one.turns) for one in found]
    successes = [statistics.mean(outcome.success for outcome in side) for side in zip(*pairs, strict=True)]
    each = "; ".join(
        f"{a.success:.1%} and {b.success:.1%} after {a.updates:,} and {b.updates:,} gradient steps" for a, b in pairs
    )
    return [
        *deadlines(found),
        Row("10 Hz, learner idle", max(one.idle for one in found), "of the time", target=0.01, lower_is_better=True),
        Row(
            "10 Hz, success, mean",
            successes[0],
            "",
            "taking turns",
            successes[1],
            target=successes[1] - WORSE,
            note=f"{seconds * HZ:,.0f} env steps, {EPISODES} episodes of {len(LAST)} policies each; by seed: {each}",
        ),
    ]


def deadlines(found: Sequence[Live]) -> list[Row]:
    """How many were missed, and whose that was."""
    late = sorted((action for one in found for action in one.late), reverse=True)
    unexplained = [action for action in late if not action.by_host]
    slowest, overslept = max(one.longest for one in found), max(one.bare.longest for one in found)
    notes = [
        f"all seeds; the slowest action came {1000 * slowest:.0f} ms after its observation",
        f"who only sleeps overslept by {1000 * overslept:.0f} ms",
        *(f"late: {action}" for action in late[:3]),
    ]
    return [
        Row(
            "10 Hz, deadlines missed",
            sum(one.missed for one in found),
            "",
            "who only sleeps",
            sum(one.bare.missed for one in found),
            target=0.0,
            lower_is_better=True,
            note="; ".join(notes),
        ),
        Row(
            "10 Hz, late, not shown to be the host's",
            len(unexplained),
            "actions",
            "all that were late",
            len(late),
            target=0.0,
            lower_is_better=True,
            note="; ".join(f"late: {action}" for action in unexplained[:3]),
        ),
        Row(
            "10 Hz, at work or in line for a core",
            1000 * max(one.busiest for one in found),
            "ms",
            "from tick to tick",
            1000 / HZ,
            note=f"from one action to the next, at most; besides it waited {sum(one.waits for one in found)} times for "
            "something other than its tick, all seeds; what the host took while it was at work is not in it",
        ),
    ]


def at_ten_hertz(data: Path, seconds: float, seed: int) -> Live:
    """One arm, and as many gradient steps in turns."""
    say(f"one arm at {HZ:g} Hz, for {seconds:g} s, seed {seed}")
    arm = Clocked(arms(1, threads=1))
    steps = int(seconds * HZ)
    words = [*MANY, "runtime.rollout_steps=5", f"algorithm.cfg.learning_starts={STARTS}"]
    plenty = [*words, f"algorithm.cfg.update_ratio={PLENTY}"]
    bare = Ticking(HZ)
    apart = train(data, arm, plenty, steps, apart=True, finishes=False, seed=seed, beside=bare)
    arm.close()
    ratio = round(apart.updates / (steps - STARTS), 3)
    say(f"the same, taking turns without a clock: {apart.updates:,} gradient steps, {ratio:g} for each env step")
    alone = arms(1, threads=1)
    turns = train(data, alone, [*words, f"algorithm.cfg.update_ratio={ratio}"], steps, apart=False, seed=seed)
    alone.close()
    priority = "with" if arm.ahead else "without"
    say(f"success {apart.success:.1%}, and {turns.success:.1%} taking turns")
    say(f"{arm.missed} deadlines missed {priority} real-time priority, and {bare.missed} by who only sleeps")
    return Live(arm.missed, arm.late, arm.longest, arm.busiest, arm.waits, bare, apart.meter.idle, apart, turns)


def simulated(data: Path, steps: int) -> list[Row]:
    """16 arms as quick as they can be, with the recipe's ratio."""
    say(f"16 simulated arms, {steps:,} env steps")
    found = {}
    for name, apart in (("turns", False), ("apart", True)):
        env = arms(16, threads=apart_threads()[0] if apart else 0)
        found[name] = train(data, env, [], steps, apart=apart)
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
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as scratch:
        data = {}
        for seed in SEEDS[:1] if quick else SEEDS:
            data[seed] = Path(scratch, str(seed), "demonstrations")
            words = [f"reward.data_collection.save_dir={json.dumps(str(data[seed]))}", f"runtime.seed={seed}"]
            collect(load(RECIPE, words), quiet=True)
        return [*real_time(data, 60.0 if quick else 600.0), *simulated(data[0], 4000 if quick else 30_000)]


if __name__ == "__main__":
    main(benchmark)
