"""What a learned reward costs in the loop: PPO on PushCube with the env's own reward, and with a model's in each mode.

The model is the one that `plaudit fit` makes by default, with the weights it starts from and a threshold that it does
not reach: what it says costs the same as if it were fitted, and episodes are as long on every side. `per step, ends
episodes` scores after every env step, the others a rollout at a time. RLinf's ResNet guide expects 10 to 50 ms
a step, on a GPU of its own. The audit that every run has is off, but for the side that names it.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measure import Row, Stopwatch, main, paired_ratio, say, take_turns
from plaudit import pipelines as stages
from plaudit.config.reward_schema import RewardConfig
from plaudit.config.schema import RuntimeConfig
from plaudit.envs.registry import build_env
from plaudit.pipelines.audit import FOLLOWED
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.config import DEFAULT_MODEL
from plaudit.reward_models.model import build_reward_model
from plaudit.rewards.audit.audit import Audit
from plaudit.rewards.audit.frame_recorder import Followed
from plaudit.rewards.reward_env import RewardedEnv
from plaudit.rewards.reward_function import RewardManager
from plaudit.rl import Callback, Trainer, build_algo, build_policy
from plaudit.utils.threads import claim_threads

NUM_ENVS, STEPS = 256, 16
UNREACHED = 0.9999
RESNET_GUIDE_MS = 50.0
"""Milliseconds."""

SIDES: dict[str, dict[str, Any] | None] = {
    "env's own reward": None,
    "terminal": {"reward_mode": "terminal"},
    "per step": {"reward_mode": "per_step"},
    "every fourth step": {"reward_mode": "per_step", "reward_interval": 4},
    "every fourth step, audited": {"reward_mode": "per_step", "reward_interval": 4},
    "per step, ends episodes": {"reward_mode": "per_step", "terminate_on_success": True},
}


class Costs(Callback):
    """Remembers what was logged of the rewards' cost."""

    def __init__(self) -> None:
        self.milliseconds: list[float] = []
        self.scored: list[float] = []

    def on_metrics(self, step: int, metrics: Any) -> None:
        self.milliseconds.append(metrics.get("time/compute_model_rewards", 0.0))
        self.scored.append(metrics.get("rollout/scored_frames", 0.0))


class Side:
    """PPO on one kind of reward.

    Args:
        artifact: The model.
        settings: What its word is worth; `None` for the env's own reward.
        audited: Whether it is watched.
    """

    def __init__(self, artifact: RewardArtifact, settings: dict[str, Any] | None, audited: bool) -> None:
        config = stages.load("push_cube")
        self.bare = build_env("PushCube", {"num_envs": NUM_ENVS, "cameras": ["base_camera"]})
        env = self.bare
        if settings is not None:
            keys = RewardConfig(reward_threshold=UNREACHED, **settings)
            audit = Audit(NUM_ENVS, keys.audit, followed=Followed(np.arange(FOLLOWED)))
            env = RewardedEnv(env, RewardManager(artifact, keys), [audit] if audited else [])
        policy = build_policy(config.policy, env.observation_space, env.action_space, torch.device("cpu"))
        algorithm = build_algo("ppo", config.algorithm.cfg, policy)
        self.costs = Costs()
        self.trainer = Trainer(
            policy, env, algorithm, settings=RuntimeConfig(rollout_steps=STEPS), listeners=[self.costs]
        )
        self.watch = Stopwatch(self.trainer, "_iterate")

    def run(self, iterations: int) -> float:
        """Trains for some iterations; steps/s of them."""
        before = self.watch.seconds
        self.trainer.train(self.trainer.iteration + iterations)
        return iterations * NUM_ENVS * STEPS / (self.watch.seconds - before)


def benchmark(quick: bool) -> list[Row]:
    """All sides in turn."""
    claim_threads()
    say(f"PPO on PushCube, {NUM_ENVS} envs, rollouts of {STEPS} steps; steps/s")
    with tempfile.TemporaryDirectory() as folder:
        model = build_reward_model({**DEFAULT_MODEL, "image_keys": ["base_camera"]}).eval()
        artifact = RewardArtifact.create(Path(folder) / "model", model)
        sides = {name: Side(artifact, settings, "audited" in name) for name, settings in SIDES.items()}
        for side in sides.values():
            side.run(1)
        rounds, iterations = (3, 2) if quick else (5, 6)
        seen = take_turns({name: lambda s=side: s.run(iterations) for name, side in sides.items()}, rounds)
        for side in sides.values():
            side.bare.close()
    own = next(iter(seen))
    rows = [Row(f"PPO, {own}", statistics.median(seen[own]), "steps/s")]
    for name in list(seen)[1:]:
        costs = sides[name].costs
        share = sum(costs.scored) / (len(costs.scored) * NUM_ENVS * STEPS)
        ratio, value, peer = paired_ratio(seen[name], seen[own]), *map(statistics.median, (seen[name], seen[own]))
        note = f"{share:.1%} of the steps' frames rendered and scored"
        rows.append(Row(f"PPO, learned reward, {name}", value, "steps/s", own, peer, ratio, note=note))
        cost = statistics.median(costs.milliseconds)
        beside = f"RLinf's ResNet guide: 10 to {RESNET_GUIDE_MS:g} ms"
        rows.append(
            Row(f"compute_model_rewards, {name}", cost, "ms/step", beside, target=RESNET_GUIDE_MS, lower_is_better=True)
        )
    return rows


if __name__ == "__main__":
    main(benchmark)
