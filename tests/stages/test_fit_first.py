"""One command that fits a reward model and trains on it: who does what, and what is checked before either."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plaudit.config.schema import Config, FitConfig
from plaudit.errors import ConfigError, RegistryError
from plaudit.pipelines import builders as common
from plaudit.pipelines import fit_and_train, load_training

FIT_FIRST = ["reward.training.enabled=true", "reward.use_reward_model=true"]


class Doubles:
    """A fit and a training that only note what they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **fitted: Any) -> None:
        self.fitted, self.calls = fitted, list[FitConfig | Config]()
        monkeypatch.setattr(sys.modules["plaudit.pipelines.train"], "fit", self.fit)
        monkeypatch.setattr(sys.modules["plaudit.pipelines.train"], "train", self.train)

    def fit(self, config: FitConfig, *, quiet: bool) -> dict[str, Any]:
        self.calls.append(config)
        return {"run": "outputs/fit", **self.fitted}

    def train(self, config: Config, *, quiet: bool) -> dict[str, Any]:
        self.calls.append(config)
        return {"run": "outputs/train"}


def test_a_policy_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    doubles = Doubles(monkeypatch)
    assert fit_and_train(*load_training("push_cube")) == {"run": "outputs/train"}
    assert [type(config) for config in doubles.calls] == [Config]


def test_what_was_fitted_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    doubles = Doubles(monkeypatch, artifact="outputs/fit/best_model")
    asked = load_training("push_cube", [*FIT_FIRST, "reward.checkpoint_path=another"])
    assert fit_and_train(*asked)["fit"]["artifact"] == "outputs/fit/best_model"
    fitted, trained = doubles.calls
    assert isinstance(fitted, FitConfig) and isinstance(trained, Config)
    assert trained.reward.checkpoint_path == "outputs/fit/best_model"
    assert not trained.reward.training.enabled  # A resumed run is not to fit again.


def test_a_task_that_is_not_there_is_told_before_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(task: str) -> None:
        raise RegistryError(f"unknown ManiSkill task '{task}'.")

    doubles = Doubles(monkeypatch, artifact="outputs/fit/best_model")
    monkeypatch.setattr(common.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "plaudit.envs.maniskill.simulation", SimpleNamespace(find_task=unknown))
    words = ["reward_training.only=False", "env.id=maniskill:PickCub-v1", "reward.use_reward_model=true"]
    with pytest.raises(RegistryError, match="'PickCub-v1'"):
        fit_and_train(*load_training("maniskill_train_resnet_reward", words))
    assert not doubles.calls


def test_a_model_alone_needs_neither_env_nor_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles = Doubles(monkeypatch, artifact="outputs/fit/best_model")
    (tmp_path / "mine.yaml").write_text("reward_training: {enabled: True, only: True, data_path: data}")
    asked = load_training(tmp_path / "mine.yaml")
    assert asked[1] is None and fit_and_train(*asked)["artifact"] == "outputs/fit/best_model"
    assert [type(config) for config in doubles.calls] == [FitConfig]
    with pytest.raises(ConfigError, match=r"env\.id: missing"):
        load_training(tmp_path / "mine.yaml", ["reward_training.only=False"])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("algorithm.cfg.lerning_rate=1", "Did you mean 'learning_rate'"),
        ("reward.training.optim.lr=0", "lr: must be greater than 0"),
        ("reward.training.enabled=maybe", "enabled: expected bool"),
    ],
)
def test_both_are_checked_before_either_begins(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_training("push_cube", [*FIT_FIRST, word])


def test_a_fit_that_was_stopped_is_said_to_leave_the_policy_untrained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    doubles = Doubles(monkeypatch, interrupted=True)
    with caplog.at_level(logging.INFO, "plaudit"):
        assert fit_and_train(*load_training("push_cube", FIT_FIRST))["interrupted"]
    assert len(doubles.calls) == 1
    assert "train it with reward.training.enabled=false reward.checkpoint_path=outputs/fit" in caplog.text
