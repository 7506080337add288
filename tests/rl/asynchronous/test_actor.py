"""Acting while learning goes on: the ratio, who waits for whom, and going on later. Here both are in one process."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from async_helpers import InThisProcess, actor_of, make_async, shown
from learned_samples import Slider, brightness, manager
from sac_helpers import make_trainer, sac_of

from plaudit.envs.base import Step
from plaudit.envs.config import ProbeConfig
from plaudit.envs.probe_envs import ObsActionReward
from plaudit.errors import ConfigError, EnvError, PlauditError
from plaudit.rewards.reward_env import RewardedEnv
from plaudit.rl import Callback, Trainer, checkpoint
from plaudit.rl import trainer as training
from plaudit.rl.async_ import actor as acting
from plaudit.rl.async_.learner import TOGETHER, acting_part


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process is started."""
    monkeypatch.setattr(acting, "LearningProcess", InThisProcess)
    monkeypatch.setattr(InThisProcess, "patience", 0)


def learner_of(trainer: Trainer) -> Any:
    process: Any = actor_of(trainer).process
    return process.learner


class Log(Callback):
    """Keeps the numbers of all iterations."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def on_metrics(self, step: int, metrics: Any) -> None:
        self.metrics.append(dict(metrics))


class RealTime(ObsActionReward):
    """A probe whose world goes on."""

    real_time = True


@pytest.mark.parametrize(("ratio", "num_envs"), [(0.25, 4), (2.5, 1)])
@pytest.mark.parametrize("real_time", [False, True])
def test_the_ratio_is_never_exceeded_and_exact_in_the_end(ratio: float, num_envs: int, real_time: bool) -> None:
    env = RealTime(ProbeConfig(num_envs=num_envs)) if real_time else "probe/ObsActionReward"
    keys = {"update_ratio": ratio, "batch_size": 8, "learning_starts": 10}
    trainer = make_async(env, num_envs=num_envs, sac=keys, rollout_steps=5, iterations=12)
    trainer.train()  # `InThisProcess` sees at every instant that no more is done than is owed.
    steps = 12 * 5 * num_envs
    learner = learner_of(trainer)
    assert learner.sac.pace.updates == int(ratio * (steps - 10)) == actor_of(trainer).exchange.updates
    assert learner.sac.learner.steps == learner.sac.pace.updates
    assert len(learner.replay) == len(actor_of(trainer).buffer) == steps


def test_a_simulation_is_held_back_and_a_real_world_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InThisProcess, "patience", 10**9)  # Learns only while it is waited for.
    keys = {"update_ratio": 1.0, "batch_size": 8, "learning_starts": 8}
    for env, most in (("probe/ObsActionReward", 2 * 16), (RealTime(ProbeConfig(num_envs=2)), 10 * 16 - 8)):
        log = Log()
        trainer = make_async(env, num_envs=2, sac=keys, iterations=10, listeners=[log])
        trainer.train()
        # A rollout of 16 steps asks for 16 gradient steps: one may be owed when the next begins, and then that one too.
        owed = [row["charts/updates_owed"] for row in log.metrics]
        assert max(owed) <= most and max(owed) > most - TOGETHER
        waited = [row["charts/acting_waits"] for row in log.metrics]
        assert (max(waited) > 0.0) == (most == 32)
        assert learner_of(trainer).sac.pace.updates == 160 - 8


def test_only_a_loop_that_waits_for_nobody_comes_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def ahead(wanted: bool) -> AbstractContextManager[None]:
        asked.append(wanted)
        return nullcontext()

    monkeypatch.setattr(training, "ahead", ahead)
    for make in (make_async, make_trainer):  # What learns in its turn would lock others out meanwhile.
        for env in ("probe/ObsActionReward", RealTime(ProbeConfig(num_envs=4))):
            make(env, iterations=1).train()
    assert asked == [False, True, False, False]


def test_acting_follows_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_async(sac={"learning_starts": 16}, iterations=6)
    trainer.train()
    theirs = learner_of(trainer).policy.state_dict()
    ours = acting_part(trainer.policy)
    assert ours and not any(name.startswith("critics") for name in ours)
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    fresh = make_async(sac={"learning_starts": 16}).policy.state_dict()
    assert any(not torch.equal(value, fresh[name]) for name, value in ours.items())


def test_what_is_learned_after_the_last_rollout_is_acted_by_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Log):
        """While it is told of an iteration, all that is owed is learned."""

        def on_metrics(self, step: int, metrics: Any) -> None:
            super().on_metrics(step, metrics)
            while learner_of(trainer).learn():
                pass

    log = Slow()
    trainer = make_async(sac={"learning_starts": 16}, iterations=4, listeners=[log])
    trainer.train()
    theirs = learner_of(trainer).policy.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in acting_part(trainer.policy).items())
    assert log.metrics[-1]["train/updates"] == learner_of(trainer).sac.pace.updates


class Failing(ObsActionReward):
    """A probe that comes apart at a step."""

    left = 21

    def step(self, action: torch.Tensor) -> Step:
        self.left -= 1
        if not self.left:
            raise EnvError("the arm is stuck")
        return super().step(action)


def test_what_was_tried_before_an_env_failed_is_kept(tmp_path: Path) -> None:
    trainer = make_async(Failing(ProbeConfig(num_envs=4)), run=tmp_path, sac={"learning_starts": 16})
    with pytest.raises(EnvError, match=r"stuck"):
        trainer.train()  # In its third rollout of eight steps.
    resumed = make_async(run=tmp_path, sac={"learning_starts": 16})
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    assert actor_of(resumed).sac.pace.steps == len(actor_of(resumed).buffer) == 4 * 20


def test_what_was_learned_is_told_in_means(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    trainer = make_async(sac={"learning_starts": 16, "actor_interval": 4}, iterations=8, listeners=[log])
    learner = learner_of(trainer)
    learned, seen = learner.sac.learn, []
    monkeypatch.setattr(learner.sac, "learn", lambda most: seen.append(learned(most)) or seen[-1])
    trainer.train()
    before = 0
    for row in log.metrics:
        done = int(row["train/updates"]) - before
        before = int(row["train/updates"])
        parts = []
        while sum(count for count, _ in parts) < done:
            parts.append(seen.pop(0))
        if not parts:
            assert "train/critic_loss" not in row
            continue
        expected = sum(count * losses.critic_loss for count, losses in parts) / done
        assert row["train/critic_loss"] == pytest.approx(expected, rel=1e-5)
    assert before > 100


@pytest.mark.parametrize("ends", [False, True])
def test_a_reward_of_a_model_is_learned_from_only_once_it_is_given(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    env = RewardedEnv(Slider(4), manager(brightness(0.5), terminate_on_success=ends))
    keys = {"learning_starts": 40, "batch_size": 16, "update_ratio": 0.5}
    trainer = make_async(env, sac=keys, rollout_steps=9, iterations=6)
    learner, seen = learner_of(trainer), []
    learned = learner.sac.learn

    def learn(most: int) -> Any:
        slots = learner.replay.transitions()
        seen.append(bool((learner.replay.columns["reward_id"][slots] == env.reward_fingerprint).all()))
        return learned(most)

    monkeypatch.setattr(learner.sac, "learn", learn)
    trainer.train()
    assert all(seen) and len(seen) > 5
    assert learner.replay.columns["reward"].sum() > 0


def same(one: Any, other: Any) -> None:
    """Two SACs have the same parameters, moments, temperature and targets."""
    theirs = other.policy.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in one.policy.state_dict().items())
    state, another = one.learner.state_dict(), other.learner.state_dict()
    for name in ("target", "log_temperature", "steps"):
        assert torch.equal(torch.as_tensor(state[name]), torch.as_tensor(another[name])), name
    assert torch.equal(state["critic_optimizer"]["second"], another["critic_optimizer"]["second"])


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_a_run_goes_on_in_either_mode(tmp_path: Path, storage: str) -> None:
    keys: dict[str, Any] = {"run": tmp_path, "sac": {"storage": storage, "update_ratio": 0.3}, "save_freq": 64}
    first = make_async(**keys)
    first.algorithm.show(shown(10))
    first.train(iterations=5)
    learner = learner_of(first)
    for make in (make_trainer, make_async):
        other = make(seed=7, **keys)
        other.load(tmp_path / "checkpoints" / "latest.pt")
        sac = sac_of(other) if make is make_trainer else learner_of(other).sac
        same(learner.sac, sac)
        assert sac.pace.state_dict() == learner.sac.pace.state_dict()
        assert len(sac.buffer) == 160 == sac.pace.steps and len(sac.demonstrations) == 40
        assert torch.equal(sac.buffer.columns["reward"], learner.replay.columns["reward"])
    process: Any = actor_of(other).process
    assert torch.equal(process.random, actor_of(first).process.random)  # type: ignore[attr-defined]
    other.train(iterations=9)
    assert learner_of(other).sac.pace.updates == int(0.3 * (9 * 32 - 64))
    back = make_trainer(seed=3, **keys)
    back.load(tmp_path / "checkpoints" / "latest.pt")
    back.train(iterations=10)
    assert sac_of(back).pace.updates == int(0.3 * (10 * 32 - 64))


def test_a_checkpoint_in_the_midst_of_a_ring_that_goes_round_holds_whole_transitions(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"run": tmp_path, "sac": {"capacity": 160, "update_ratio": 0.1, "batch_size": 16}}
    trainer = make_async("probe/Timeout", save_freq=32, **keys)
    trainer.train(iterations=9)
    other = make_trainer("probe/Timeout", **keys)
    other.load(tmp_path / "checkpoints" / "latest.pt")
    buffer, ours = sac_of(other).buffer, actor_of(trainer).buffer
    slots = buffer.transitions()
    assert len(slots) > 60
    for one, another in zip(buffer.take(slots, 2, 0.9), ours.take(slots, 2, 0.9), strict=True):
        assert torch.equal(one, another)


def test_the_best_checkpoint_has_the_actor_that_was_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_async(run=tmp_path, evaluates=True, sac={"learning_starts": 16}, eval_freq=64, iterations=8)
    evaluated: list[dict[str, torch.Tensor]] = []
    saved = type(trainer.algorithm).save

    def save(self: Any, folder: Any, name: str, content: Any) -> None:
        if name == "best.pt":
            evaluated.append({name: value.clone() for name, value in acting_part(trainer.policy).items()})
            learner_of(trainer).learn()  # Learning has gone on since.
        saved(self, folder, name, content)

    monkeypatch.setattr(type(trainer.algorithm), "save", save)
    trainer.train()
    assert trainer.run is not None and evaluated
    best = checkpoint.load(trainer.run.best)["policy"]
    assert set(best) == set(trainer.policy.state_dict())
    assert all(torch.equal(best[name], value) for name, value in evaluated[-1].items())
    latest = checkpoint.load(trainer.run.latest)["policy"]
    assert all(torch.equal(latest[name], value) for name, value in learner_of(trainer).policy.state_dict().items())


def test_a_ring_without_room_to_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"capacity is 100, but with runtime.mode=async .* 144 or more"):
        make_async(sac={"capacity": 100, "batch_size": 16})


def test_a_swap_of_the_model_while_another_process_learns_is_refused(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"run": tmp_path, "sac": {"learning_starts": 40, "batch_size": 16, "update_ratio": 0.1}}
    env = RewardedEnv(Slider(4), manager())
    trainer = make_async(env, rollout_steps=9, **keys)
    trainer.train(iterations=4)
    buffer = actor_of(trainer).buffer
    before = buffer.columns["reward"].clone()
    env.swap(manager(brightness(0.9)), 2)
    with pytest.raises(EnvError, match=r"swapped.* while another process learns \(runtime.mode=async\).* Resume"):
        trainer.train(iterations=5)
    assert torch.equal(buffer.columns["reward"], before)
    other = RewardedEnv(Slider(4), manager(brightness(0.9)), version=2)  # As the message says.
    resumed = make_async(other, rollout_steps=9, **keys)
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    resumed.train(iterations=5)
    replay = learner_of(resumed).replay
    assert (
        len(replay) == 5 * 36 and (replay.columns["reward_id"][replay.transitions()] == other.reward_fingerprint).all()
    )


def test_a_swap_after_the_last_step_is_refused_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InThisProcess, "patience", 10**9)  # Learns only while it is waited for.
    env = RewardedEnv(Slider(4), manager())

    class Swap(Callback):
        def on_metrics(self, step: int, metrics: Any) -> None:
            if step == 36:
                env.swap(manager(brightness(0.9)), 2)

    keys = {"learning_starts": 16, "batch_size": 16}
    trainer = make_async(env, rollout_steps=9, run=tmp_path, sac=keys, listeners=[Swap()])
    with pytest.raises(EnvError, match=r"swapped"):
        trainer.train(iterations=1)
    assert checkpoint.load(tmp_path / "checkpoints" / "latest.pt")["trainer"]["step"] == 36


@pytest.mark.parametrize("what", ["show", "load_state_dict"])
def test_what_the_other_process_would_not_be_told_is_refused(what: str) -> None:
    trainer = make_async(iterations=1)
    state = actor_of(trainer).sac.state_dict()
    trainer.train()
    with pytest.raises(PlauditError, match=rf"Actor.{what} was called after learning had begun"):
        getattr(actor_of(trainer), what)({"show": shown(1), "load_state_dict": state}[what])


def owing(monkeypatch: pytest.MonkeyPatch, log: Log, **keys: Any) -> Trainer:
    """A trainer in a world that does not wait, of which nothing is learned until it is waited for."""
    monkeypatch.setattr(InThisProcess, "patience", 10**9)
    sac = {"update_ratio": 1.0, "batch_size": 8, "learning_starts": 8}
    return make_async(RealTime(ProbeConfig(num_envs=2)), sac=sac, iterations=6, listeners=[log], **keys)


def test_nothing_is_learned_after_an_early_end_until_acting_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    trainer = owing(monkeypatch, log)
    trainer.until = lambda: trainer.iteration == 3
    trainer.train()
    actor, learner = actor_of(trainer), learner_of(trainer)
    assert actor.owed == 3 * 16 - 8
    actor.process.listen(1.0)  # As it is in the test of the best policy, which the stages have follow.
    assert not learner.learn() and learner.sac.pace.updates == 0 and len(log.metrics) == 3
    trainer.until = None
    trainer.train(iterations=3)  # There is no step to take, but there are gradient steps.
    assert learner.sac.pace.updates == 3 * 16 - 8
    trainer.train()
    assert learner.sac.pace.updates == 6 * 16 - 8
    actor.sac.pace.steps += 100
    actor.exchange.publish(actor.buffer.heads, actor.sac.pace.steps)
    assert not learner.learn()  # The run is over.


def test_the_gradient_steps_that_follow_the_last_env_step_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(acting, "SAY", 0.0)
    log = Log()
    trainer = owing(monkeypatch, log)
    trainer.train()
    owed, steps = 6 * 16 - 8, [row["train/updates"] for row in log.metrics]
    assert steps == [0] * 6 + [owed]
    last = log.metrics[-1]
    assert last["charts/updates_owed"] == 0 and last["train/critic_loss"] > 0 and "charts/steps_per_second" not in last
    said = [record.getMessage() for record in caplog.records]
    assert f"all env steps are taken; the {owed} gradient steps that are owed follow." in said
    told = [line.split()[0] for line in said if "gradient steps are still owed, for about" in line]
    assert told == [str(owed - done) for done in range(TOGETHER, owed, TOGETHER)]


def test_what_follows_the_last_env_step_is_saved_by_the_clock_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = owing(monkeypatch, Log(), run=tmp_path, save_freq=10**6, save_seconds=1e-9)
    process: Any = actor_of(trainer).process
    save, learned = process.save, []
    monkeypatch.setattr(process, "save", lambda wish: (learned.append(process.learner.sac.pace.updates), save(wish)))
    trainer.train()
    assert sorted(set(learned)) == [*range(0, 6 * 16 - 8, TOGETHER), 6 * 16 - 8]
