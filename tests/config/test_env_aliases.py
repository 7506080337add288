"""Envs as RLinf's configs have them, and what they become."""

from __future__ import annotations

import logging
import textwrap
from pathlib import Path

import pytest

from plaudit.config.loader import load_config
from plaudit.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(f"defaults: [_ppo, _self_]\n{textwrap.dedent(text)}")
    return path


def test_what_the_simulator_is_made_with(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = """
    env:
      train:
        init_params: {id: PickCube-v1, reward_mode: sparse, control_mode: pd_joint_delta_pos, render_mode: all}
        control_mode: pd_ee_delta_pos
      eval:
        init_params: {id: PickCube-v1, render_mode: null}
    """
    with caplog.at_level(logging.WARNING, "plaudit"):
        env = load_config(write(tmp_path, text)).env
    assert env.id == "maniskill:PickCube-v1"
    assert env.train == {"reward_mode": "sparse", "control_mode": "pd_ee_delta_pos"}  # Our own spelling wins.
    assert env.eval == {}
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert lines[:2] == [
        "'env.train.init_params' is read as 'env.train'.",
        "'env.train.init_params.render_mode' is not used: frames are drawn where wanted.",
    ]
    assert "'env.eval.init_params.id' is read as 'env.id', that of training and evaluation." in lines
    assert len(lines) == 6


@pytest.mark.parametrize(("theirs", "ours"), [("always", "always"), ("episode_end", "terminal"), ("nver", "nver")])
def test_which_frames_are_rendered(theirs: str, ours: str) -> None:
    assert load_config("push_cube", [f"env.eval.reward_render_mode={theirs}"]).env.eval == {"frames": ours}


def test_a_key_of_the_simulator_on_the_command_line() -> None:
    assert load_config("push_cube", ["env.train.init_params.shader=rt"]).env.train == {"shader": "rt"}
    assert load_config("push_cube", ["env.eval.init_params.id=PushCube-v1"]).env.id == "maniskill:PushCube-v1"
    twice = load_config("push_cube", ["env.eval.init_params.id=maniskill:PushCube-v1"])
    assert twice.env.id == "maniskill:PushCube-v1"


def test_training_and_evaluation_have_one_env(tmp_path: Path) -> None:
    text = "env: {train: {init_params: {id: PickCube-v1}}, eval: {init_params: {id: PushCube-v1}}}"
    with pytest.raises(ConfigError, match=r"env\.eval\.init_params\.id: 'PushCube-v1', but env\.id is"):
        load_config(write(tmp_path, text))


def test_an_env_of_ones_own_may_have_a_key_of_that_name(tmp_path: Path) -> None:
    path = write(tmp_path, "env: {id: Mine, cfg: {init_params: {a: 1}}}")
    assert load_config(path).env.cfg == {"init_params": {"a": 1}}
