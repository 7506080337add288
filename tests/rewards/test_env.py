"""An env with a model's rewards: what is scored, when, and what stays as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from learned_samples import Broken, Slider, brightness, manager, pictures

from plaudit.envs.base import Frames, Step
from plaudit.errors import CheckpointError, DataError, EnvError
from plaudit.rewards import reward_env as module
from plaudit.rewards.callbacks import RewardListener, ScoredSteps
from plaudit.rewards.reward_env import RewardedEnv, check_cameras

torch.set_num_threads(1)

RIGHT = torch.ones(3, 1)


def slide(env: RewardedEnv, steps: int, action: torch.Tensor = RIGHT) -> list[Step]:
    return [env.step(action) for _ in range(steps)]


def at(env: Slider, *places: float) -> None:
    env.place = torch.tensor(places)


def test_every_step_has_the_models_reward_and_the_envs_beside_it() -> None:
    inner = Slider(3)
    env = RewardedEnv(inner, manager())
    env.reset(0)
    at(inner, -0.8, -0.3, 0.3)
    first, second = slide(env, 2)
    # -0.55, -0.05 and 0.55, then -0.3, 0.2 and 0.8: above 0 is a success to the model.
    assert first.reward.tolist() == [0.0, 0.0, 1.0]
    assert first.verdict is not None and first.verdict.tolist() == [False, False, True]
    assert second.reward.tolist() == [0.0, 1.0, 1.0]
    assert second.env_reward is not None
    assert second.env_reward.tolist() == pytest.approx([-0.3, 0.2, 0.8])
    assert second.success is not None and second.success.tolist() == [False, False, True]
    assert second.frames is None and second.final_frames is None
    assert env.settle() is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Three envs take twelve steps, in episodes of five: they end twice.
        ({"reward_mode": "per_step"}, 3 * 12),
        ({"reward_mode": "terminal"}, 3 * 2),
        # Asked after steps 2, 4 and 5 of two episodes, and after step 2 of the third.
        ({"reward_interval": 2}, 3 * (3 + 3 + 1)),
    ],
)
@pytest.mark.parametrize("deferred", [False, True])
def test_only_frames_that_count_are_rendered_and_scored(
    settings: dict[str, Any], expected: int, deferred: bool
) -> None:
    inner = Slider(3, length=5)
    env = RewardedEnv(inner, manager(**settings))
    assert env.defer(deferred) is deferred
    env.reset(0)
    slide(env, 12)
    env.settle()
    assert inner.drawn == expected
    assert env.manager.scored == expected


@pytest.mark.parametrize("settings", [{}, {"reward_mode": "terminal"}, {"hold": 2}, {"reward_interval": 2}])
def test_rewards_given_together_are_those_of_each_step(settings: dict[str, Any]) -> None:
    actions = torch.rand(11, 3, 1, generator=torch.Generator().manual_seed(0)) * 2 - 0.5
    now, later = (RewardedEnv(Slider(3), manager(**settings)) for _ in range(2))
    assert later.defer(True)
    now.reset(4)
    later.reset(4)
    expected = [now.step(action) for action in actions]
    found = []
    for part in (slice(0, 4), slice(4, 11)):
        assert all(not later.step(action).reward.any() for action in actions[part])
        found.append(later.settle())
    rewards = torch.cat([part.reward for part in found if part is not None])
    verdicts = torch.cat([part.verdict for part in found if part is not None])
    assert rewards.tolist() == torch.stack([step.reward for step in expected]).tolist()
    assert verdicts.tolist() == torch.stack([step.verdict for step in expected if step.verdict is not None]).tolist()
    assert rewards.any()


def test_frames_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING", 7 * pictures([0])[0].nbytes)
    env = RewardedEnv(Slider(3), manager(batch_size=4))
    env.defer(True)
    env.reset(0)
    most = 0
    for _ in range(9):
        env.step(RIGHT)
        most = max(most, sum(len(part.rows) for part in env._gathered._waiting))
    assert most == 6
    settled = env.settle()
    assert settled is not None and settled.reward.shape == (9, 3)
    assert env.manager.scored == 27


def test_learned_success_ends_episodes_with_their_true_last_observation() -> None:
    inner = Slider(3, length=4)
    env = RewardedEnv(inner, manager(terminate_on_success=True))
    assert env.defer(True) is False
    env.request_frames("always")
    env.reset(0)
    inner.clock[2] = 3
    at(inner, -0.2, -0.8, -0.9)
    step = env.step(RIGHT)
    # Env 0 is at 0.05, a success to the model; env 2 is at its time limit, and no success.
    assert step.terminated.tolist() == [True, False, False]
    assert step.truncated.tolist() == [False, False, True]
    assert step.reward.tolist() == [1.0, 0.0, 0.0]
    assert step.final_obs is not None and step.final_frames is not None and step.frames is not None
    assert (step.final_obs["state"][:, 0] / 2).tolist() == pytest.approx([0.05, -0.65])
    assert torch.equal(step.final_frames["base_camera"], pictures(4 * torch.tensor([0.05, -0.65])))
    assert torch.equal(step.frames["base_camera"], pictures(4 * inner.place))
    assert torch.equal(step.obs["state"][:, 0], 2 * inner.place)
    assert inner.place[0] < 0 and inner.clock.tolist() == [0, 1, 0]
    # A success at the time limit is a success: nothing is to be expected after it.
    inner.clock[1] = 3
    at(inner, -0.9, 0.7, -0.9)
    step = env.step(RIGHT)
    assert step.terminated.tolist() == [False, True, False] and not step.truncated.any()
    assert step.final_obs is not None and len(step.final_obs["state"]) == 1


class TwoCameras(Slider):
    """The second camera shows the negative of the first."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.cameras = ("base_camera", "wrist_camera")

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        frames = super().render(ids)["base_camera"]
        return {"base_camera": frames, "wrist_camera": 255 - frames}


