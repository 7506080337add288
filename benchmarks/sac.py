"""SAC's gradient steps against Stable-Baselines3's and against a loop over critics, and what a picture takes up.

All sides draw their batches from a replay of the same env and take the same steps on networks of the same size. With
two critics, and with ten of which all are believed, that is what Stable-Baselines3 can do: actor, critics and
temperature at every step. With ten as RLPD has them, two are drawn for the target, there is LayerNorm, and the actor
climbs the mean; it learns at every second step, as in our recipes, or at every twentieth, as in the paper.
The loop (`sac_loop.py`) computes one critic after the other, with autograd. Ours also take turns with themselves
without the kernel, where a layer of all critics is one batched product. And beside all stand the products between
hidden layers of the same update alone, with nothing between them. Last, what it is worth that Adam's moments of
inactive units are cleared, after so many steps that there are such.
Freed memory is kept, as in a run, which is for the good of all sides.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import torch
from stable_baselines3 import SAC as Sb3SAC

from measure import Row, main, paired_ratio, say, take_turns
from plaudit.config.schema import RuntimeConfig
from plaudit.envs.registry import build_env
from plaudit.rl import Trainer, build_algo, build_policy
from plaudit.rl.accel import critic_kernel as members
from plaudit.rl.accel import flat_adam as flatten
from plaudit.rl.algorithms.sac import SAC
from plaudit.rl.buffers.replay_buffer import ReplayBuffer
from plaudit.utils.realtime import keep_freed_memory
from plaudit.utils.threads import cores
from sac_loop import Loop, Shape
from sb3_adapter import Sb3Adapter

BATCH, FILLED, NUM_ENVS = 256, 2048, 16

RLPD = Shape(10, 128, believed=2, mean=True, norm=True, interval=2)
"""Its paper's critics, with the units and the actor's interval of our recipe."""

PAPER = replace(RLPD, width=256, interval=20)
"""With the paper's units and interval."""

LATER = 10**9
"""Learning does not begin by itself."""


