"""Evaluation over a fixed number of episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from plaudit.envs.base import Step, VecEnv
from plaudit.rl.obs import flat
from plaudit.rl.policy import Policy
from plaudit.rl.rng import preserved_rng
from plaudit.rl.stats import EpisodeTracker

OnStep: TypeAlias = Callable[[Step], None]


@dataclass(frozen=True)
class EvalResult:
    """Episodes of one evaluation.

    Attributes:
        episodes: `return`, `length`, and where the env tells success `success_once` and `success_at_end`; float32
            (episodes,) each, ordered by env and then by time.
    """

    episodes: dict[str, torch.Tensor]

    @property
    def metrics(self) -> dict[str, float]:
        """The means."""
        return {name: float(values.mean()) for name, values in self.episodes.items()}


def evaluate(
    policy: Policy,
    env: VecEnv,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    on_step: OnStep | None = None,
) -> EvalResult:
    """Runs exactly `episodes` episodes and leaves training's random state and the policy's mode as they were.

    Each env plays its share, decided beforehand: taking the first `episodes` to finish would favour short ones.

    Args:
        policy: Who acts.
        env: Evaluation envs; they are reset with `seed`.
        episodes: How many, spread evenly; what is left over goes to the first envs.
        seed: Same seed, same episodes.
        deterministic: Act by the mean.
        on_step: Called with each step, for videos.
    """
    training = policy.training
    policy.eval()
    try:
        with preserved_rng(), torch.no_grad():
            torch.manual_seed(seed)
            return _run(policy, env, episodes, seed, deterministic, on_step)
    finally:
        policy.train(training)


def _run(
    policy: Policy, env: VecEnv, episodes: int, seed: int, deterministic: bool, on_step: OnStep | None
) -> EvalResult:
    share, extra = divmod(episodes, env.num_envs)
    quota = torch.full((env.num_envs,), share)
    quota[:extra] += 1
    played: list[list[dict[str, float]]] = [[] for _ in range(env.num_envs)]
    tracker = EpisodeTracker(env.num_envs, env.device)
    missing = episodes
    obs = flat(env.reset(seed)[0])
    while missing:
        action, _, _ = policy.get_action(obs, deterministic)
        step = env.step(action)
        if on_step is not None:
            on_step(step)
        ended, numbers = tracker.add(step.reward, step.done, step.success)
        columns = {name: values.tolist() for name, values in numbers.items()}
        for row, index in enumerate(ended.tolist()):
            if len(played[index]) < quota[index]:
                played[index].append({name: values[row] for name, values in columns.items()})
                missing -= 1
        obs = flat(step.obs)
    every = [episode for of_env in played for episode in of_env]
    return EvalResult({name: torch.tensor([episode[name] for episode in every]) for name in every[0]})
