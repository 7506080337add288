"""What the policies of a run are worth: their true success on the same fresh episodes."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from plaudit.config.reward_schema import RewardConfig
from plaudit.config.run_config import Plan
from plaudit.config.schema import Config
from plaudit.errors import ConfigError
from plaudit.pipelines.builders import build_envs_for, build_learner, checkpoint_of, load_policy, set_up
from plaudit.pipelines.train import TEST_SEED

logger = logging.getLogger("plaudit")

WORDS = {"random": "random actions", "dense_reward": "the env's own reward", "learned_reward": "the learned reward"}
"""The policies that are compared, and what each of them was taught by."""


def compare(plan: Plan, dense: Path, learned: Path) -> dict[str, Any]:
    """Tests three policies on the same `plan.episodes` episodes, which neither training nor the choice of a checkpoint
    has seen.

    Args:
        plan: The run's.
        dense: Run of the policy that learned on the env's own reward.
        learned: Run of the policy that learned on the reward model.

    Returns:
        `true_success` and its 95 % `bounds` by policy, which metric that is, and all metrics.
    """
    from plaudit.reward_models.evaluation.confidence_bounds import rate_bounds

    seed = plan.train.runtime.seed + TEST_SEED
    tested = {
        "random": _test(plan.train, None, plan.episodes, seed),
        "dense_reward": _test(plan.collect, checkpoint_of(dense), plan.episodes, seed),
        "learned_reward": _test(plan.train, checkpoint_of(learned), plan.episodes, seed),
    }
    headline = tested["random"][0]
    metrics = {name: numbers for name, (_, numbers) in tested.items()}
    if any(headline not in numbers for numbers in metrics.values()):
        raise ConfigError(f"{plan.train.env.id} tells no success, by which policies could be compared.")
    success = {name: numbers[headline] for name, numbers in metrics.items()}
    bounds = {name: rate_bounds(round(rate * plan.episodes), plan.episodes) for name, rate in success.items()}
    return {
        "true_success": success,
        "bounds": bounds,
        "metric": headline,
        "episodes": plan.episodes,
        "metrics": metrics,
    }


def _test(config: Config, checkpoint: Path | None, episodes: int, seed: int) -> tuple[str, dict[str, float]]:
    """The env's word for success, and the means over test episodes. The env is as it is without a reward model."""
    from plaudit.rl.evaluation import evaluate
    from plaudit.rl.policies.base import Policy
    from plaudit.rl.policies.random_policy import UniformPolicy

    config = replace(config, reward=RewardConfig())
    device = set_up(config)
    with ExitStack() as stack:
        env = build_envs_for(config, "eval", device, stack)
        if checkpoint is None:
            policy: Policy = UniformPolicy(env.action_space, device)
        else:
            policy, _ = build_learner(config, env, device)
            load_policy(policy, checkpoint)
        return env.headline, evaluate(policy, env, episodes, seed).metrics
