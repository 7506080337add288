"""Stable-Baselines3's PPO on our envs with our recipe's settings: what a peer makes of the same steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

from plaudit.config.algorithm_schema import ActorCriticConfig, PPOConfig
from plaudit.config.schema import Config
from plaudit.config.validation import env_cfg
from plaudit.envs.base import VecEnv
from plaudit.envs.registry import build_env
from plaudit.rl.evaluation import evaluate
from plaudit.rl.observations import flat
from plaudit.rl.trainer import EVAL_SEED
from plaudit.utils.threads import claim_threads
from sb3_adapter import Sb3Adapter, ppo


class Sb3Policy:
    """What our `evaluate` needs of a policy, over a model of SB3's and the normalisation it was trained with."""

    training = False

    def __init__(self, model: Any, envs: Any) -> None:
        self.model, self.envs = model, envs

    def eval(self) -> None:
        """Nothing to do: SB3's `predict` sets the mode itself."""

    def train(self, mode: bool = True) -> None:
        """Nothing to do: SB3's `train` sets the mode itself."""

    def act(self, obs: Any, deterministic: bool = False) -> torch.Tensor:
        """As `Policy.act`."""
        state: Any = flat(obs)
        array = state.numpy()
        if isinstance(self.envs, VecNormalize):
            array = self.envs.normalize_obs(array)
        action, _ = self.model.predict(array, deterministic=deterministic)
        return torch.as_tensor(action, dtype=torch.float32)


class Evaluations(BaseCallback):
    """Evaluates after updates, as often as our trainer does, and keeps time without the evaluations.

    Args:
        eval_env: Where.
        config: How often, how many episodes, and the seed.
    """

    def __init__(self, eval_env: VecEnv, config: Config) -> None:
        super().__init__()
        self.eval_env, self.settings = eval_env, config.runtime
        self.metric = ""
        self.found: list[tuple[int, float, float]] = []
        self.before = 0
        self.seconds = 0.0
        self.started = 0.0

    def _on_training_start(self) -> None:
        self.started = time.perf_counter()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        if self.num_timesteps // self.settings.eval_freq > self.before // self.settings.eval_freq:
            self._evaluate()
        self.before = self.num_timesteps

    def _on_training_end(self) -> None:
        if not self.found or self.found[-1][0] < self.num_timesteps:
            self._evaluate()

    def _evaluate(self) -> None:
        self.seconds += time.perf_counter() - self.started
        policy: Any = Sb3Policy(self.model, self.training_env)
        settings = self.settings
        result = evaluate(policy, self.eval_env, settings.eval_episodes, settings.seed + EVAL_SEED).metrics
        headline = self.eval_env.headline
        self.metric = headline if headline in result else "return"
        self.found.append((self.num_timesteps, self.seconds / 60, result[self.metric]))
        self.started = time.perf_counter()


def train(config: Config) -> tuple[str, list[tuple[int, float, float]]]:
    """Trains with the recipe's networks, settings and number of steps.

    Returns:
        The metric, and the evaluations: (env steps, minutes of training so far, value).
    """
    claim_threads()
    runtime, settings = config.runtime, PPOConfig(**config.algorithm.cfg)
    if config.policy.actor is None:
        raise ValueError("the peer needs a recipe with policy.actor.")
    env = build_env(config.env.id, env_cfg(config, "train"), threads=runtime.threads)
    eval_env = build_env(config.env.id, env_cfg(config, "eval"), threads=runtime.threads)
    envs: Any = Sb3Adapter(env, runtime.seed)
    if ActorCriticConfig(**config.policy.cfg).normalize_obs:
        envs = VecNormalize(envs, norm_reward=False, gamma=settings.gamma)
    evaluations = Evaluations(eval_env, config)
    try:
        model = ppo(
            envs,
            runtime.rollout_steps,
            config.policy.actor.hidden_sizes,
            runtime.seed,
            learning_rate=_schedule(settings),
            n_epochs=settings.n_epochs,
            batch_size=settings.batch_size,
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
            clip_range=settings.clip_coef,
            clip_range_vf=settings.clip_value,
            ent_coef=settings.ent_coef,
            vf_coef=settings.vf_coef,
            max_grad_norm=settings.max_grad_norm,
            normalize_advantage=settings.normalize_advantage,
            target_kl=settings.target_kl,
        )
        total = runtime.iterations * runtime.rollout_steps * env.num_envs
        model.learn(total, callback=evaluations, log_interval=None)
    finally:
        env.close()
        eval_env.close()
    return evaluations.metric, evaluations.found


def _schedule(settings: PPOConfig) -> float | Callable[[float], float]:
    """The learning rate as SB3 takes it: a number, or a function of the share of the run that is left."""
    rate = settings.learning_rate
    if settings.lr_schedule == "linear":
        return lambda left: rate * left
    if settings.lr_schedule == "cosine":
        return lambda left: rate * 0.5 * (1 + math.cos(math.pi * (1 - left)))
    return rate
