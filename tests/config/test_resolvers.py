"""Values that suit the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from plaudit.config.loader import load_config, load_fit_config, save_config

TEXT = "reward: {reward_mode: '${on_gpu:per_step,terminal}', training: {optim: {lr: '${on_gpu:3e-4,1e-3}'}}}"


@pytest.mark.parametrize(("gpu", "cuda", "found"), [(True, "true", 1), (True, "false", 0), (False, "true", 0)])
def test_a_gpu_counts_where_a_run_may_have_it(
    gpu: bool, cuda: str, found: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plaudit.config.loader.has_gpu", lambda: gpu)
    (tmp_path / "mine.yaml").write_text(TEXT)
    config = load_fit_config(tmp_path / "mine.yaml", [f"runtime.cuda={cuda}"])
    assert config.reward.reward_mode == ("terminal", "per_step")[found]
    assert config.reward.training.optim.lr == (1e-3, 3e-4)[found]


def test_without_a_word_on_cuda_a_gpu_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plaudit.config.loader.has_gpu", lambda: True)
    (tmp_path / "mine.yaml").write_text("reward: {batch_size: '${on_gpu:512,64}'}")
    assert load_fit_config(tmp_path / "mine.yaml").reward.batch_size == 512


def test_a_saved_config_holds_the_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plaudit.config.loader.has_gpu", lambda: True)
    config = load_config("maniskill_ppo_mlp")
    save_config(config, tmp_path / "config.yaml")
    monkeypatch.setattr("plaudit.config.loader.has_gpu", lambda: False)
    assert load_config(tmp_path / "config.yaml") == config and config.env.cfg["num_envs"] == 1024
    assert load_config("maniskill_ppo_mlp").env.cfg["num_envs"] == 32


def test_a_task_has_the_robot_and_the_camera_that_show_it() -> None:
    pick = load_config("maniskill_collect_reward_data")
    assert pick.env.cfg["kwargs"] == {"robot_uids": "panda_wristcam"}
    assert pick.reward.data_collection.image_keys == ("hand_camera",)
    push = load_config("maniskill_collect_reward_data", ["env.id=maniskill:PushCube-v1"])
    assert push.env.cfg["kwargs"] == {"robot_uids": None} and push.reward.data_collection.image_keys == ("base_camera",)
    own = load_config("maniskill_ppo_mlp", ["env.cfg.kwargs={robot_uids: fetch}"])
    assert own.env.cfg["kwargs"] == {"robot_uids": "fetch"}
    more = load_config("maniskill_ppo_mlp", ["+env.cfg.kwargs.robot_init_qpos_noise=0.0"])
    assert more.env.cfg["kwargs"] == {"robot_uids": "panda_wristcam", "robot_init_qpos_noise": 0.0}


def test_a_clone_is_a_policy_that_the_third_stage_can_start_from() -> None:
    clone, learner = load_config("maniskill_bc_pick_cube"), load_config("maniskill_ppo_mlp_resnet_reward")
    assert (clone.policy.name, clone.policy.actor, clone.policy.critic) == (
        learner.policy.name,
        learner.policy.actor,
        learner.policy.critic,
    )
    for key in ("control_mode", "kwargs"):
        assert clone.env.cfg[key] == learner.env.cfg[key]