def test_frames_that_others_ask_for_are_whole_and_drawn_once() -> None:
    inner = TwoCameras(3)
    env = RewardedEnv(inner, manager(terminate_on_success=True))
    env.request_frames("always")
    env.reset(0)
    inner.clock[2] = 4
    at(inner, -0.2, -0.8, -0.9)
    inner.drawn = 0
    step = env.step(RIGHT)
    assert step.final_frames is not None and step.frames is not None
    for frames, places in ((step.final_frames, torch.tensor([0.05, -0.65])), (step.frames, inner.place)):
        assert torch.equal(frames["base_camera"], pictures(4 * places))
        assert torch.equal(frames["wrist_camera"], 255 - pictures(4 * places))
    # The last one of env 2, those of all three, and the first one of env 0's new episode.
    assert inner.drawn == 5


def test_a_hold_begins_anew_with_the_episode_that_learned_success_ended() -> None:
    inner = Slider(1, length=100)
    env = RewardedEnv(inner, manager(terminate_on_success=True, hold=2))
    env.reset(0)
    ends = []
    for _ in range(5):
        inner.place[:] = 0.5
        ends.append(bool(env.step(torch.zeros(1, 1)).terminated))
    assert ends == [False, True, False, True, False]


class Fixed(Slider):
    """An env that cannot begin episodes on request."""

    can_restart = False


def test_an_env_that_cannot_restart_says_so_before_any_work() -> None:
    with pytest.raises(EnvError, match="terminate_on_success: Fixed cannot begin episodes on request"):
        RewardedEnv(Fixed(), manager(terminate_on_success=True))


def test_learned_success_ends_episodes_where_it_is_asked() -> None:
    inner = Slider(2, length=100)
    env = RewardedEnv(inner, manager(terminate_on_success=True, reward_interval=3))
    env.request_frames("terminal")
    env.reset(0)
    ends = []
    for _ in range(7):
        at(inner, 0.5, -0.5)
        step = env.step(torch.zeros(2, 1))
        ends.append(step.terminated.tolist())
        if step.final_frames is not None:
            assert torch.equal(step.final_frames["base_camera"], pictures([2.0]))
    assert ends == [[False, False], [False, False], [True, False]] * 2 + [[False, False]]


