"""SAC's gradient steps against Stable-Baselines3's, with two critics and with ten, and what a picture takes up.

Both sides draw their batches from a replay of the same env and take the same steps: actor, critics and temperature at
every one, on networks of the same size. The peer computes its ten critics one after the other, with autograd; so that
what the ensemble adds can be told from what the gradients by hand do, ours also take turns with the same gradients by
hand of one critic after the other. And beside both stand the products between hidden layers of the same update alone,
with nothing between them. Targets are the least of all critics on every side.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import torch
from stable_baselines3 import SAC as Sb3SAC

from measure import Row, main, paired_ratio, say, take_turns
from plaudit.compute import cores
from plaudit.config.schema import RuntimeConfig
from plaudit.envs.registry import build_env
from plaudit.rl import Trainer, build_algo, build_policy
from plaudit.rl.algorithms.sac import SAC
from plaudit.rl.ensemble import Ensemble, Pass
from plaudit.rl.replay import Replay
from sb3_adapter import Sb3Adapter

BATCH, WIDTH, FILLED, NUM_ENVS = 256, 256, 2048, 16
LATER = 10**9
"""Learning does not begin by itself."""


class OneByOne:
    """An ensemble's members one after the other, as ten networks of one critic: the same weights, the same numbers.

    Args:
        together: The pass of all of them.
    """

    def __init__(self, together: Pass) -> None:
        self.members = [self._member(together, number) for number in range(together.network.members)]

    @staticmethod
    def _member(together: Pass, number: int) -> Pass:
        row = slice(number, number + 1)
        names = ("weights", "biases", "scales", "shifts")
        parts = {name: [part[row] for part in getattr(together, name)] for name in names}
        gradients = {
            id(part): whole[row]
            for name in names
            for part, whole in zip(parts[name], getattr(together, f"d_{name}", ()), strict=False)
        }
        network = cast(Ensemble, SimpleNamespace(activation=together.network.activation, **parts))
        return Pass(network, (lambda part: gradients[id(part)]) if gradients else None)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor | None = None) -> torch.Tensor:
        """As `Pass.forward`."""
        asked = self.members if chosen is None else [self.members[number] for number in chosen.tolist()]
        return torch.cat([member.forward(x) for member in asked])

    def backward(
        self, gradient: torch.Tensor, *, learns: bool = True, inputs: slice | None = None
    ) -> torch.Tensor | None:
        """As `Pass.backward`."""
        found = [
            member.backward(part[None], learns=learns, inputs=inputs)
            for member, part in zip(self.members, gradient, strict=True)
        ]
        return None if inputs is None else torch.stack([part for part in found if part is not None]).sum(0)


def plaudit_steps(critics: int, *, looped: bool = False) -> Callable[[int], object]:
    """Our gradient steps, so many at a call; `looped` has one critic after the other computed."""
    env = build_env("PushCube", {"num_envs": NUM_ENVS})
    network = {"type": "mlp", "hidden_sizes": [WIDTH, WIDTH], "activation": "relu"}
    block = {"name": "sac", "cfg": {"num_critics": critics}, "actor": network, "critic": network}
    policy = build_policy(block, env.observation_space, env.action_space)
    cfg = {"batch_size": BATCH, "capacity": 100_000, "learning_starts": LATER, "min_critics": critics}
    algorithm = build_algo("sac", cfg, policy)
    assert isinstance(algorithm, SAC)
    trainer = Trainer(policy, env, algorithm, settings=RuntimeConfig(rollout_steps=FILLED // NUM_ENVS))
    trainer.train(iterations=1)
    env.close()
    learner = algorithm.learner
    if looped:
        learner.critics, learner.target = (cast(Pass, OneByOne(part)) for part in (learner.critics, learner.target))
    return lambda count: learner.learn(algorithm.batch(count), count)


def sb3_steps(critics: int) -> Callable[[int], object]:
    """SB3's."""
    env = Sb3Adapter(build_env("PushCube", {"num_envs": NUM_ENVS}))
    networks = {"net_arch": [WIDTH, WIDTH], "n_critics": critics}
    model = Sb3SAC("MlpPolicy", env, policy_kwargs=networks, learning_starts=LATER, buffer_size=100_000, device="cpu")
    model.learn(FILLED, log_interval=None)
    env.close()
    return lambda count: model.train(count, BATCH)


def products(critics: int) -> Callable[[int], object]:
    """The products between hidden layers of such an update, so many updates at a call.

    Each critic has three (forward, and back to its weights and to its inputs), its target one, and the actor's way
    through it two, forward and back; the actor has one for the next action, and three of its own.
    """
    sides = [(6, critics), (4, 1)]
    shapes = [(times, torch.randn(n, BATCH, WIDTH), torch.randn(n, WIDTH, WIDTH)) for times, n in sides]
    outs = [torch.empty_like(x) for _, x, _ in shapes]

    def run(count: int) -> None:
        for _ in range(count):
            for (times, x, weights), out in zip(shapes, outs, strict=True):
                for _ in range(times):
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


def compared(critics: int, target: float, quick: bool) -> list[Row]:
    """All sides, each with the number of threads that is best for it."""
    say(f"gradient steps/s, {critics} critics of {WIDTH} x {WIDTH}, batches of {BATCH}")
    sides = {"plaudit": plaudit_steps(critics), "sb3": sb3_steps(critics), "products": products(critics)}
    if critics > 2:
        sides["one by one"] = plaudit_steps(critics, looped=True)
    count = 10 if quick else 50
    runs = {}
    for name, steps in sides.items():
        steps(2)  # Once for nothing.
        runs |= {f"{name}, {n}t": speed(steps, n, count) for n in sorted({1, cores()})}
    seen = take_turns(runs, 3 if quick else 7)
    best = {
        side: max((name for name in seen if name.startswith(side)), key=lambda name: statistics.median(seen[name]))
        for side in sides
    }
    mine = best.pop("plaudit")
    ours = seen[mine]
    peers = {
        "sb3": "SB3" if critics == 2 else "SB3, which loops over critics",
        "one by one": "our own, looped over",
        "products": "the products alone",
    }
    rows = []
    for side, name in best.items():
        theirs, note = seen[name], f"threads: ours {mine[-2]}, the other {name[-2]}"
        value, other, ratio = statistics.median(ours), statistics.median(theirs), paired_ratio(ours, theirs)
        wanted = target if side == "sb3" else None  # Against ourselves it is told, not promised: see the docstring.
        rows.append(Row(f"SAC, {critics} critics", value, "updates/s", peers[side], other, ratio, wanted, note=note))
    return rows


def memory() -> Row:
    """Bytes of a replay for each transition with a picture, over those of one picture; episodes of 50 steps."""
    shape, length = (64, 64, 3), 50
    replay = Replay(4096, 1, {"camera": shape, "state": (18,)}, 4)
    pictures = torch.zeros(length + 1, *shape, dtype=torch.uint8)
    ended = torch.arange(length) == length - 1
    told = {"reward": torch.zeros(length), "terminated": torch.zeros_like(ended), "ended": ended}
    for _ in range(100):
        replay.add_episode({"camera": pictures, "state": torch.zeros(length + 1, 18)}, torch.zeros(length, 4), told)
    each, frame = replay.nbytes / len(replay), float(pictures[0].nbytes)
    return Row("replay, a transition", each, "bytes", "one 64x64 picture", frame, each / frame, 1.05, True)


def benchmark(quick: bool) -> list[Row]:
    """All of it."""
    return [*compared(2, 2.0, quick), *compared(10, 3.0, quick), memory()]


if __name__ == "__main__":
    main(benchmark)