def filled(shape: Shape) -> SAC:
    """Our algorithm, with a replay to learn from."""
    env = build_env("PushCube", {"num_envs": NUM_ENVS})
    network = {"type": "mlp", "hidden_sizes": [shape.width] * 2, "activation": "relu"}
    critics = {"num_critics": shape.critics, "critic_layer_norm": shape.norm}
    block = {"name": "sac", "cfg": critics, "actor": network, "critic": network}
    policy = build_policy(block, env.observation_space, env.action_space)
    cfg = {
        "batch_size": BATCH,
        "capacity": 100_000,
        "learning_starts": LATER,
        "min_critics": shape.believed,
        "actor_critics": "mean" if shape.mean else "min",
        "actor_interval": shape.interval,
    }
    algorithm = build_algo("sac", cfg, policy)
    assert isinstance(algorithm, SAC)
    trainer = Trainer(policy, env, algorithm, settings=RuntimeConfig(rollout_steps=FILLED // NUM_ENVS))
    trainer.train(iterations=1)
    env.close()
    return algorithm


def plaudit_steps(shape: Shape, *, kernel: bool = True) -> Callable[[int], object]:
    """Our gradient steps, so many at a call."""
    with nullcontext() if kernel else patch.object(members, "MISSING", "left out"):
        algorithm = filled(shape)
    return lambda count: algorithm.learner.learn(algorithm.batch(count), count)


def left_alone(shape: Shape) -> Callable[[int], object]:
    """Our gradient steps with Adam's moments left to shrink."""
    steps = plaudit_steps(shape)

    def run(count: int) -> None:
        with patch.object(flatten, "CLEARS_EVERY", LATER):
            steps(count)

    return run


def loop_steps(shape: Shape) -> Callable[[int], object]:
    """Those of a loop over critics with autograd, on batches of our replay."""
    algorithm = filled(shape)
    features, to_unit = algorithm.policy.features, algorithm.policy.to_unit
    first = algorithm.batch(1)
    loop = Loop(shape, features(first.obs).shape[-1], first.action.shape[-1])

    def run(count: int) -> None:
        batch = algorithm.batch(count)
        with torch.no_grad():
            parts = features(batch.obs), features(batch.next_obs), to_unit(batch.action), batch.reward, batch.discount
        for obs, next_obs, action, reward, discount in zip(*(part.split(BATCH) for part in parts), strict=True):
            loop.step(obs, next_obs, batch._replace(action=action, reward=reward, discount=discount))

    return run


def sb3_steps(shape: Shape) -> Callable[[int], object]:
    """SB3's."""
    env = Sb3Adapter(build_env("PushCube", {"num_envs": NUM_ENVS}))
    networks = {"net_arch": [shape.width] * 2, "n_critics": shape.critics}
    model = Sb3SAC("MlpPolicy", env, policy_kwargs=networks, learning_starts=LATER, buffer_size=100_000, device="cpu")
    model.learn(FILLED, log_interval=None)
    env.close()
    return lambda count: model.train(count, BATCH)


def products(shape: Shape) -> Callable[[int], object]:
    """The products between hidden layers of such updates, so many updates at a call.

    Each critic has three (forward, and back to its weights and to its inputs), each target that is believed one, and
    the actor's way through a critic two, forward and back; the actor has one for the next action, and three of its own.
    """
    sides = [(3, shape.critics, 1), (1, shape.believed, 1), (2, shape.critics, shape.interval)]
    sides += [(1, 1, 1), (3, 1, shape.interval)]
    shapes = [
        (times, torch.randn(n, BATCH, shape.width), torch.randn(n, shape.width, shape.width), every)
        for times, n, every in sides
    ]
    outs = [torch.empty_like(x) for _, x, _, _ in shapes]

    def run(count: int) -> None:
        for step in range(count):
            for (times, x, weights, every), out in zip(shapes, outs, strict=True):
                for _ in range(times if step % every == 0 else 0):
                    torch.bmm(x, weights, out=out)

    return run


def speed(steps: Callable[[int], object], threads: int, count: int) -> Callable[[], float]:
    """A run that gives gradient steps in a second."""

    def run() -> float:
        torch.set_num_threads(threads)
        started = time.perf_counter()
        steps(count)
        return count / (time.perf_counter() - started)

    return run


def compared(name: str, shape: Shape, wanted: Mapping[str, float | None], quick: bool, *, done: int = 2) -> list[Row]:
    """All sides in `wanted`, by the ratio that is, each with the number of threads that is best for it, when some steps
    are done.
    """
    say(f"gradient steps/s, {name}, {shape.width} x {shape.width} units, batches of {BATCH}")
    count = 20 if quick else 60
    runs = {}
    for side in ("plaudit", *wanted):
        steps = SIDES[side](shape)
        steps(done)
        runs |= {f"{side}, {n}t": speed(steps, n, count) for n in sorted({1, cores()})}
    seen = take_turns(runs, 3 if quick else 7)
    best = {
        side: max((key for key in seen if key.startswith(side)), key=lambda key: statistics.median(seen[key]))
        for side in ("plaudit", *wanted)
    }
    mine = best.pop("plaudit")
    ours = seen[mine]
    rows = []
    for side, key in best.items():
        theirs, note = seen[key], f"threads: ours {mine.split()[-1]}, the other {key.split()[-1]}"
        value, other, ratio = statistics.median(ours), statistics.median(theirs), paired_ratio(ours, theirs)
        rows.append(Row(f"SAC, {name}", value, "updates/s", side, other, ratio, wanted[side], note=note))
    return rows


SIDES: dict[str, Callable[[Shape], Callable[[int], object]]] = {
    "plaudit": plaudit_steps,
    "SB3": sb3_steps,
    "loop over critics": loop_steps,
    "our own, without the kernel": partial(plaudit_steps, kernel=False),
    "products alone": products,
    "our own, moments left alone": left_alone,
}


def memory() -> Row:
    """Bytes of a replay for each transition with a picture, over those of one picture; episodes of 50 steps."""
    shape, length = (64, 64, 3), 50
    replay = ReplayBuffer(4096, 1, {"camera": shape, "state": (18,)}, 4)
    pictures = torch.zeros(length + 1, *shape, dtype=torch.uint8)
    ended = torch.arange(length) == length - 1
    told = {"reward": torch.zeros(length), "terminated": torch.zeros_like(ended), "done": ended}
    for _ in range(100):
        replay.add_episode({"camera": pictures, "state": torch.zeros(length + 1, 18)}, torch.zeros(length, 4), told)
    each, frame = replay.nbytes / len(replay), float(pictures[0].nbytes)
    return Row("replay, a transition", each, "bytes", "one 64x64 picture", frame, each / frame, 1.05, True)


def benchmark(quick: bool) -> list[Row]:
    """All of it."""
    keep_freed_memory()
    beside: dict[str, float | None] = {"our own, without the kernel": None, "products alone": None}
    loop: dict[str, float | None] = {"loop over critics": 3.0}
    two = Shape(2, 256, believed=2)
    return [
        *compared("2 critics", two, {"SB3": 2.0} | beside, quick),
        *compared("10 critics as in RLPD", RLPD, loop | beside, quick),
        *compared("10 critics as in its paper", PAPER, loop | beside, quick),
        *compared("the same, actor at every second", replace(PAPER, interval=2), loop | beside, quick),
        *compared("10 critics, the least believed", Shape(10, 256, believed=10), {"SB3": None} | loop | beside, quick),
        *compared("2 critics, 1,500 steps later", two, {"our own, moments left alone": None}, quick, done=1500),
        memory(),
    ]


if __name__ == "__main__":
    main(benchmark)
