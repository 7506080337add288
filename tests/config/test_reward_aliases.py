"""Stage 3 as each of the seeds writes it, and what is refused of it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from plaudit.config.loader import load_config
from plaudit.config.schema import Config
from plaudit.envs.registry import env_config_type
from plaudit.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text("defaults: [push_cube, _self_]\n" + textwrap.dedent(text))
    return path


def load(path: str | Path, *words: str) -> Config:
    return load_config(path, words, registries={"env": env_config_type})


def notices(caplog: pytest.LogCaptureFixture) -> list[str]:
    return sorted(record.getMessage().partition(": ")[2] for record in caplog.records)


def test_resnet_guide(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = """
    cluster: {component_placement: {actor: 0-0, env: 0-0, rollout: 0-0, reward: 0-1}}
    runner: {resume_dir: runs/stage1}
    reward:
      use_reward_model: True
      reward_model_type: "resnet"
      mode: "replace"
      resnet: {checkpoint_path: "logs/reward_checkpoints/best_model.pt"}
    """
    config = load(write(tmp_path, text))
    reward = config.reward
    assert reward.use_reward_model and reward.combine_mode == "replace"
    assert reward.checkpoint_path == "logs/reward_checkpoints/best_model.pt"
    assert config.runtime.resume == "runs/stage1"
    assert reward.model == {}
    assert notices(caplog) == [
        "'cluster' is not used: everything runs in this process.",
        "'reward.mode' is read as 'reward.combine_mode'.",
        "'reward.model.checkpoint_path' is read as 'reward.checkpoint_path'.",
        "'reward.resnet' is read as 'reward.model'.",
        "'reward.reward_model_type' is not used: the checkpoint says which model it is.",
        "'runner.resume_dir' is read as 'runtime.resume'.",
    ]
    assert load(write(tmp_path, "runner: {resume_dir: null}")).runtime.resume is None


def test_workflow_guides(tmp_path: Path) -> None:
    text = """
    reward:
      group_name: "RewardGroup"
      use_reward_model: True
      collect_data: False
      reward_model:
        checkpoint_path: "./checkpoints/reward_model.pt"
        image_keys: ["base_camera"]
        image_size: [3, 64, 64]
        hidden_dim: 256
        num_spatial_blocks: 8
        pretrained_encoder_path: "./resnet10_pretrained.pt"
        use_pretrain: True
        freeze_encoder: True
        reward_type: "continuous"
    """
    reward = load(write(tmp_path, text)).reward
    assert reward.checkpoint_path == "./checkpoints/reward_model.pt"
    assert reward.reward_type == "continuous"
    assert reward.model["model_type"] == "binary_classifier" and reward.model["hidden_dim"] == 256
    assert "checkpoint_path" not in reward.model and "reward_type" not in reward.model


def test_their_command_line(caplog: pytest.LogCaptureFixture) -> None:
    words = ("reward.use_reward_model=True", "reward.collect_data=False", "reward.reward_model.checkpoint_path=./a.pt")
    reward = load("push_cube", *words).reward
    assert reward.use_reward_model and reward.checkpoint_path == "./a.pt" and reward.model == {}
    assert len(caplog.records) == 2


def test_real_world_guide(tmp_path: Path) -> None:
    text = """
    reward:
      use_reward_model: True
      group_name: "RewardGroup"
      reward_mode: "per_step"
      success_reward: 1.0
      fail_reward: 0.0
      reward_threshold: 0.5
      combine_mode: "replace"
      reward_weight: 10.0
      env_reward_weight: 0.0
      model:
        model_type: "resnet_reward"
        arch: "resnet18"
        hidden_dim: 256
        dropout: 0.0
        image_size: [3, 128, 128]
        normalize: true
        precision: "bf16"
        checkpoint_path: "path/to/checkpoint/best_model"
        debug_save_dir: logs/debug
    """
    reward = load(write(tmp_path, text)).reward
    assert (reward.reward_threshold, reward.reward_weight, reward.precision) == (0.5, 10.0, "bf16")
    assert reward.checkpoint_path == "path/to/checkpoint/best_model" and reward.debug_save_dir == "logs/debug"
    assert reward.model["arch"] == "resnet18" and "precision" not in reward.model


@pytest.mark.parametrize(("said", "fail"), [("true", -1.0), ("false", 0.0)])
def test_negative_rewards(tmp_path: Path, said: str, fail: float) -> None:
    assert load(write(tmp_path, f"reward: {{use_negative_reward: {said}}}")).reward.fail_reward == fail


ON = ("reward.use_reward_model=true", "reward.checkpoint_path=x")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward.use_reward_model=true"], "reward.checkpoint_path: must name a reward model"),
        (["reward.reward_threshold=0"], "reward.reward_threshold: must be greater than 0 and less than 1"),
        (["reward.reward_threshold=1.0"], "reward.reward_threshold: must be greater than 0 and less than 1"),
        (["reward.reward_threshold=2"], "reward.reward_threshold: must be greater than 0 and less than 1"),
        (["reward.success_reward=0"], "reward.success_reward: must be greater than fail_reward, or there is nothing"),
        (["reward.fail_reward=1"], "reward.success_reward: must be greater than fail_reward"),
        (["reward.reward_weight=0"], "reward.reward_weight: must be greater than 0 and finite: the model would not"),
        (["reward.env_reward_weight=1"], "env_reward_weight: is for combine_mode weighted; with 'replace' nothing"),
        (["reward.reward_mode=terminal", "reward.hold=2"], "reward.hold: is for reward_mode per_step"),
        (["reward.reward_mode=terminal", "reward.hysteresis=0.3"], "hysteresis: is for reward_mode per_step"),
        (["reward.reward_mode=terminal", "reward.terminate_on_success=true"], "terminal is not asked before the end"),
        (["reward.reward_mode=terminal", "reward.reward_interval=2"], "reward_interval: is for reward_mode per_step"),
        (["reward.hold_window=3"], "hold_window: must be at least hold, which must be given too"),
        (["reward.hold=3", "reward.hold_window=2"], "hold_window: must be at least hold"),
        (["reward.hysteresis=0.7", "reward.reward_threshold=0.6"], "hysteresis: must not be above reward_threshold"),
        (["reward.uncertainty_penalty=-1"], "must not be negative"),
        (["reward.batch_size=0"], "must be at least 1"),
        (["reward.guards=[gripper_width]"], "guards: 'gripper_width' is not a guard"),
        ([*ON, "reward.guards=['gripper_with > 0.01']"], "measures no 'gripper_with'. Did you mean 'gripper_width'"),
        ([*ON, "env.cfg.terminate_on_success=true"], "env.cfg.terminate_on_success: ends episodes by the env's own"),
        ([*ON, "env.eval.terminate_on_success=true"], "env.eval.terminate_on_success: ends episodes by the env's own"),
        ([*ON, "reward.terminate_on_success=true", "reward.collect_data=true"], "cannot end episodes that"),
        (["runtime.best_metric=model_success_once"], "best_metric: is for training on a reward model"),
        (["reward.combine_mode=mix"], "replace.*add.*weighted"),
    ],
)
def test_what_cannot_work_is_said_before_any_work(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("push_cube", *words)


@pytest.mark.parametrize(
    "words",
    [
        [*ON, "reward.guards=['gripper_width > 0.01', 'tcp_z < 0.3']"],
        [*ON, "env.cfg.terminate_on_success=true", "reward.env_success_ends=true"],
        [*ON, "runtime.best_metric=eval/success_once"],
        [*ON, "reward.hold=2", "reward.hold_window=4", "reward.hysteresis=0.3"],
    ],
)
def test_what_can(words: list[str]) -> None:
    assert load("push_cube", *words).reward.use_reward_model


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (
            "{checkpoint_path: B, model: {checkpoint_path: A}}",
            "reward.model.checkpoint_path and reward.checkpoint",
        ),
        ("{fail_reward: 0.0, use_negative_reward: true}", "reward.use_negative_reward and reward.fail_reward"),
        ("{lr_sched: {type: cosine, min_lr: 1.0e-6}}", "reward.lr_sched and reward.training.optim.lr_schedule"),
    ],
)
def test_one_thing_said_twice_and_not_alike_is_an_error(tmp_path: Path, text: str, keys: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"defaults: [push_cube, _self_]\nreward: {text}\n")
    with pytest.raises(ConfigError, match=rf"{keys}.* the same key, but the one says"):
        load_config(path)


def test_one_thing_said_twice_and_alike_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("defaults: [push_cube, _self_]\nreward: {fail_reward: -1.0, use_negative_reward: true}\n")
    assert load_config(path).reward.fail_reward == -1.0
