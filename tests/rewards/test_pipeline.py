from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learned_samples import brightness, manager, pictures
from score_samples import make_scores

from plaudit.envs.base import Reading
from plaudit.errors import CheckpointError, ConfigError, DataError
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.rewards.reward_function import DEBUG_FOLDER, rule_of

torch.set_num_threads(1)


def test_scores_are_logits_and_spread_in_small_batches() -> None:
    one = manager(brightness(heads=3), batch_size=2)
    sizes: list[int] = []
    inner = one.engine.score

    def counted(frames: Any) -> Any:
        sizes.append(len(next(iter(frames.values()))))
        return inner(frames)

    one.engine.score = counted  # type: ignore[method-assign]
    found = one.score({"base_camera": pictures([-2, 0, 1, 2, 3]), "other": pictures([0])})
    assert sizes == [2, 2, 1]
    assert found[:, 0] == pytest.approx([-2, 0, 1, 2, 3], abs=1e-4)
    assert found[:, 1] == pytest.approx([math.sqrt(2 / 3)] * 5, abs=1e-4)  # Heads at -1, 0 and 1.
    assert one.score({"base_camera": pictures([])}).shape == (0, 2)
    assert one.scored == 5


def test_compute_rewards_takes_frames_as_other_systems_give_them() -> None:
    one = manager(success_reward=2.0, fail_reward=-1.0, reward_weight=10.0)
    frames = pictures([-1, 1, 3])
    for given in (frames, frames.numpy(), {"base_camera": frames}, {"main_images": frames, "states": np.zeros(3)}):
        assert one.compute_rewards(given).tolist() == [-10.0, 20.0, 20.0]
    smooth = manager(reward_type="continuous").to_device("cpu").compute_rewards(frames)
    assert smooth.dtype == torch.float32
    assert smooth.tolist() == pytest.approx([1 / (1 + math.exp(-logit)) for logit in (-1, 1, 3)], abs=1e-4)


def test_guards_read_the_state() -> None:
    one = manager(readings={"width": Reading(1, 2.0)}, guards=("width > 1",))
    state = torch.tensor([[0.0, 3.0], [0.0, 2.0]])
    assert one.compute_rewards({"base_camera": pictures([1, 1]), "state": state}).tolist() == [1.0, 0.0]
    with pytest.raises(DataError, match="guards need 'state' beside the frames; there is base_camera"):
        one.compute_rewards({"base_camera": pictures([1])})
    with pytest.raises(ConfigError, match=r"reward.guards: the env measures no 'widht'. Did you mean 'width'"):
        manager(readings={"width": Reading(1)}, guards=("widht > 1",))
    with pytest.raises(ConfigError, match=r"measures no 'width'. It declares none"):
        manager(guards=("width > 1",))


def test_what_the_heads_disagree_on_counts_for_less() -> None:
    # A logit of 1 with a deviation of 0.8: not above 0 once twice that is taken off.
    frames = pictures([1, 3])
    assert manager(brightness(heads=3)).compute_rewards(frames).tolist() == [1.0, 1.0]
    assert manager(brightness(heads=3), uncertainty_penalty=2.0).compute_rewards(frames).tolist() == [0.0, 1.0]
    with pytest.raises(ConfigError, match=r"uncertainty_penalty.*has one head"):
        manager(uncertainty_penalty=2.0)


def judged(settings: dict[str, Any], artifact: RewardArtifact | None = None) -> Any:
    one = manager(artifact, **settings)
    scores = np.stack([one.score(pictures(row)) for row in ([1.0, -1.0], [2.0, 2.0])])
    done, env_reward = np.array([[False, False], [False, True]]), np.array([[1.0, 2.0], [3.0, 4.0]])
    return one.rewards_from_scores(scores, done, env_reward, None, one.begin(2))[0]


def test_judge_is_the_steps_in_turn() -> None:
    found = judged({"combine_mode": "add", "hold": 2, "reward_weight": 0.5})
    assert found.verdict.tolist() == [[False, False], [True, False]]
    assert found.model_reward.tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert found.reward.tolist() == [[1.0, 2.0], [3.5, 4.0]]
    logits = np.array([[1.0, -1.0], [2.0, 2.0]])
    assert found.probability == pytest.approx(1 / (1 + np.exp(-logits)), abs=1e-4)


def test_the_threshold_is_the_models_own_or_the_configs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "plaudit")
    assert manager(brightness(0.7)).rule.decision.threshold == 0.7
    assert not caplog.messages
    assert manager(brightness(0.7), reward_threshold=0.6).rule.decision.threshold == 0.6
    assert caplog.messages == ["reward.reward_threshold is 0.600; the model's own is 0.700."]


def test_the_threshold_is_chosen_anew_for_another_mode(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "plaudit")
    # A failure at 3 in the middle of an episode, and none above -1 at its end.
    scores = make_scores(*[([-1.0, 3.0, -1.0], [0, 0, 0]), ([0.0, 4.0, 2.0], [0, 1, 1])] * 5)
    artifact = RewardArtifact(**{**vars(brightness()), "validation": scores, "calibration": Calibration()})
    every = artifact.rechoose(mode="per_step")
    assert every.decision.threshold > 1 / (1 + math.exp(-3))
    last = rule_of(every, manager(reward_mode="terminal").settings).decision
    assert last.mode == "terminal" and 0.5 <= last.threshold < 1 / (1 + math.exp(-2))
    assert "by the same validation scores" in caplog.text


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, CheckpointError, "has the threshold 1, which is never reached.*Give reward.reward_threshold"),
        ({"reward_threshold": 0.6, "hysteresis": 0.6}, None, ""),
        ({"reward_type": "continuous"}, None, ""),
    ],
)
def test_a_model_that_never_fires_is_refused(settings: dict[str, Any], error: Any, message: str) -> None:
    if error is None:
        assert manager(brightness(1.0), **settings).rule.decision.threshold > 0
        return
    with pytest.raises(error, match=message):
        manager(brightness(1.0), **settings)


def test_hysteresis_above_the_models_threshold_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"hysteresis must not be above the threshold, 0.700; it is 0.8"):
        manager(brightness(0.7), hysteresis=0.8)


def test_scored_frames_as_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = manager(debug_save_dir=str(tmp_path / "a"), debug_images=2)
    for logits in ([-1.0, 2.0], [1.0], [3.0]):
        one.score(pictures(logits))
    names = sorted(str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*.png"))
    # Frame 1 was a success too, the oldest of three where two are kept.
    assert names == [
        "resnet_fail/000000_prob0.2689.png",
        "resnet_success/000002_prob0.7311.png",
        "resnet_success/000003_prob0.9526.png",
    ]
    monkeypatch.setenv(DEBUG_FOLDER, str(tmp_path / "b"))
    manager().score(pictures([0.5]))
    again = manager()
    again.score(pictures([0.5]))
    assert len(list((tmp_path / "b").rglob("00000[01]_prob0.6225.png"))) == 2  # Another run counts on.


def test_frames_that_are_no_pictures_are_refused() -> None:
    broken = torch.full((1, *pictures([0]).shape[1:]), math.nan)
    with pytest.raises(DataError, match=r"camera 'base_camera': has values that are not numbers"):
        manager().compute_rewards(broken)
    with pytest.raises(DataError, match="needs the camera 'base_camera'; got wrist"):
        manager().compute_rewards({"wrist": pictures([0])})
