"""Training on rewards that are not the env's own: no truth reaches what learns, and all algorithms can."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from learned_samples import Broken, Slider, manager
from rl_helpers import MakeTrainer, make_policy

from plaudit.config.schema import RuntimeConfig
from plaudit.errors import DataError, PlauditError
from plaudit.rewards.reward_env import RewardedEnv
from plaudit.rl import BaseAlgorithm, Callback, RunFolder, Trainer
from plaudit.rl.buffers.rollout_buffer import RolloutBuffer
from plaudit.rl.evaluation import evaluate
from plaudit.rl.reward_source import settle


class Memory(Callback):
    """Keeps what was logged."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.evals: list[dict[str, float]] = []

    def on_metrics(self, step: int, metrics: Any) -> None:
        self.metrics.append(dict(metrics))

    def on_eval(self, step: int, metrics: Any) -> None:
        self.evals.append(dict(metrics))


def learned(poison: bool = False, **settings: Any) -> RewardedEnv:
    return RewardedEnv(Slider(16, poison=poison), manager(**settings))


class Refreshing(Memory):
    """Puts another model in the place of the env's at some steps."""

    def __init__(self, env: RewardedEnv, steps: tuple[int, ...]) -> None:
        super().__init__()
        self.env, self.steps = env, steps
        self.totals: list[int] = []

    def on_metrics(self, step: int, metrics: Any) -> None:
        super().on_metrics(step, metrics)
        if step in self.steps:
            self.env.swap(manager(), self.env.version + 1)

    def on_prolonged(self, total_steps: int) -> None:
        self.totals.append(total_steps)


@pytest.mark.parametrize(
    ("share", "refreshed", "totals"),
    [
        (0.0, (1,), []),
        (0.5, (1,), []),  # There is more than half of it to come.
        (0.5, (3,), [6]),  # "At least half" of five iterations are three.
        (1.0, (1,), [6]),
        (1.0, (1, 3), [6, 8]),
        (1.0, (5,), [10]),
    ],
)
def test_training_goes_on_after_a_refresh(
    make_trainer: MakeTrainer, share: float, refreshed: tuple[int, ...], totals: list[int]
) -> None:
    env, each = learned(), 8 * 16
    listener = Refreshing(env, tuple(each * number for number in refreshed))
    trainer = make_trainer(env, iterations=5, listeners=[listener], evaluates=learned(), ppo={"lr_schedule": "linear"})
    trainer.prolong, trainer.best = share, 1.0
    summary = trainer.train()
    last = totals[-1] if totals else 5
    assert listener.totals == [each * total for total in totals]
    assert summary["iterations"] == last and summary["prolonged"] == last - 5
    left = [row["train/learning_rate"] * 5 / 3e-3 for row in listener.metrics]
    assert left[-1] == pytest.approx(1) and max(left) <= 5.001 and len(left) == last
    assert summary["best_step"] == each * last  # What was the best to another judge is forgotten.


@pytest.mark.parametrize("real_time", [False, True])
def test_a_world_that_goes_on_does_not_wait_for_the_rewards_of_a_rollout(
    make_trainer: MakeTrainer, real_time: bool
) -> None:
    env = learned()
    env.real_time = real_time
    assert make_trainer(env, iterations=1, evaluates=learned()).deferred is not real_time


MODES: list[dict[str, Any]] = [{}, {"reward_mode": "terminal"}, {"hold": 2}, {"terminate_on_success": True}]