def test_cameras_and_sizes_that_the_env_does_not_have() -> None:
    check_cameras(Slider(), brightness())
    with pytest.raises(CheckpointError, match="needs the camera 'wrist', but there is base_camera"):
        check_cameras(Slider(), brightness(image_keys=("wrist",)))
    with pytest.raises(CheckpointError, match=r"camera 'base_camera' has 4×6 pixels, but .* takes 8×8"):
        check_cameras(Slider(), brightness(image_size=(3, 8, 8)))


def test_a_frame_of_nans_is_named() -> None:
    env = RewardedEnv(Broken(3), manager())
    env.reset(0)
    with pytest.raises(DataError, match=r"env 2, camera 'base_camera': the frames cannot be scored: .*not numbers"):
        env.step(RIGHT)


class Rgb(Slider):
    """An env whose policy sees the pictures too."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        import gymnasium as gym

        space = gym.spaces.Box(0, 255, tuple(pictures([0]).shape[1:]), np.uint8)
        self.observation_space = gym.spaces.Dict({**self.observation_space.spaces, "base_camera": space})

    def observe(self, ids: torch.Tensor | None = None) -> Any:
        return {**super().observe(ids), **self.render(ids)}


def test_pictures_that_the_policy_sees_are_not_drawn_again() -> None:
    inner, bare = Rgb(3), Rgb(3)
    env = RewardedEnv(inner, manager())
    check_cameras(inner, brightness())
    env.reset(0)
    bare.reset(0)
    for _ in range(7):
        step = env.step(RIGHT)
        bare.step(RIGHT)
        assert step.reward.tolist() == (inner.place > 0).float().tolist() or bool(step.done.any())
    assert inner.drawn == bare.drawn


class Memory(RewardListener):
    def __init__(self) -> None:
        self.seen: list[ScoredSteps] = []

    def on_rewards(self, seen: ScoredSteps) -> None:
        self.seen.append(seen)


def test_listeners_see_truth_beside_the_verdict() -> None:
    listener = Memory()
    inner = Slider(2, length=3)
    env = RewardedEnv(inner, manager(), [listener])
    env.defer(True)
    env.reset(0)
    at(inner, 0.0, 0.2)
    slide(env, 3, torch.ones(2, 1))
    env.settle()
    (seen,) = listener.seen
    assert seen.judged.verdict.tolist() == [[True, True]] * 3
    assert seen.success is not None
    assert seen.success.tolist() == [[False, False], [False, True], [True, True]]
    assert seen.scores[:, 0, 0] == pytest.approx([1, 2, 3], abs=1e-4)
    assert seen.done.tolist() == [[False, False], [False, False], [True, True]]
    assert seen.env_reward == pytest.approx(np.array([[0.25, 0.45], [0.5, 0.7], [0.75, 0.95]]))


def test_a_saved_state_goes_on_with_the_hold(caplog: pytest.LogCaptureFixture) -> None:
    def begin() -> RewardedEnv:
        env = RewardedEnv(Slider(3, length=100), manager(hold=3))
        env.reset(1)
        return env

    env, other = begin(), begin()
    assert isinstance(env.env, Slider)
    at(env.env, 0.0, 0.0, 0.0)
    slide(env, 2)
    obs = other.load_state_dict(env.state_dict())
    assert torch.equal(obs["state"], env.env.observe()["state"])
    assert [step.reward.tolist() for step in slide(other, 2)] == [[1.0] * 3] * 2
    assert not caplog.messages
    changed = RewardedEnv(Slider(3, length=100), manager(brightness(0.7)))
    changed.load_state_dict(env.state_dict())
    assert "the reward model is another one than before" in caplog.text
