"""SAC learns what it should, at the pace that it should, and goes on where it was stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_helpers import make_policy
from sac_helpers import make_sac, make_trainer, sac_of

from plaudit.envs import build_env
from plaudit.envs.config import ProbeConfig
from plaudit.envs.probe_envs import ActionReward, Probe, Timeout
from plaudit.errors import CheckpointError, ConfigError, NonFiniteError, PlauditError
from plaudit.rl import Trainer, build_algo, checkpoint
from plaudit.rl.algorithms import sac as module
from plaudit.rl.algorithms.base import Wanted
from plaudit.rl.buffers.replay_buffer import ReplayBuffer
from plaudit.rl.policies.sac_policy import SACPolicy

GAMMA = 0.9
CALM: dict[str, Any] = {"temperature": 0.01, "backup_entropy": False, "tau": 0.05, "gamma": GAMMA}


def values(trainer: Trainer, states: list[float], action: float) -> torch.Tensor:
    """Of an action in some states, by all critics together."""
    obs = torch.tensor(states)[:, None]
    assert isinstance(trainer.policy, SACPolicy)
    with torch.no_grad():
        return trainer.policy.get_q(obs, torch.full_like(obs, action)).mean(0)


@pytest.mark.parametrize(
    ("name", "states", "n_step"),
    [
        ("ConstantValue", [0.0], 1),
        ("ObsValue", [-1.0, 1.0], 1),
        ("Discount", [0.0, 1.0], 1),
        ("Discount", [0.0, 1.0], 3),
        ("Timeout", [0.0], 1),
        ("Timeout", [0.0], 3),
    ],
)
def test_the_ladder_of_values(name: str, states: list[float], n_step: int) -> None:
    trainer = make_trainer(f"probe/{name}", sac={**CALM, "n_step": n_step}, iterations=30)
    trainer.train()
    assert isinstance(trainer.env, Probe)
    expected = trainer.env.true_value(torch.tensor(states)[:, None], GAMMA)
    for action in (-0.7, 0.2):  # Whatever is done, the value is the same.
        torch.testing.assert_close(values(trainer, states, action), expected, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("name", ["ActionReward", "ObsActionReward"])
def test_the_ladder_of_actions(name: str) -> None:
    trainer = make_trainer(f"probe/{name}", sac=CALM, iterations=35)
    trainer.train()
    assert isinstance(trainer.env, ActionReward)
    obs = torch.linspace(-0.9, 0.9, 7)[:, None] if name == "ObsActionReward" else torch.zeros(1, 1)
    action, _, _ = trainer.policy.get_action(obs, deterministic=True)
    torch.testing.assert_close(action, trainer.env.best_action(obs), atol=0.12, rtol=0)
    # One step, reward -(a - best)²: the value of an action is its reward.
    said = values(trainer, [0.0], 0.5 if name == "ObsActionReward" else 0.0)
    torch.testing.assert_close(said, torch.tensor([-0.25]), atol=0.08, rtol=0)


class Cut(Timeout):
    """Episodes that the clock ends, which says that the task did."""

    def step(self, action: torch.Tensor) -> Any:
        step = super().step(action)
        step.terminated, step.truncated = step.truncated, step.terminated
        return step


def test_the_value_without_end_is_right_only_where_timeouts_bootstrap() -> None:
    trainer = make_trainer(Cut(ProbeConfig(num_envs=4)), sac=CALM, iterations=30)
    trainer.train()
    # Nobody can see how much time is left, so the value is that of the mean state: far from 1 / (1 - gamma).
    assert float(values(trainer, [0.0], 0.0)) < 5.0


@pytest.mark.parametrize(("ratio", "num_envs"), [(0.25, 4), (1.0, 3), (2.5, 1), (0.3, 2)])
def test_the_ratio_is_exact_after_every_iteration(ratio: float, num_envs: int) -> None:
    trainer = make_trainer(
        num_envs=num_envs, sac={"update_ratio": ratio, "batch_size": 8, "learning_starts": 10}, rollout_steps=5
    )
    sac = sac_of(trainer)
    for iteration in range(1, 9):
        trainer.train(iterations=iteration)
        steps = iteration * 5 * num_envs
        assert sac.pace.steps == steps == len(sac.buffer)
        assert sac.pace.updates == int(ratio * max(0, steps - 10) + 1e-9) == sac.learner.steps


def test_before_learning_starts_actions_are_any() -> None:
    trainer = make_trainer(num_envs=8, sac={"learning_starts": 800}, rollout_steps=100, iterations=1)
    sac = sac_of(trainer)
    before = {name: value.clone() for name, value in trainer.policy.state_dict().items()}
    trainer.train()
    actions = sac.buffer.columns["action"][sac.buffer.transitions()]
    assert actions.min() < -0.95 and actions.max() > 0.95
    assert abs(float(actions.std()) - 3**-0.5) < 0.03
    assert all(torch.equal(value, before[name]) for name, value in trainer.policy.state_dict().items())
    assert sac.update() == {"updates": 0.0, "replay_size": 800.0}


def test_a_policy_that_has_been_taught_acts_from_the_first_step_on() -> None:
    trainer = make_trainer(num_envs=8, sac={"learning_starts": 800}, rollout_steps=100, iterations=1)
    sac, acted = sac_of(trainer), []
    sac.from_scratch = False
    act = sac.policy.act
    sac.policy.act = lambda *args, **keys: acted.append(1) or act(*args, **keys)  # type: ignore[method-assign, func-returns-value]
    trainer.train()
    assert len(acted) == 100 and sac.pace.updates == 0


def test_noise_of_a_policy_that_is_taken_over_can_be_set() -> None:
    env = build_env("probe/ObsActionReward", {"num_envs": 2})
    policy = make_sac(env, policy={"resume_log_std": -3.0}).policy
    obs = torch.randn(4096, 1)
    policy.requires_grad_(False)
    before = policy.act(obs, deterministic=True)
    policy.on_pretrained_loaded()
    assert torch.equal(policy.act(obs, deterministic=True), before)
    off = policy.act(obs).atanh() - before.atanh()
    assert abs(float(off.std().log()) + 3.0) < 0.1


def shown(value: float) -> ReplayBuffer:
    """Demonstrations whose actions are all `value`."""
    replay = ReplayBuffer(64, 1, 1, 1)
    ended = torch.arange(4) == 3
    for _ in range(10):
        told = {"reward": torch.ones(4), "terminated": ended, "done": ended}
        replay.add_episode(torch.zeros(5, 1), torch.full((4, 1), value), told)
    return replay


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_each_batch_has_its_share_of_demonstrations(share: float) -> None:
    keys = {"demonstration_share": share, "batch_size": 16, "demonstrations": "somewhere"}
    sac = sac_of(trainer := make_trainer(sac=keys))
    with pytest.raises(PlauditError, match=r"demonstrations is given, but"):
        trainer.train(iterations=3)
    sac.show(shown(7.0))
    batch = sac.batch(5)
    marked = (batch.action == 7.0).view(5, 16).sum(1)
    assert marked.tolist() == [16 * share] * 5


@pytest.mark.parametrize(
    ("ratio", "interval", "said"),
    [(20, 2, ["up to 10 steps", "env step: 20,"]), (2.5, 1, ["up to 2.5 steps", "env step: 3,"]), (20, 10, [])],
)
def test_an_actor_that_takes_many_steps_is_told_of(
    ratio: float, interval: int, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "plaudit"):
        make_trainer(sac={"update_ratio": ratio, "actor_interval": interval})
    advice = [text for text in caplog.messages if text.startswith("The actor may take")]
    assert len(advice) == bool(said)
    assert all(words in advice[0] for words in said)


def test_what_cannot_work_is_refused() -> None:
    env = build_env("probe/ObsActionReward", {"num_envs": 2})
    with pytest.raises(ConfigError, match=r"trains the policy 'sac', not ActorCritic"):
        build_algo("sac", {}, make_policy(env))
    with pytest.raises(ConfigError, match=r"min_critics is 3, but policy.cfg.num_critics is only 2"):
        make_sac(env, {"min_critics": 3})
    with pytest.raises(ConfigError, match=r"storage is 'disk', but this run has no folder"):
        make_trainer(sac={"storage": "disk"})
    wrong = {"demonstrations": "somewhere", "demonstration_outcome": "any"}
    assert make_sac(env, wrong).wants == Wanted("somewhere", failures=True)
    with pytest.raises(ConfigError, match=r"demonstration_outcome: needs demonstrations, which names none"):
        make_sac(env, {"demonstration_outcome": "any"})
    with pytest.raises(ConfigError, match=r"cloning: must be 0 with demonstration_outcome any"):
        make_sac(env, {**wrong, "cloning": 1.0})


def test_a_rollout_must_not_overtake_itself_in_the_ring() -> None:
    # 40 steps that each end an episode fill 80 slots of each of two envs, and one waits.
    with pytest.raises(ConfigError, match=r"capacity is 161, but one rollout of 40 steps of 2 envs may take 162"):
        make_trainer(num_envs=2, sac={"capacity": 161}, rollout_steps=40)
    trainer = make_trainer(num_envs=2, sac={"capacity": 162, "update_ratio": 0.01}, rollout_steps=40)
    trainer.train(iterations=3)  # Episodes of one step: each rollout overwrites the one before, and nothing of itself.
    assert len(sac_of(trainer).buffer) == 80


def test_a_share_that_leaves_nothing_is_refused() -> None:
    env = build_env("probe/ObsActionReward", {"num_envs": 2})
    for share in (0.005, 0.995):
        keys = {"demonstration_share": share, "batch_size": 64, "demonstrations": "somewhere"}
        with pytest.raises(ConfigError, match=r"demonstration_share: leaves nothing of one side in a batch of 64"):
            make_sac(env, keys)
        make_sac(env, {**keys, "demonstrations": None})  # Nobody reads it.


def test_losses_are_means_of_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # Drawn one by one, every other gradient step is without one of the actor.
    monkeypatch.setattr(module, "DRAWN", 1)
    sac = sac_of(trainer := make_trainer(sac={"actor_interval": 2, "learning_starts": 0, "update_ratio": 0.25}))
    trainer.train(iterations=1)
    sac.pace.steps += 4
    assert sac.pace.owed == 1 and "actor_loss" not in sac.update()  # The ninth.
    sac.pace.steps += 12
    assert {"critic_loss", "q_value", "actor_loss", "entropy", "temperature"} <= sac.update().keys()


def test_means_by_hand() -> None:
    nan = float("nan")
    assert module._mean([(1, 2.0), (3, 6.0), (5, nan)]) == 5.0
    assert module._mean([(5, nan)]) is None


def test_critics_that_are_lost_are_told_of() -> None:
    sac = sac_of(trainer := make_trainer(sac={"learning_starts": 0}))
    trainer.train(iterations=1)
    sac.buffer.columns["reward"].fill_(float("inf"))
    sac.pace.steps += 5
    with pytest.raises(NonFiniteError, match=r"SAC's critics are lost"):
        sac.update()


def same(first: Trainer, second: Trainer) -> None:
    """Both have the same parameters, moments, temperature, counts and replay, bit for bit."""
    one, other = sac_of(first), sac_of(second)
    theirs = other.policy.state_dict()
    for name, value in one.policy.state_dict().items():
        assert torch.equal(value, theirs[name]), name
    state, another = one.learner.state_dict(), other.learner.state_dict()
    assert torch.equal(state["target"], another["target"])
    assert torch.equal(state["log_temperature"], another["log_temperature"])
    assert torch.equal(state["critic_optimizer"]["second"], another["critic_optimizer"]["second"])
    assert one.pace.state_dict() == other.pace.state_dict()
    slots = one.buffer.transitions()
    assert torch.equal(slots, other.buffer.transitions())
    for ours, others in zip(one.buffer.take(slots, 2, 0.9), other.buffer.take(slots, 2, 0.9), strict=True):
        assert torch.equal(ours, others)


@pytest.mark.parametrize("env", ["probe/ObsActionReward", "probe/Timeout"])
@pytest.mark.parametrize("capacity", [5000, 150])  # The small one is overwritten several times.
def test_a_resumed_run_is_bit_for_bit_an_unbroken_one(tmp_path: Path, env: str, capacity: int) -> None:
    keys = {"sac": {"capacity": capacity, "update_ratio": 0.3, "n_step": 2}, "save_freq": 96}
    unbroken = make_trainer(env, **keys)
    if env == "probe/Timeout":
        sac_of(unbroken).show(shown(0.3))
    unbroken.train(iterations=12)
    broken = make_trainer(env, run=tmp_path, **keys)
    if env == "probe/Timeout":
        sac_of(broken).show(shown(0.3))
    broken.train(iterations=7)
    resumed = make_trainer(env, run=tmp_path, seed=99, **keys)
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    assert resumed.train(iterations=12)["exact_resume"] is True
    same(unbroken, resumed)


def test_an_older_checkpoint_takes_the_replay_back_with_it(tmp_path: Path) -> None:
    whole = make_trainer()
    whole.train(iterations=5)
    later = make_trainer(run=tmp_path, save_freq=64, keep_checkpoints=0)
    later.train(iterations=9)
    resumed = make_trainer(run=tmp_path, save_freq=64)
    resumed.load(tmp_path / "checkpoints" / "step_128.pt")
    assert sac_of(resumed).pace.steps == len(sac_of(resumed).buffer) == 128
    resumed.train(iterations=5)
    same(whole, resumed)


def test_another_size_is_refused(tmp_path: Path) -> None:
    make_trainer(run=tmp_path).train(iterations=2)
    other = make_trainer(run=tmp_path, sac={"capacity": 4000})
    with pytest.raises(CheckpointError, match=r"1250 slots for each of 4 envs, but here are 1000 for 4"):
        other.load(tmp_path / "checkpoints" / "latest.pt")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (("replay",), r"'replay' of SAC"),
        (("pace",), r"'pace' of SAC"),
        (("pace", "since"), r"'since' of the gradient steps that are due"),
        (("learner", "target"), r"'target' of what SAC has learned"),
        (("replay", "obs"), r"'obs' of the replay"),
        (("demonstrations", "extras"), r"'extras' of the replay"),
    ],
)
def test_a_checkpoint_of_an_older_version_says_what_it_lacks(tmp_path: Path, path: tuple[str, ...], said: str) -> None:
    first = make_trainer(run=tmp_path)
    first.algorithm.show(shown(0.3))
    first.train(iterations=1)
    latest = tmp_path / "checkpoints" / "latest.pt"
    content = checkpoint.load(latest)
    part = content["algorithm"]
    for name in path[:-1]:
        part = part[name]
    del part[path[-1]]
    checkpoint.save(latest, content)
    with pytest.raises(CheckpointError, match=rf"the checkpoint does not say {said}: an older Plaudit wrote it"):
        make_trainer(run=tmp_path).load(latest)


def test_demonstrations_that_a_run_never_had_are_refused(tmp_path: Path) -> None:
    make_trainer(run=tmp_path).train(iterations=1)
    later = make_trainer(sac={"demonstrations": "somewhere"}, run=tmp_path)
    with pytest.raises(
        CheckpointError, match=r"a run without demonstrations, but algorithm.cfg.demonstrations names some"
    ):
        later.load(tmp_path / "checkpoints" / "latest.pt")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"demonstrations": None}, r"demonstrations is None, but .* were chosen with 'somewhere'"),
        ({"demonstrations": "elsewhere"}, r"demonstrations is 'elsewhere', but .* were chosen with 'somewhere'"),
        ({"num_demonstrations": 9}, r"num_demonstrations is 9, but .* were chosen with None"),
        ({"demonstration_outcome": "any"}, r"demonstration_outcome is 'any', but .* were chosen with 'success'"),
    ],
)
def test_other_demonstrations_than_a_run_keeps_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    given = {"demonstrations": "somewhere"}
    first = make_trainer(sac=given, run=tmp_path)
    sac_of(first).show(shown(0.3))
    first.train(iterations=1)
    latest = tmp_path / "checkpoints" / "latest.pt"
    with pytest.raises(CheckpointError, match=rf"algorithm.cfg.{said}"):
        make_trainer(sac={**given, **change}, run=tmp_path).load(latest)
    again = make_trainer(sac=given, run=tmp_path)
    again.load(latest)
    assert sac_of(again).demonstrations is not None


SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[3])
    from sac_helpers import make_trainer, sac_of
    from plaudit.rl import Callback

    run, mode = Path(sys.argv[1]), sys.argv[2]

    class Pause(Callback):
        def on_metrics(self, step, metrics):
            if mode == "kill" and step == 32 * 9:
                print("ready", flush=True)
                sys.stdin.readline()  # Killed here: the last checkpoint is of eight iterations.

    trainer = make_trainer(run=run, sac={"update_ratio": 0.7}, save_freq=32, listeners=[Pause()])
    if mode == "resume":
        trainer.load(run / "checkpoints" / "latest.pt")
        assert trainer.iteration == 8
        pace = sac_of(trainer).pace
        assert pace.updates == int(0.7 * (32 * 8 - 64)) and pace.owed == 0
    trainer.train(iterations=14)
    """
)


def test_a_run_killed_without_warning_resumes_to_the_same_end(tmp_path: Path) -> None:
    def start(folder: str, mode: str) -> subprocess.Popen[str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        words = [sys.executable, "-c", SCRIPT, str(tmp_path / folder), mode, str(Path(__file__).parent)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    unbroken, killed = start("unbroken", "whole"), start("killed", "kill")
    assert killed.stdout is not None
    assert killed.stdout.readline() == "ready\n"
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    resumed = start("killed", "resume")
    for process in (unbroken, resumed):
        process.communicate(timeout=180)
        assert process.returncode == 0
    ends = []
    for folder in ("unbroken", "killed"):
        trainer = make_trainer(run=tmp_path / folder, sac={"update_ratio": 0.7})
        trainer.load(tmp_path / folder / "checkpoints" / "latest.pt")
        ends.append(trainer)
    assert sac_of(ends[0]).pace.updates == int(0.7 * (32 * 14 - 64))
    same(ends[0], ends[1])