def without_truth(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """What was logged, but for the truth, which is for people, and for times."""
    truth = ("rollout/success", "eval/success", "env/", "time/", "charts/")
    return [{k: v for k, v in row.items() if not k.startswith(truth) and "env_re" not in k} for row in rows]


@pytest.mark.parametrize("settings", MODES)
def test_the_envs_reward_and_success_reach_nothing_that_learns(
    make_trainer: MakeTrainer, settings: dict[str, Any]
) -> None:
    ends = []
    for poison in (False, True):
        memory = Memory()
        trainer = make_trainer(
            learned(poison, **settings),
            evaluates=learned(poison, **settings),
            eval_freq=200,
            iterations=6,
            listeners=[memory],
        )
        summary = trainer.train()
        ends.append((trainer, memory, summary))
    (honest, log, one), (poisoned, other_log, other) = ends
    theirs = poisoned.policy.state_dict()
    for name, value in honest.policy.state_dict().items():
        assert torch.equal(value, theirs[name]), name
    assert torch.equal(honest.algorithm.buffer.rewards, poisoned.algorithm.buffer.rewards)
    assert honest.algorithm.buffer.rewards.any()
    assert one["best_metric"] == other["best_metric"] == "model_success_once"
    assert (one["best"], one["best_step"]) == (other["best"], other["best_step"])
    assert without_truth(log.metrics) == without_truth(other_log.metrics)
    assert without_truth(log.evals) == without_truth(other_log.evals)
    assert log.evals[-1]["eval/success_once"] != other_log.evals[-1]["eval/success_once"]


def test_ppo_learns_what_the_model_likes_and_the_log_has_both(make_trainer: MakeTrainer) -> None:
    memory = Memory()
    env = learned()
    trainer = make_trainer(env, evaluates=learned(), iterations=25, listeners=[memory])
    assert trainer.deferred
    summary = trainer.train()
    assert summary["eval"]["model_success_at_end"] > 0.9
    assert summary["eval"]["env_return"] > memory.metrics[0]["rollout/env_return"]
    last = memory.metrics[-1]
    assert last["rollout/rewards"] > memory.metrics[0]["rollout/rewards"]
    assert last["env/success_once"] == last["rollout/success_once"]
    # 16 envs, 8 steps, episodes of 5: all of the steps' frames are scored.
    assert last["rollout/scored_frames"] == 128
    assert {"time/compute_model_rewards", "rollout/env_reward", "rollout/model_success_once"} <= set(last)
    assert last["rollout/step_reward"] == pytest.approx(last["rollout/rewards"])


def test_returns_are_of_the_learned_reward(make_trainer: MakeTrainer) -> None:
    together, each = Memory(), Memory()
    make_trainer(learned(), iterations=3, listeners=[together]).train()
    trainer = make_trainer(learned(), iterations=3, listeners=[each])
    assert trainer.relabelled is not None
    trainer.deferred = trainer.relabelled.defer(False)
    trainer.train()
    assert [row["rollout/return"] for row in together.metrics] == [row["rollout/return"] for row in each.metrics]
    assert without_truth(together.metrics) == without_truth(each.metrics)


class Simple(BaseAlgorithm):
    """An algorithm that knows nothing of learned rewards, as EmbodiChain's RL tutorial's tutorial has it."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def initialize_buffer(self, num_steps: int, num_envs: int, obs_dim: Any, action_dim: int) -> None:
        self.buffer = RolloutBuffer(num_steps, num_envs, obs_dim, action_dim, "cpu")

    def collect_rollout(
        self, env: Any, policy: Any, obs: Any, num_steps: int, on_step_callback: Any = None
    ) -> dict[str, Any]:
        for _ in range(num_steps):
            with torch.no_grad():
                action, logprob, value = policy.get_action(obs)
            next_obs, reward, terminated, truncated, info = env.step(action)
            self.buffer.add(obs, action, reward, terminated | truncated, value, logprob)
            on_step_callback(obs, action, reward, terminated | truncated, info, next_obs)
            obs = next_obs
        return {}

    def update(self) -> dict[str, float]:
        return {}


class Forgetful(Simple):
    """Says that it asks for rewards, and does not."""

    relabels = True


@pytest.mark.parametrize("settings", MODES)
def test_an_algorithm_that_knows_nothing_of_it_gets_the_rewards_step_by_step(settings: dict[str, Any]) -> None:
    env = learned(**settings)
    policy = make_policy(env)
    runtime = RuntimeConfig(iterations=2, rollout_steps=10, eval_freq=0)
    memory = Memory()
    trainer = Trainer(policy, env, Simple(policy), settings=runtime, listeners=[memory])
    trainer.train()
    assert not trainer.deferred
    assert set(trainer.algorithm.buffer.rewards.unique().tolist()) == {0.0, 1.0}
    assert memory.metrics[-1]["rollout/rewards"] == pytest.approx(float(trainer.algorithm.buffer.rewards.mean()))


def test_one_that_says_it_asks_and_does_not_is_told() -> None:
    env = learned()
    policy = make_policy(env)
    runtime = RuntimeConfig(iterations=2, rollout_steps=4, eval_freq=0)
    with pytest.raises(PlauditError, match=r"Forgetful has relabels = True, but .*settle\(env\)"):
        Trainer(policy, env, Forgetful(policy), settings=runtime).train()


def test_an_env_of_its_own_rewards_has_nothing_to_settle() -> None:
    assert settle(Slider()) is None
    assert settle(learned()) is None  # Nobody asked for it.


@pytest.mark.parametrize("settings", [{"hold": 3, "reward_interval": 2}, {"reward_mode": "terminal"}, MODES[-1]])
def test_a_resumed_run_is_bit_for_bit_an_unbroken_one(make_trainer: MakeTrainer, settings: dict[str, Any]) -> None:
    def make(**more: Any) -> Trainer:
        return make_trainer(learned(**settings), evaluates=learned(**settings), iterations=6, rollout_steps=7, **more)

    unbroken = make()
    unbroken.train()
    broken = make(run=True)
    for _ in range(3):
        broken._iterate(6)
    broken._save("latest.pt")
    resumed = make()
    assert broken.run is not None
    resumed.load(broken.run.latest)
    assert resumed.train()["exact_resume"] is True
    theirs = resumed.policy.state_dict()
    for name, value in unbroken.policy.state_dict().items():
        assert torch.equal(value, theirs[name]), name
    assert unbroken.stats.recent == resumed.stats.recent
    assert unbroken.last_eval == resumed.last_eval


def test_a_broken_frame_loses_nothing_that_was_learned(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "broken")
    trainer = make_trainer(RewardedEnv(Broken(16), manager()), run=run)
    with pytest.raises(DataError, match="env 2, camera 'base_camera'"):
        trainer.train()
    assert run.latest.exists()


def test_an_evaluation_of_the_learned_reward_by_hand() -> None:
    env = learned(reward_mode="terminal", reward_weight=3.0)

    class Right(torch.nn.Module):
        """Goes right as fast as it can."""

        def act(self, obs: torch.Tensor, deterministic: bool = False) -> torch.Tensor:
            return torch.ones(len(obs), 1)

    found = evaluate(Right(), env, 32, seed=0)  # type: ignore[arg-type]
    # From -0.75 to 0.25, five steps of 0.25 end between 0.5 and 1: successes, and 3 for the last step.
    assert found.metrics["return"] == 3.0
    assert found.metrics["model_success_once"] == found.metrics["model_success_at_end"] == 1.0
    assert math.isclose(found.metrics["length"], 5.0)
    assert found.metrics["env_return"] > 0
