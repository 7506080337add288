import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_helpers import MakeTrainer

from plaudit.envs.base import Outcome
from plaudit.envs.config import ProbeConfig
from plaudit.envs.probes import ObsActionReward, Timeout
from plaudit.errors import CheckpointError, ConfigError, NonFiniteError, OutputError
from plaudit.rl import Listener, checkpoint


class Memory(Listener):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.evals: list[tuple[int, dict[str, float]]] = []
        self.notes: list[str] = []
        self.start: tuple[int, int] | None = None
        self.closed = False

    def on_start(self, step: int, total_steps: int) -> None:
        self.start = (step, total_steps)

    def on_metrics(self, step: int, metrics: Any) -> None:
        self.metrics.append((step, dict(metrics)))

    def on_eval(self, step: int, metrics: Any) -> None:
        self.evals.append((step, dict(metrics)))

    def on_note(self, text: str) -> None:
        self.notes.append(text)

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


def test_best_metric_by_name_and_by_default(make_trainer: MakeTrainer) -> None:
    assert make_trainer(evaluates=True, best_metric="eval/return").train()["best"] < 0
    assert make_trainer("probe/ConstantValue", evaluates=True).train()["best_metric"] == "return"
    with pytest.raises(ConfigError, match="Did you mean 'return'"):
        make_trainer(evaluates=True, best_metric="retrun").train()


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


def test_huge_but_finite_numbers_are_let_through(make_trainer: MakeTrainer) -> None:
    class Huge(Timeout):
        def observe(self, ids: torch.Tensor | None = None) -> Any:
            # Their sum overflows float32, but each is finite.
            return {"state": torch.full_like(super().observe(ids)["state"], 3e38)}

    make_trainer(Huge(ProbeConfig(num_envs=4)), iterations=1).train()


class Interrupting(Listener):
    """Presses Ctrl-C in iteration 2, as often as told."""

    def __init__(self, times: int) -> None:
        self.times, self.iterations = times, 0

    def on_metrics(self, step: int, metrics: Any) -> None:
        self.iterations += 1
        if self.iterations == 2:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_saves_and_returns(make_trainer: MakeTrainer) -> None:
    before = signal.getsignal(signal.SIGINT)
    trainer = make_trainer(run=True, iterations=50, listeners=[Interrupting(1)])
    summary = trainer.train()
    assert summary["interrupted"]
    assert summary["iterations"] == 2
    assert checkpoint.load(trainer.run.latest)["trainer"]["iteration"] == 2
    assert signal.getsignal(signal.SIGINT) is before


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
