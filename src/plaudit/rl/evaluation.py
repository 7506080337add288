"""Evaluate a policy over a fixed number of episodes, and record videos of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import VecEnv
from plaudit.errors import ConfigError
from plaudit.rl.episode_stats import EpisodeTracker
from plaudit.rl.finite_checks import check_finite
from plaudit.rl.observations import flat
from plaudit.rl.policies.base import Policy
from plaudit.rl.reward_source import Relabelled
from plaudit.utils.rng import preserved_rng


@contextlib.contextmanager
def on_the_side(policy: Policy) -> Iterator[None]:
    """Inside, the policy is in eval mode and without gradients; outside, its mode and the random state go on as if
    nothing had been.
    """
    training = policy.training
    policy.eval()
    try:
        with preserved_rng(), torch.no_grad():
            yield
    finally:
        policy.train(training)


@dataclass(frozen=True)
class EvalResult:
    """Episodes of one evaluation.

    Attributes:
        episodes: `return`, `length`, and where the env tells success `success_once` and `success_at_end`; with a
            learned reward also what that takes for success, `model_success_once` and `model_success_at_end`, and
            `env_return`, of the env's own. float32 (episodes,) each, ordered by env and then by time. Episodes that
            ended before the env first told success count as failed.
    """

    episodes: dict[str, torch.Tensor]

    @property
    def metrics(self) -> dict[str, float]:
        """The means."""
        return {name: float(values.mean()) for name, values in self.episodes.items()}


def evaluate(policy: Policy, env: VecEnv, episodes: int, seed: int, deterministic: bool = True) -> EvalResult:
    """Runs exactly `episodes` episodes and leaves training's random state and the policy's mode as they were.

    Each env plays its share, decided beforehand: taking the first `episodes` to finish would favour short ones.
    Numbers that are not finite are a `NonFiniteError`.

    Args:
        policy: Who acts.
        env: Evaluation envs; they are reset with `seed`.
        episodes: How many, spread evenly; what is left over goes to the first envs.
        seed: Same seed, same episodes.
        deterministic: Act by the mean.
    """
    with on_the_side(policy):
        torch.manual_seed(seed)
        return _run(policy, env, episodes, seed, deterministic)


def best_metric(wanted: str, result: Mapping[str, float], env: VecEnv) -> str:
    """The metric of an evaluation that picks the best checkpoint.

    Args:
        wanted: By `runtime.best_metric`.
        result: Of an evaluation.
        env: Training envs.
    """
    if wanted == "auto":
        # The best by a learned reward is the best to that reward: the truth is for people to see.
        headline = f"model_{env.headline}" if isinstance(env, Relabelled) else env.headline
        return headline if headline in result else "return"
    name = wanted.removeprefix("eval/")
    if name not in result:
        raise ConfigError(
            f"runtime.best_metric is '{name}', but {type(env).__name__} told no success in the evaluation. "
            f"Use auto, {' or '.join(result)}."
        )
    return name


def shares(episodes: int, num_envs: int) -> torch.Tensor:
    """How many of the episodes each env plays, int64 (num_envs,)."""
    share, extra = divmod(episodes, num_envs)
    quota = torch.full((num_envs,), share)
    quota[:extra] += 1
    return quota


def _run(policy: Policy, env: VecEnv, episodes: int, seed: int, deterministic: bool) -> EvalResult:
    quota = shares(episodes, env.num_envs)
    played: list[list[dict[str, float]]] = [[] for _ in range(env.num_envs)]
    tracker = EpisodeTracker(env.num_envs, env.device)
    missing, taken = episodes, 0
    obs = flat(env.reset(seed)[0])
    check_finite(obs, "observation", "the evaluation's reset")
    while missing:
        taken += 1
        when = f"step {taken} of the evaluation"
        action = policy.act(obs, deterministic)
        check_finite(action, "action", when)
        step = env.step(action)
        check_finite(step.reward, "reward", when)
        obs = flat(step.obs)
        check_finite(obs, "observation", when)
        ended, numbers = tracker.add(step.reward, step.done, step.success, step.verdict, step.env_reward)
        columns = {name: values.tolist() for name, values in numbers.items()}
        for row, index in enumerate(ended.tolist()):
            if len(played[index]) < quota[index]:
                played[index].append({name: values[row] for name, values in columns.items()})
                missing -= 1
    every = [episode for of_env in played for episode in of_env]
    # Gymnasium envs may tell success only once there is one, so that early episodes have no word on it.
    names = dict.fromkeys(name for episode in every for name in episode)
    return EvalResult({name: torch.tensor([episode.get(name, 0.0) for episode in every]) for name in names})


LONGEST = 500
"""Pictures after which a film stops even if the episode goes on."""


@dataclass(frozen=True)
class Reel:
    """The first episodes of several envs, filmed. T is the longest episode's pictures and, if it ended, one more.

    Attributes:
        frames: uint8 (T, n, H, W, 3). An env that ends is in its next episode at once, so the state that its last
            action led to has no picture: from there on the picture before it is repeated.
        success: bool (T, n), what the env said of the state at that time; from an episode's end on, of its last
            state, so that an episode which ends by success is good on its repeated picture.
        lengths: int64 (n,), pictures of each episode, without the repeated ones.
        fps: Pictures in a second of the real thing.
    """

    frames: NDArray[np.uint8]
    success: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    fps: float


def film(policy: Policy, env: VecEnv, episodes: int, seed: int) -> Reel:
    """Films one episode in each of the first `episodes` envs, acting by the mean. Training's random state and the
    policy's mode stay as they were.

    Args:
        policy: Who acts.
        env: Envs with pictures; they are reset with `seed`.
        episodes: How many, at least 1; at most one for each env is filmed.
        seed: Same seed, same film.
    """
    if episodes < 1:
        raise ConfigError(f"a film needs at least 1 episode (runtime.video_episodes), not {episodes}.")
    with on_the_side(policy):
        torch.manual_seed(seed)
        return _shoot(policy, env, min(episodes, env.num_envs), seed)


def _shoot(policy: Policy, env: VecEnv, count: int, seed: int) -> Reel:
    ids = torch.arange(count)
    running = np.ones(count, bool)
    lengths = np.ones(count, np.int64)
    obs = flat(env.reset(seed)[0])
    frames = [env.portrait(ids).cpu().numpy()]
    success = [np.zeros(count, bool)]
    while running.any() and len(frames) < LONGEST:
        step = env.step(policy.act(obs, deterministic=True))
        good = success[-1].copy()
        if step.success is not None:
            # Of the ending step too: it is told before the next episode begins.
            good[running] = step.success[:count].cpu().numpy()[running]
        success.append(good)
        running &= ~step.done[:count].cpu().numpy()
        now = frames[-1].copy()
        if running.any():
            now[running] = env.portrait(ids[torch.from_numpy(running)]).cpu().numpy()
        frames.append(now)
        lengths[running] += 1
        obs = flat(step.obs)
    return Reel(np.stack(frames), np.stack(success), lengths, env.fps)
