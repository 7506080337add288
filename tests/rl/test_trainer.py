import math
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from rl_helpers import MakeTrainer

from plaudit.envs.base import Outcome
from plaudit.envs.config import ProbeConfig
from plaudit.envs.probe_envs import ConstantValue, ObsActionReward, Timeout
from plaudit.errors import CheckpointError, ConfigError, EnvError, NonFiniteError, OutputError, PlauditError
from plaudit.rl import PPO, Callback, Trainer, checkpoint


class Memory(Callback):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.evals: list[tuple[int, dict[str, float]]] = []
        self.start: tuple[int, int] | None = None
        self.closed = False

    def on_start(self, step: int, total_steps: int) -> None:
        self.start = (step, total_steps)

    def on_metrics(self, step: int, metrics: Any) -> None:
        self.metrics.append((step, dict(metrics)))

    def on_eval(self, step: int, metrics: Any) -> None:
        self.evals.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed = True


class Named(ObsActionReward):
    """An env with reward terms and metrics: term `a` counts the steps, the metric is the env's index."""

    def advance(self, action: torch.Tensor) -> Outcome:
        outcome = super().advance(action)
        outcome.rewards = {"a": torch.full((self.num_envs,), 2.0)}
        outcome.metrics = {"index": torch.arange(self.num_envs, dtype=torch.float32)}
        return outcome


