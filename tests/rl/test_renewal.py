"""Rewards in a replay that another model gives again: all that they depend on is there, and all are the new one's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from learned_samples import Slider, brightness, manager, pictures
from sac_helpers import make_trainer, sac_of

from plaudit.envs.base import Frames, Step
from plaudit.errors import CheckpointError, NonFiniteError
from plaudit.rewards.reward_env import RewardedEnv
from plaudit.rl import Trainer
from plaudit.rl.buffers import replay_relabel as module
from plaudit.rl.buffers.replay_buffer import ReplayBuffer
from plaudit.rl.buffers.replay_relabel import UNSETTLED

KEYS: dict[str, Any] = {"learning_starts": 40, "batch_size": 16, "update_ratio": 0.1}


class Snapping(Slider):
    """A slider that can be drawn later, and says how often it was."""

    can_snapshot = True
    later = 0

    def snapshot(self) -> torch.Tensor:
        return self.place[:, None].double()

    def render_snapshots(self, snapshots: torch.Tensor) -> Frames:
        self.later += len(snapshots)
        return {"base_camera": pictures(4 * snapshots[:, 0].float())}


class Broken(Slider):
    """A slider whose observation is no number at some step."""

    def __init__(self, num_envs: int, breaks_at: int) -> None:
        super().__init__(num_envs)
        self.left = breaks_at

    def step(self, action: torch.Tensor) -> Step:
        step = super().step(action)
        self.left -= 1
        if self.left == 0:
            step.obs["state"][1] = float("nan")
        return step


def trained(env: Slider, run: Path | None = None, iterations: int = 4, **settings: Any) -> Trainer:
    judge = manager(readings=env.readings, **settings)
    trainer = make_trainer(RewardedEnv(env, judge), run=run, sac=KEYS, rollout_steps=9)
    trainer.train(iterations=iterations)
    return trainer


def column(trainer: Trainer, name: str) -> torch.Tensor:
    buffer = sac_of(trainer).buffer
    return buffer.columns[name][buffer.transitions()]


def claimed(place: torch.Tensor, threshold: float) -> torch.Tensor:
    """What the model takes for a success, of pictures that round the logit to sixteenths."""
    return ((64 * place).round() / 16 > math.log(threshold / (1 - threshold))).float()


MODES: list[dict[str, Any]] = [
    {},
    {"reward_mode": "terminal"},
    {"reward_interval": 3},
    {"hold": 2, "hysteresis": 0.3},
    {"guards": ["place > 0.2"]},
    {"terminate_on_success": True},
    {"combine_mode": "add", "reward_weight": 2.0},
]


@pytest.mark.parametrize("kind", [Slider, Snapping])
@pytest.mark.parametrize("settings", MODES)
def test_the_same_model_gives_the_same_rewards_again(
    kind: type[Slider], settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PIECE", 7)  # Several pieces of every env's time.
    trainer = trained(kind(4), **settings)
    before = {name: column(trainer, name).clone() for name in ("reward", "terminated", "done")}
    assert float(before["reward"].abs().mean()) > 0
    env = trainer.env
    assert isinstance(env, RewardedEnv)
    assert (column(trainer, "reward_id") == env.reward_fingerprint).all()
    buffer = sac_of(trainer).buffer
    buffer.columns["reward"].fill_(77.0)
    buffer.columns["reward_id"].fill_(UNSETTLED)
    assert module.relabel_replay(buffer, env) and not module.relabel_replay(buffer, env)
    assert (column(trainer, "reward_id") == env.reward_fingerprint).all()
    for name, value in before.items():
        torch.testing.assert_close(column(trainer, name), value)
    extras = buffer.extras
    assert ("snapshot" in extras) == (kind is Snapping)
    assert ("frame/base_camera" in extras) == (kind is Slider)


@pytest.mark.parametrize("ends", [False, True])
def test_after_a_swap_all_rewards_are_the_new_models_also_after_a_resume(tmp_path: Path, ends: bool) -> None:
    trainer = trained(Snapping(4), tmp_path, terminate_on_success=ends)
    env = trainer.env
    assert isinstance(env, RewardedEnv)
    old = column(trainer, "reward").clone()
    # A picture's logit is four times the place: over 0.9 beyond 0.549, where it was 0 before.
    env.swap(manager(brightness(0.9), readings=env.readings, terminate_on_success=ends), 2)
    trainer.train(iterations=5)
    sac = sac_of(trainer)
    slots = sac.buffer.transitions()
    place = sac.buffer.obs(sac.buffer.next(slots))[:, 0] / 2  # type: ignore[index]
    wanted = claimed(place, 0.9)
    assert torch.equal(column(trainer, "reward"), wanted)
    assert (column(trainer, "reward_id") == env.reward_fingerprint).all()
    assert not torch.equal(old, wanted[: len(old)])
    assert torch.equal(column(trainer, "terminated"), wanted.bool() if ends else torch.zeros_like(wanted).bool())
    if ends:  # What the first model had ended wrongly is bootstrapped from now.
        batch = sac.buffer.take(slots, 1, 0.9)
        torch.testing.assert_close(batch.discount, 0.9 * (1 - wanted))
    resumed = make_trainer(
        RewardedEnv(Snapping(4), manager(brightness(0.9), terminate_on_success=ends), version=2),
        run=tmp_path,
        sac=KEYS,
        rollout_steps=9,
    )
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    assert torch.equal(column(resumed, "reward"), wanted)
    assert torch.equal(column(resumed, "terminated"), column(trainer, "terminated"))
    drawn = env.env.later  # type: ignore[attr-defined]
    resumed.train(iterations=6)
    assert resumed.env.env.later == 0 < drawn  # type: ignore[attr-defined] # They need not be given once more.


def test_a_kill_between_swap_and_checkpoint_gives_them_again(tmp_path: Path) -> None:
    trained(Snapping(4), tmp_path)
    # The checkpoint is of version 1; the model has been refreshed since.
    resumed = make_trainer(
        RewardedEnv(Snapping(4), manager(brightness(0.9)), version=2), run=tmp_path, sac=KEYS, rollout_steps=9
    )
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    resumed.train(iterations=5)
    assert isinstance(resumed.env, RewardedEnv)
    assert (column(resumed, "reward_id") == resumed.env.reward_fingerprint).all()


OTHERS: list[tuple[float, dict[str, Any]]] = [
    (0.9, {}),
    (0.5, {"reward_threshold": 0.9}),
    (0.5, {"success_reward": 3.0, "fail_reward": -1.0}),
    (0.5, {"reward_mode": "terminal"}),
    (0.5, {"terminate_on_success": True}),
]


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize(("threshold", "settings"), OTHERS)
def test_a_run_resumed_on_another_model_or_with_other_keys_learns_from_no_reward_of_before(
    tmp_path: Path, threshold: float, settings: dict[str, Any], storage: str
) -> None:
    def made(threshold: float = 0.5, **settings: Any) -> Trainer:
        judge = manager(brightness(threshold), **settings)  # Of version 1, as any that was not refreshed in the run.
        keys = {**KEYS, "storage": storage}
        return make_trainer(RewardedEnv(Snapping(4), judge), run=tmp_path, sac=keys, rollout_steps=9)

    made().train(iterations=4)
    resumed = made(threshold, **settings)
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    old = column(resumed, "reward").clone()
    sac_of(resumed)._renew()
    buffer = sac_of(resumed).buffer
    place = buffer.obs(buffer.next(buffer.transitions()))[:, 0] / 2  # type: ignore[index]
    verdict = claimed(place, settings.get("reward_threshold", threshold))
    low, high = settings.get("fail_reward", 0.0), settings.get("success_reward", 1.0)
    wanted = low + (high - low) * verdict
    if settings.get("reward_mode") == "terminal":
        wanted = wanted * column(resumed, "done")
    assert torch.equal(column(resumed, "reward"), wanted)
    assert not torch.equal(old, wanted) or "terminate_on_success" in settings
    ends = settings.get("terminate_on_success", False)
    assert torch.equal(column(resumed, "terminated"), verdict.bool() if ends else torch.zeros_like(verdict).bool())
    resumed.train(iterations=5)
    # And back again: nothing is taken for the first model's that is not.
    back = made()
    back.load(tmp_path / "checkpoints" / "latest.pt")
    back.train(iterations=6)
    buffer = sac_of(back).buffer
    place = buffer.obs(buffer.next(buffer.transitions()))[:, 0] / 2  # type: ignore[index]
    assert torch.equal(column(back, "reward"), claimed(place, 0.5))
    assert not column(back, "terminated").any()


def test_what_has_nothing_to_do_with_rewards_does_not_have_them_given_again() -> None:
    assert manager().identity == manager(batch_size=7, debug_images=3).identity
    assert len({manager(brightness(threshold), **settings).identity for threshold, settings in OTHERS}) == len(OTHERS)


@pytest.mark.parametrize("learned", [True, False])
def test_a_replay_without_what_the_rewards_depend_on_is_refused(tmp_path: Path, learned: bool) -> None:
    def made(learned: bool) -> Trainer:
        env = RewardedEnv(Slider(4), manager()) if learned else Slider(4)
        return make_trainer(env, run=tmp_path, sac=KEYS, rollout_steps=9)

    made(not learned).train(iterations=1)
    with pytest.raises(CheckpointError, match=r"differ in 'age'. Keep reward.use_reward_model"):
        made(learned).load(tmp_path / "checkpoints" / "latest.pt")


def test_a_renewal_that_is_interrupted_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 7)
    trainer = trained(Snapping(4))
    env, buffer = trainer.env, sac_of(trainer).buffer
    assert isinstance(env, RewardedEnv)
    before = buffer.columns["reward"].clone()
    env.swap(manager(brightness(0.9)), 2)
    with monkeypatch.context() as patched:
        asked: list[int] = []
        whole = env.again

        def breaks(*args: Any) -> Any:
            asked.append(1)
            if len(asked) == 3:
                raise KeyboardInterrupt
            return whole(*args)

        patched.setattr(env, "again", breaks)
        with pytest.raises(KeyboardInterrupt):
            module.relabel_replay(buffer, env)
    env.swap(manager(), 1)  # Back, as after a resume from a checkpoint of before.
    assert module.relabel_replay(buffer, env)
    assert torch.equal(buffer.columns["reward"], before)


def test_no_piece_goes_over_an_episode_that_was_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = ReplayBuffer(40, 1, 1, 1)
    obs, nothing, no = torch.zeros(1, 1), torch.zeros(1), torch.zeros(1, dtype=torch.bool)

    def walk(count: int) -> None:
        replay.follow(obs + len(replay))
        for _ in range(count):
            replay.add(replay.obs(replay.heads % replay.rows), torch.zeros(1, 1), nothing, no, no, obs, None)

    walk(3)
    walk(4)  # It begins elsewhere: the first was broken off.
    assert [len(piece) for piece in module._pieces(replay, replay.transitions())] == [3, 4]


def test_a_long_renewal_says_how_long_it_takes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "PIECE", 7)
    trainer = trained(Snapping(4))
    assert isinstance(trainer.env, RewardedEnv)
    trainer.env.swap(manager(brightness(0.9)), 2)
    sac_of(trainer)._renew()
    count = len(sac_of(trainer).buffer)
    said = [text for text in caplog.messages if "rewards" in text]
    assert f"{count} rewards are given anew, in about" in said[-2]
    assert f"{count} rewards were given anew, by version 2 of the reward model" in said[-1]


@pytest.mark.parametrize("settings", MODES)
def test_sac_learns_from_what_the_model_says(settings: dict[str, Any]) -> None:
    trainer = make_trainer(
        RewardedEnv(Slider(4), manager(readings={"place": Slider().readings["place"]}, **settings)), sac=KEYS
    )
    trainer.train(iterations=5)
    assert trainer.deferred == (not settings.get("terminate_on_success", False))
    buffer = sac_of(trainer).buffer
    slots = buffer.transitions()
    place = buffer.obs(buffer.next(slots))[:, 0] / 2  # type: ignore[index]
    reward, ended = buffer.columns["reward"][slots], buffer.columns["done"][slots]
    if not settings:
        assert torch.equal(reward, claimed(place, 0.5))
    if settings.get("reward_mode") == "terminal":
        assert torch.equal(reward, claimed(place, 0.5) * ended)
    if settings.get("terminate_on_success"):
        assert torch.equal(buffer.columns["terminated"][slots], claimed(place, 0.5).bool())
        assert torch.equal(reward, claimed(place, 0.5))


def test_rewards_that_were_never_settled_are_given_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(module, "PIECE", 1)
    env = RewardedEnv(Broken(4, breaks_at=22), manager())
    trainer = make_trainer(env, run=tmp_path, sac=KEYS, rollout_steps=9)
    with pytest.raises(NonFiniteError):
        trainer.train(iterations=4)
    resumed = make_trainer(RewardedEnv(Slider(4), manager()), run=tmp_path, sac=KEYS, rollout_steps=9)
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    assert (
        column(resumed, "reward_id") == UNSETTLED
    ).sum() == 4 * 3  # Of the third rollout, what came before it broke.
    resumed.train(iterations=3)
    given = [int(text.split()[1]) for text in caplog.messages if "given anew, by" in text]
    assert given and 4 * 3 <= given[0] <= 4 * (3 + 5)  # Their episodes, and not all that there is.
    buffer = sac_of(resumed).buffer
    place = buffer.obs(buffer.next(buffer.transitions()))[:, 0] / 2  # type: ignore[index]
    assert torch.equal(column(resumed, "reward"), claimed(place, 0.5))
