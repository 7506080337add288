import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_helpers import MakeTrainer

from plaudit.envs.config import ProbeConfig
from plaudit.envs.probe_envs import Timeout
from plaudit.rl import RunFolder, Trainer
from plaudit.rl.loggers import JsonlLogger

SETTINGS: dict[str, Any] = {
    "ppo": {"lr_schedule": "cosine", "noise_correlation": 0.7, "critic_warmup": 0.3},
    "eval_freq": 300,
    "evaluates": True,
}


def same(first: Trainer, second: Trainer) -> None:
    """Both have the same parameters, moments, statistics and counters, bit for bit."""
    theirs = second.policy.state_dict()
    for name, value in first.policy.state_dict().items():
        assert torch.equal(value, theirs[name]), name
    assert torch.equal(first.algorithm.optimizer.second, second.algorithm.optimizer.second)  # type: ignore[attr-defined]
    assert (first.step, first.best, first.last_eval) == (second.step, second.best, second.last_eval)
    assert first.stats.recent == second.stats.recent


@pytest.mark.parametrize("env", ["probe/ObsActionReward", "probe/Timeout"])
def test_a_resumed_run_is_bit_for_bit_an_unbroken_one(make_trainer: MakeTrainer, env: str) -> None:
    unbroken = make_trainer(env, iterations=6, **SETTINGS)
    unbroken.train()
    broken = make_trainer(env, iterations=6, run=True, save_freq=3 * 128, **SETTINGS)
    broken.settings = unbroken.settings
    for _ in range(3):
        broken._iterate(6)
    broken._save("latest.pt")
    resumed = make_trainer(env, iterations=6, **SETTINGS)
    torch.rand(17)
    resumed.load(broken.run.latest)  # type: ignore[union-attr]
    assert resumed.train()["exact_resume"] is True
    same(unbroken, resumed)


SCRIPT = textwrap.dedent(
    """
    import sys, torch
    sys.path.insert(0, sys.argv[3])
    from pathlib import Path
    from rl_helpers import make_policy
    from plaudit.config.algorithm_schema import PPOConfig
    from plaudit.config.schema import RuntimeConfig
    from plaudit.envs import build_env
    from plaudit.rl import RunFolder, Trainer, build_algo
    from plaudit.rl.loggers import JsonlLogger

    torch.set_num_threads(1)
    torch.manual_seed(3)
    run, mode = RunFolder.open(sys.argv[1]), sys.argv[2]
    env = build_env("probe/ObsActionReward", {"num_envs": 16})
    policy = make_policy(env)
    algorithm = build_algo("ppo", PPOConfig(lr_schedule="linear"), policy)
    settings = RuntimeConfig(iterations=12, rollout_steps=8, eval_freq=0, save_freq=128)

    class Pause(JsonlLogger):
        def on_metrics(self, step, metrics):
            super().on_metrics(step, metrics)
            if mode == "kill" and step == 128 * 5:
                print("ready", flush=True)
                sys.stdin.readline()  # Killed here, with checkpoints of four iterations written.

    trainer = Trainer(policy, env, algorithm, settings=settings, run=run, listeners=[Pause(run.logs / "metrics.jsonl")])
    if mode == "resume":
        trainer.load(run.latest)
    trainer.train()
    """
)


def start(folder: Path, mode: str) -> "subprocess.Popen[str]":
    folder.mkdir(exist_ok=True)
    arguments = [sys.executable, "-c", SCRIPT, str(folder), mode, str(Path(__file__).parent)]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_run_killed_without_warning_resumes_to_the_same_end(tmp_path: Path) -> None:
    unbroken = start(tmp_path / "unbroken", "whole")
    killed = start(tmp_path / "killed", "kill")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "ready\n"
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    resumed = start(tmp_path / "killed", "resume")
    for process in (unbroken, resumed):
        process.communicate(timeout=120)
        assert process.returncode == 0
    ends = [torch.load(tmp_path / name / "checkpoints" / "latest.pt") for name in ("unbroken", "killed")]
    for name, value in ends[0]["policy"].items():
        assert torch.equal(value, ends[1]["policy"][name]), name
    assert torch.equal(ends[0]["rng"]["torch"], ends[1]["rng"]["torch"])
    logs = [(tmp_path / name / "logs" / "metrics.jsonl").read_text().splitlines() for name in ("unbroken", "killed")]
    for ours, theirs in zip(*[[json.loads(line) for line in log] for log in logs], strict=True):
        ours.pop("charts/steps_per_second"), theirs.pop("charts/steps_per_second")
        assert ours == theirs


class Forgetful(Timeout):
    """An env that cannot save its state."""

    can_save_state = False


def test_an_env_that_cannot_save_goes_on_with_new_episodes_and_says_so(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "plaudit")
    trainer = make_trainer(Forgetful(ProbeConfig(num_envs=4)), run=True, iterations=2)
    assert trainer.train()["exact_resume"] is None
    resumed = make_trainer(Forgetful(ProbeConfig(num_envs=4)), iterations=4)
    resumed.load(trainer.run.latest)  # type: ignore[union-attr]
    assert resumed.iteration == 2
    assert "resumed at step 64 with new episodes" in caplog.text
    summary = resumed.train()
    assert summary["iterations"] == 4
    assert summary["exact_resume"] is False


def test_another_number_of_envs_goes_on_with_new_episodes(
    make_trainer: MakeTrainer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "plaudit")
    trainer = make_trainer(num_envs=8, run=True, iterations=2)
    trainer.train()
    resumed = make_trainer(num_envs=4)
    resumed.load(trainer.run.latest)  # type: ignore[union-attr]
    assert "new episodes" in caplog.text
    assert resumed.train()["exact_resume"] is False


def test_the_log_is_taken_back_to_the_checkpoint(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer(run=True, iterations=3, save_freq=256)
    run = trainer.run
    assert isinstance(run, RunFolder)
    trainer.listeners.append(JsonlLogger(run.logs / "metrics.jsonl"))
    trainer.train()
    resumed = make_trainer(run=run, iterations=4, listeners=[JsonlLogger(run.logs / "metrics.jsonl")])
    resumed.load(run.checkpoints / "step_256.pt")
    resumed.train()
    steps = [json.loads(line)["step"] for line in (run.logs / "metrics.jsonl").read_text().splitlines()]
    assert steps == [128, 256, 384, 512]
