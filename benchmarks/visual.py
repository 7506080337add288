"""Where the seconds of PPO from pictures go, and how near the whole loop comes to its envs alone.

The envs with their pictures are the limit: whatever the policy does beside them is waiting. Each part is timed in the
loop itself, as `plaudit train push_cube_cnn` runs it, with as many threads of torch.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from measure import Row, Stopwatch, main, number, paired_ratio, say
from plaudit.utils.threads import claim_threads, cores, learning_threads, wait_quietly

if TYPE_CHECKING:
    from plaudit.rl import Trainer

RECIPE = "push_cube_cnn"


def build() -> Trainer:
    """The recipe's trainer."""
    from plaudit import pipelines as stages
    from plaudit.envs.registry import build_env
    from plaudit.rl import Trainer, build_algo, build_policy

    config = stages.load(RECIPE)
    env = build_env(config.env.id, config.env.cfg)
    policy = build_policy(config.policy, env.observation_space, env.action_space)
    algorithm = build_algo(config.algorithm.name, config.algorithm.cfg, policy)
    return Trainer(policy, env, algorithm, settings=config.runtime)


def steps_per_second(run: Callable[[], object], steps: int) -> float:
    """Of one run."""
    started = time.perf_counter()
    run()
    return steps / (time.perf_counter() - started)


def benchmark(quick: bool) -> list[Row]:
    """Whole iterations of training, each followed by as many steps of the envs alone."""
    wait_quietly()
    import torch

    claim_threads(learning_threads(looks=True))
    trainer = build()
    env, each = trainer.env, trainer.settings.rollout_steps
    steps, still = env.num_envs * each, torch.zeros(env.num_envs, *env.action_space.shape)
    watches = {
        "envs": Stopwatch(env, "step"),
        "acting": Stopwatch(trainer.policy, "get_action"),
        "learning": Stopwatch(trainer.algorithm, "update"),
    }
    trainer.train(1)  # Once for nothing: starts renderers and envs.
    loop, limit, spent = [], [], dict.fromkeys(watches, 0.0)
    rounds = 3 if quick else 12
    say(f"steps/s of {RECIPE} with {env.num_envs} envs and {torch.get_num_threads()} threads of torch")
    for turn in range(rounds):
        before = {name: watch.seconds for name, watch in watches.items()}
        loop.append(steps_per_second(lambda: trainer.train(trainer.iteration + 1), steps))
        spent = {name: spent[name] + watch.seconds - before[name] for name, watch in watches.items()}
        limit.append(steps_per_second(lambda: [env.step(still) for _ in range(each)], steps))
        say(f"  {turn + 1}/{rounds}: whole loop {number(loop[-1])}, envs alone {number(limit[-1])}")
    env.close()
    shares = ", ".join(f"{name} {1e3 * seconds / (rounds * steps):.3f}" for name, seconds in spent.items())
    note = f"ms a step: {shares}; {cores()} cores for all of them"
    values = statistics.median(loop), "steps/s", "its envs alone", statistics.median(limit), paired_ratio(loop, limit)
    return [Row("PPO from pictures, whole loop", *values, note=note)]


if __name__ == "__main__":
    main(benchmark)