def test_what_is_logged(make_trainer: MakeTrainer) -> None:
    memory = Memory()
    make_trainer(Named(ProbeConfig(num_envs=5)), listeners=[memory], iterations=2).train()
    assert memory.start == (0, 2 * 8 * 5)
    assert [step for step, _ in memory.metrics] == [40, 80]
    metrics = memory.metrics[-1][1]
    assert metrics["rewards/a"] == 2.0
    assert metrics["metrics/index"] == 2.0
    assert metrics["rollout/length"] == 1.0
    assert metrics["rollout/return"] < 0
    assert 0 <= metrics["rollout/success_once"] <= 1
    assert metrics["rollout/success_at_end"] == metrics["rollout/success_once"]
    assert metrics["charts/steps_per_second"] > 0
    for name in ("actor_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "learning_rate"):
        assert math.isfinite(metrics[f"train/{name}"])
    assert memory.closed


def test_evaluation_saving_and_summary(make_trainer: MakeTrainer) -> None:
    memory = Memory()
    # 128 steps an iteration: multiples of 300 are passed in iterations 3 and 5, of 256 in 2, 4 and 6.
    trainer = make_trainer(
        run=True, evaluates=True, listeners=[memory], iterations=6, eval_freq=300, save_freq=256, keep_checkpoints=2
    )
    summary = trainer.train()
    assert [step for step, _ in memory.evals] == [384, 640, 768]
    assert set(memory.evals[0][1]) == {"eval/return", "eval/length", "eval/success_once", "eval/success_at_end"}
    names = sorted(path.name for path in trainer.run.checkpoints.iterdir())
    assert names == ["best.pt", "latest.pt", "step_512.pt", "step_768.pt"]
    assert summary["steps"] == 768
    assert summary["iterations"] == 6
    assert summary["best_metric"] == "success_once"
    assert summary["best"] == max(metrics["eval/success_once"] for _, metrics in memory.evals)
    assert summary["eval"]["return"] == memory.evals[-1][1]["eval/return"]
    assert not summary["interrupted"]
    assert checkpoint.load(trainer.run.best)["trainer"]["step"] == summary["best_step"]


class Looking(Memory):
    """Looks, after every iteration, at what a kill would leave: the steps of the latest checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.latest: list[int | None] = []
        self.trainer: Trainer | None = None

    def on_metrics(self, step: int, metrics: Any) -> None:
        super().on_metrics(step, metrics)
        assert self.trainer is not None and self.trainer.run is not None
        path = self.trainer.run.latest
        self.latest.append(checkpoint.load(path)["trainer"]["step"] if path.exists() else None)


@pytest.mark.parametrize(("seconds", "latest"), [(0.0, [None] * 3), (1e9, [None] * 3), (1e-9, [None, 128, 256])])
def test_latest_is_written_when_seconds_have_passed(
    make_trainer: MakeTrainer, seconds: float, latest: list[int | None]
) -> None:
    looking = Looking()
    trainer = looking.trainer = make_trainer(run=True, listeners=[looking], iterations=3, save_seconds=seconds)
    trainer.train()
    assert looking.latest == latest
    assert [path.name for path in trainer.run.checkpoints.iterdir()] == ["latest.pt"]


def test_the_best_checkpoint_is_the_latest_too(make_trainer: MakeTrainer) -> None:
    # What is older may need data that the algorithm has let go of since.
    looking = Looking()
    trainer = looking.trainer = make_trainer(run=True, evaluates=True, listeners=[looking], iterations=2, eval_freq=128)
    trainer.train()
    assert looking.latest == [None, 128]


def test_best_metric_by_name_and_by_default(make_trainer: MakeTrainer) -> None:
    assert make_trainer(evaluates=True, best_metric="eval/return").train()["best"] < 0
    assert make_trainer("probe/ConstantValue", evaluates=True).train()["best_metric"] == "return"


def test_a_best_metric_that_the_env_does_not_give_keeps_what_was_learned(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("probe/ConstantValue", evaluates=True, run=True, best_metric="success_once")
    message = r"best_metric is 'success_once', but ConstantValue told no success.*Use auto, return or length"
    with pytest.raises(ConfigError, match=message):
        trainer.train()
    assert checkpoint.load(trainer.run.latest)["trainer"]["iteration"] == 4
    # A resumed run knows it before it trains.
    trainer = make_trainer("probe/ConstantValue", evaluates=True, run=trainer.run)
    trainer.train()
    resumed = make_trainer("probe/ConstantValue", evaluates=True, best_metric="success_at_end")
    with pytest.raises(ConfigError, match="told no success"):
        resumed.load(trainer.run.latest)


class Fragile(ConstantValue):
    """An evaluation env whose reset fails, or whose numbers are none, from the second evaluation on."""

    def __init__(self, what: str) -> None:
        super().__init__(ProbeConfig(num_envs=16))
        self.what, self.resets = what, 0

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        super().start(ids, seed)
        if seed is not None:
            self.resets += 1
            if self.resets == 2 and self.what == "error":
                raise ZeroDivisionError("a bug of the env")

    def advance(self, action: torch.Tensor) -> Outcome:
        outcome = super().advance(action)
        if self.resets == 2:
            outcome.reward[3] = math.nan
        return outcome


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("nan", NonFiniteError, "reward of env 3 is nan at step 1 of the evaluation"),
        ("error", ZeroDivisionError, "a bug of the env"),
    ],
)
@pytest.mark.parametrize("eval_freq", [256, 300])
def test_an_error_in_an_evaluation_keeps_what_was_learned(
    make_trainer: MakeTrainer, what: str, error: type[Exception], message: str, eval_freq: int
) -> None:
    # Evaluations after iterations 2 and 4, or 3 and (the last one) 4.
    trainer = make_trainer("probe/ConstantValue", evaluates=Fragile(what), run=True, eval_freq=eval_freq)
    with pytest.raises(error, match=message):
        trainer.train()
    saved = checkpoint.load(trainer.run.latest)
    assert saved["env"] is not None
    assert saved["trainer"]["iteration"] == 4
    assert saved["trainer"]["last_eval_step"] == 128 * (2 if eval_freq == 256 else 3)


def test_the_last_checkpoint_knows_the_last_evaluation(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(run=True, evaluates=True)
    summary = trainer.train()
    saved = checkpoint.load(trainer.run.latest)["trainer"]
    assert saved["last_eval_step"] == summary["steps"]
    assert saved["last_eval"] == summary["eval"]


class Overflowing(ConstantValue):
    """Episodes of two steps whose returns are infinite, of one sign and the other; each reward is finite."""

    def advance(self, action: torch.Tensor) -> Outcome:
        sign = torch.arange(self.num_envs) % 2 * 2.0 - 1.0
        return self.outcome(sign * 3e38, self.clock == 1)


def test_a_score_that_is_no_number_is_not_the_best(make_trainer: MakeTrainer) -> None:
    memory = Memory()
    eval_env = Overflowing(ProbeConfig(num_envs=16))
    trainer = make_trainer("probe/ConstantValue", evaluates=eval_env, run=True, listeners=[memory])
    summary = trainer.train()
    assert math.isnan(memory.evals[-1][1]["eval/return"])
    assert summary["best"] is None
    assert not trainer.run.best.exists()
    trainer.best = 0.5
    trainer._evaluate()
    assert trainer.best == 0.5


class Shy(ObsActionReward):
    """Tells success from its second evaluation on."""

    resets = 0

    def reset(self, seed: int | None = None) -> Any:
        self.resets += 1
        return super().reset(seed)

    def advance(self, action: torch.Tensor) -> Outcome:
        outcome = super().advance(action)
        if self.resets < 2:
            outcome.success = None
        outcome.reward += 100.0
        return outcome


def test_a_metric_is_not_compared_with_another(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(evaluates=Shy(ProbeConfig(num_envs=16)), eval_freq=256)
    trainer.train(2)
    assert trainer.best > 90
    summary = trainer.train(4)
    assert summary["best_metric"] == "success_once"
    assert summary["best"] == summary["eval"]["success_once"]


def test_envs_with_other_spaces_are_refused(make_trainer: MakeTrainer) -> None:
    other = ConstantValue(ProbeConfig(num_envs=2))
    other.observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-1.0, 1.0, (3,), np.float32)})
    message = r"observation 'state' has shape \(1,\) in the training env, but \(3,\) in the evaluation env"
    with pytest.raises(ConfigError, match=message):
        make_trainer(evaluates=other)
    other = ConstantValue(ProbeConfig(num_envs=2))
    camera = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    other.observation_space = gym.spaces.Dict({**other.observation_space.spaces, "cam": camera})
    with pytest.raises(ConfigError, match=r"observation 'cam' has shape none .* but \(8, 8, 3\)"):
        make_trainer(evaluates=other)
    other = ConstantValue(ProbeConfig(num_envs=2))
    other.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    with pytest.raises(ConfigError, match=r"action has shape \(1,\) .* but \(2,\)"):
        make_trainer(evaluates=other)


class Silent(PPO):
    """Forgets the callback, at every step or at some."""

    calls = 0

    def collect_rollout(self, env: Any, policy: Any, obs: Any, num_steps: int, on_step_callback: Any = None) -> Any:
        for _ in range(self.calls):
            super().collect_rollout(env, policy, obs, 1, on_step_callback)
        return super().collect_rollout(env, policy, obs, num_steps - self.calls)


@pytest.mark.parametrize("calls", [0, 2])
def test_an_algorithm_that_forgets_the_callback_is_told(make_trainer: MakeTrainer, calls: int) -> None:
    trainer = make_trainer()
    trainer.algorithm.__class__ = Silent
    trainer.algorithm.calls = calls
    message = f"Silent.collect_rollout took 8 steps and called on_step_callback {calls} times; it must call it after"
    with pytest.raises(PlauditError, match=message):
        trainer.train()


def test_until(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("probe/ConstantValue", iterations=50)
    trainer.until = lambda: trainer.iteration >= 3
    assert trainer.train()["iterations"] == 3


def test_stop_at(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer("probe/ConstantValue", evaluates=True, eval_freq=256, iterations=50, stop_at=1.0)
    assert trainer.train()["iterations"] == 2


def test_one_schedule_over_the_run(make_trainer: MakeTrainer) -> None:
    memory = Memory()
    make_trainer(ppo={"lr_schedule": "linear", "learning_rate": 1.0e-3}, listeners=[memory], iterations=4).train()
    rates = [metrics["train/learning_rate"] for _, metrics in memory.metrics]
    assert rates == pytest.approx([1.0e-3, 0.75e-3, 0.5e-3, 0.25e-3])


class Broken(Timeout):
    """Gives a number that is none in env 2 at the fifteenth step, where an episode may end."""

    def __init__(self, what: str) -> None:
        super().__init__(ProbeConfig(num_envs=4))
        self.max_episode_steps = 15 if what == "final" else 100
        self.what, self.count = what, 0

    def stagger(self) -> None:
        """The episodes begin together, so that all end at the fifteenth step."""

    def advance(self, action: torch.Tensor) -> Outcome:
        outcome = super().advance(action)
        self.count += 1
        if self.count == 15:
            if self.what == "reward":
                outcome.reward[2] = math.nan
            else:
                self.value[2] = math.inf
        return outcome


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("reward", "reward of env 2 is nan at step 7 of iteration 2"),
        ("obs", r"^observation\[0\] of env 2 is inf at step 7 of iteration 2"),
        ("final", r"final observation\[0\] of env 2 is inf at step 7 of iteration 2"),
    ],
)
def test_numbers_that_are_not_finite_stop_with_a_checkpoint(make_trainer: MakeTrainer, what: str, message: str) -> None:
    trainer = make_trainer(Broken(what), run=True, iterations=9)
    with pytest.raises(NonFiniteError, match=message):
        trainer.train()
    saved = checkpoint.load(trainer.run.latest)
    assert saved["env"] is None
    assert saved["trainer"]["iteration"] == 1
    for value in saved["policy"].values():
        assert torch.isfinite(value).all()


def test_an_env_that_fails_loses_nothing_that_was_learned(make_trainer: MakeTrainer) -> None:
    class Dying(Timeout):
        steps = 0

        def advance(self, action: torch.Tensor) -> Outcome:
            self.steps += 1
            if self.steps == 15:
                raise EnvError("a worker died.")
            return super().advance(action)

    trainer = make_trainer(Dying(ProbeConfig(num_envs=4)), run=True, iterations=9)
    with pytest.raises(EnvError, match="a worker died"):
        trainer.train()
    assert checkpoint.load(trainer.run.latest)["trainer"]["iteration"] == 1


def test_a_spoilt_policy_is_not_saved_over_a_good_one(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(run=True, iterations=3, save_freq=1)
    update, rounds = trainer.algorithm.update, iter(range(3))

    def spoil() -> dict[str, float]:
        losses = update()
        if next(rounds) == 1:
            next(trainer.policy.parameters()).data.fill_(math.nan)
            raise NonFiniteError("the loss is nan.")
        return losses

    trainer.algorithm.update = spoil  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match="the loss is nan"):
        trainer.train()
    assert all(torch.isfinite(value).all() for value in checkpoint.load(trainer.run.latest)["policy"].values())


def test_the_first_observation_is_looked_at_too(make_trainer: MakeTrainer) -> None:
    env = Timeout(ProbeConfig(num_envs=4))
    env.first = lambda random: torch.tensor([0.0, math.nan, 0.0, 0.0])  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match=r"^observation\[0\] of env 1 is nan at reset"):
        make_trainer(env).train()


def test_huge_but_finite_numbers_are_let_through(make_trainer: MakeTrainer) -> None:
    class Huge(Timeout):
        def observe(self, ids: torch.Tensor | None = None) -> Any:
            # Their sum overflows float32, but each is finite.
            return {"state": torch.full_like(super().observe(ids)["state"], 3e38)}

    make_trainer(Huge(ProbeConfig(num_envs=4)), iterations=1).train()


class Interrupting(Callback):
    """Presses Ctrl-C in iteration 2, as often as told."""

    def __init__(self, times: int) -> None:
        self.times, self.iterations = times, 0

    def on_metrics(self, step: int, metrics: Any) -> None:
        self.iterations += 1
        if self.iterations == 2:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_and_returns(make_trainer: MakeTrainer, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    trainer = make_trainer(run=True, iterations=50, listeners=[Interrupting(1)])
    summary = trainer.train()
    assert summary["interrupted"]
    assert summary["iterations"] == 2
    assert checkpoint.load(trainer.run.latest)["trainer"]["iteration"] == 2
    assert signal.getsignal(signal.SIGINT) is before
    assert capfd.readouterr().err.count("stopping after this iteration") == 1  # It may take minutes.


def test_a_second_ctrl_c_stops_at_once(make_trainer: MakeTrainer) -> None:
    with pytest.raises(KeyboardInterrupt):
        make_trainer(iterations=50, listeners=[Interrupting(2)]).train()


def test_a_disk_that_fills_up_keeps_the_last_checkpoint(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(run=True, save_freq=128, iterations=1)
    trainer.train()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        trainer.train(2)
    monkeypatch.undo()
    assert checkpoint.load(trainer.run.latest)["trainer"]["iteration"] == 1


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_disk_that_is_full_does_not_hide_what_went_wrong_before(
    make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, evaluates: bool
) -> None:
    def fail(*words: object) -> None:
        raise EnvError("a worker died.")

    def full(path: Path, content: object) -> None:
        raise OutputError("the disk is full.")

    trainer = make_trainer(run=True, evaluates=evaluates, eval_freq=128)
    monkeypatch.setattr(trainer.eval_env if evaluates else trainer.env, "step", fail)
    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(EnvError, match=r"a worker died"):
        trainer.train()
    assert "what was learned since the last checkpoint is lost: the disk is full." in caplog.messages


def test_a_checkpoint_of_another_policy_or_algorithm_is_refused(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(run=True)
    trainer.train()
    other = make_trainer(policy={"hidden": (16, 32)})
    with pytest.raises(CheckpointError, match=r"'actor\.0\.weight' has shape \(16, 1\) here and \(32, 1\) there"):
        other.load(trainer.run.latest)
    content = checkpoint.load(trainer.run.latest)
    checkpoint.save(trainer.run.latest, {**content, "algorithm_class": "SAC"})
    with pytest.raises(CheckpointError, match="PPO here, SAC there"):
        make_trainer().load(trainer.run.latest)


def test_a_checkpoint_with_only_a_policy_cannot_be_resumed_from(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = make_trainer()
    checkpoint.save(tmp_path / "a.pt", {"policy": trainer.policy.state_dict()})
    with pytest.raises(CheckpointError, match="has no 'algorithm_class'"):
        trainer.load(tmp_path / "a.pt")


def test_a_run_without_a_folder_writes_nothing(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer(save_freq=1).train()
    assert not list(tmp_path.iterdir())
