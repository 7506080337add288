"""Behaviour cloning: what it learns, what it leaves alone, and how it is counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rl_helpers import make_policy

from plaudit.config.schema import RuntimeConfig
from plaudit.envs import VecEnv, build_env
from plaudit.errors import ConfigError, NonFiniteError, PlauditError
from plaudit.rl import RunFolder, Trainer, build_algo, build_policy
from plaudit.rl.algorithms.bc import BC
from plaudit.rl.buffers.replay_buffer import ReplayBuffer
from plaudit.rl.observations import PolicyObs
from plaudit.rl.policies.base import Policy
from plaudit.rl.policies.sac_policy import SACPolicy

TOLD = 0.3, 0.2
"""Mean and standard deviation, before the tanh, of actions that were shown by chance."""


def probe() -> VecEnv:
    return build_env("probe/ObsActionReward", {"num_envs": 4})


def sac_policy(env: VecEnv) -> SACPolicy:
    network = {"type": "mlp", "hidden_sizes": [32, 32], "activation": "relu"}
    made = build_policy({"name": "sac", "actor": network, "critic": network}, env.observation_space, env.action_space)
    assert isinstance(made, SACPolicy)
    return made


def shown(obs: torch.Tensor, action: torch.Tensor) -> ReplayBuffer:
    """One episode of T steps: observations (T, d), of which the last is seen once more at its end."""
    replay = ReplayBuffer(len(obs) + 3, 1, obs.shape[1], action.shape[1])
    ended = torch.arange(len(obs)) == len(obs) - 1
    told = {"reward": torch.zeros(len(obs)), "terminated": ended & ~ended, "done": ended}
    replay.add_episode(torch.cat([obs, obs[-1:]]), action, told)
    return replay


def halves() -> ReplayBuffer:
    """What is best in the probe: half of what is observed."""
    obs = torch.linspace(-1, 1, 64)[:, None]
    return shown(obs, 0.5 * obs)


def clone(policy: Policy, **keys: Any) -> BC:
    values = {"demonstrations": "somewhere", "learning_rate": 3e-3, "batch_size": 64, "updates": 50, **keys}
    algorithm = build_algo("bc", values, policy)
    assert isinstance(algorithm, BC)
    return algorithm


def trainer_on(run: Path | None = None, iterations: int = 6, **keys: Any) -> Trainer:
    """A trainer whose training env cannot be stepped, and an evaluation env that can."""
    torch.manual_seed(1)
    env, eval_env = probe(), probe()

    def refuse(action: torch.Tensor) -> Any:
        raise AssertionError("cloning must not act")

    env.step = refuse  # type: ignore[method-assign]
    policy = sac_policy(env)
    settings = RuntimeConfig(iterations=iterations, eval_freq=100, save_freq=100, eval_episodes=64)
    folder = None if run is None else RunFolder.open(run)
    return Trainer(policy, env, clone(policy, **keys), settings=settings, run=folder, eval_env=eval_env)


@pytest.mark.parametrize("loss", ["mse", "likelihood"])
def test_it_does_as_was_shown(loss: str) -> None:
    policy = sac_policy(probe())
    before = [part.clone() for part in policy.critics.parameters()]
    algorithm = clone(policy, loss=loss, learning_rate=1e-3)  # With more, a density that grows sharp makes it jump.
    algorithm.show(halves())
    first = algorithm.update()["loss"]
    for _ in range(11):
        last = algorithm.update()["loss"]
    obs = torch.tensor([[-0.8], [0.0], [0.6]])
    torch.testing.assert_close(policy.act(obs, deterministic=True), 0.5 * obs, atol=0.03, rtol=0)
    assert last < first
    assert all(torch.equal(*pair) for pair in zip(before, policy.critics.parameters(), strict=True))


def test_the_likelihood_also_learns_how_sure_to_be() -> None:
    policy = sac_policy(probe())
    algorithm = clone(policy, loss="likelihood", batch_size=256, updates=600)
    mean, deviation = TOLD
    algorithm.show(shown(torch.ones(2000, 1), (mean + deviation * torch.randn(2000, 1)).tanh()))
    algorithm.update()
    found, raw = policy.actor(torch.ones(1, 1))[0].detach().chunk(2, -1)
    assert float(found) == pytest.approx(mean, abs=0.03)
    assert float(raw.exp()) == pytest.approx(deviation, rel=0.15)


@pytest.mark.parametrize("loss", ["mse", "likelihood"])
def test_critics_are_not_asked(loss: str) -> None:
    policy, asked = sac_policy(probe()), []
    policy.critics.register_forward_pre_hook(lambda *words: asked.append(words))
    algorithm = clone(policy, loss=loss, updates=2)
    algorithm.show(halves())
    algorithm.update()
    assert not asked
    policy.get_value(torch.zeros(1, 1))
    assert asked


def test_the_squared_error_by_hand() -> None:
    """Before the first step a SAC policy's likeliest action is close to 0, so that the error is that of the actions."""
    algorithm = clone(sac_policy(probe()), updates=1)
    algorithm.show(shown(torch.zeros(4, 1), torch.tensor([[0.5], [0.5], [-0.5], [-0.5]])))
    assert algorithm.update() == {"loss": pytest.approx(0.25, abs=1e-3)}


def test_any_policy_can_be_cloned_and_its_statistics_are_those_of_what_was_shown() -> None:
    policy = make_policy(probe())
    algorithm = clone(policy)
    algorithm.show(halves())
    for _ in range(6):
        algorithm.update()
    obs = torch.tensor([[-0.8], [0.6]])
    torch.testing.assert_close(policy.act(obs, deterministic=True), 0.5 * obs, atol=0.03, rtol=0)
    assert policy.normalizer is not None
    assert float(policy.normalizer.mean) == pytest.approx(0.0, abs=1e-6)
    assert float(policy.normalizer.var) == pytest.approx(float(torch.linspace(-1, 1, 64).var(correction=0)), rel=1e-4)


def test_noise_is_on_vectors_and_as_wide_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    env = build_env("probe/PictureAction", {"num_envs": 2})
    policy = make_policy(env, kind="cnn")
    picture = torch.full((200, 16, 16, 3), 7, dtype=torch.uint8)
    state = torch.tensor([[-2.0], [2.0]]).repeat(100, 1)
    replay = ReplayBuffer(203, 1, {"state": (1,), "camera": (16, 16, 3)}, 1)
    ended = torch.arange(199) == 198
    told = {"reward": torch.zeros(199), "terminated": ended & ~ended, "done": ended}
    replay.add_episode({"state": state, "camera": picture}, torch.zeros(199, 1), told)
    seen: list[PolicyObs] = []
    algorithm = clone(policy, noise=0.1, batch_size=4000, updates=1)
    algorithm.show(replay)
    act = policy.act
    monkeypatch.setattr(policy, "act", lambda obs, deterministic: (seen.append(obs), act(obs, deterministic))[1])
    algorithm.update()
    assert isinstance(seen[0], dict)
    assert (seen[0]["camera"] == 7).all()
    # The state is -2 or 2, of which the standard deviation is 2.
    assert float((seen[0]["state"].abs() - 2.0).std()) == pytest.approx(0.2, rel=0.1)


def test_steps_are_gradient_steps_and_the_env_is_left_alone(tmp_path: Path) -> None:
    trainer = trainer_on(tmp_path)
    trainer.algorithm.show(halves())
    result = trainer.train()
    assert (result["steps"], result["counted"], result["iterations"]) == (300, "gradient steps", 6)
    assert result["best_metric"] == "success_once" and result["best"] > 0.9
    saved = sorted(path.name for path in (tmp_path / "checkpoints").glob("step_*.pt"))
    assert saved == ["step_100.pt", "step_200.pt", "step_300.pt"]


def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    whole = trainer_on(tmp_path / "whole", noise=0.05)
    whole.algorithm.show(halves())
    whole.train()
    begun = trainer_on(tmp_path / "begun", noise=0.05)
    begun.algorithm.show(halves())
    begun.train(iterations=3)
    resumed = trainer_on(tmp_path / "begun", noise=0.05)
    resumed.load(tmp_path / "begun" / "checkpoints" / "latest.pt")
    assert resumed.exact_resume and resumed.step == 150
    resumed.train()
    ours, theirs = whole.policy.state_dict(), resumed.policy.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_resumed_run_may_have_another_learning_rate(tmp_path: Path) -> None:
    begun = trainer_on(tmp_path, updates=1)
    begun.algorithm.show(halves())
    begun.train(iterations=1)
    resumed = trainer_on(tmp_path, updates=1, learning_rate=1e-30)
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    before = [part.detach().clone() for part in resumed.policy.parameters()]
    resumed.train(iterations=2)
    torch.testing.assert_close(list(resumed.policy.parameters()), before, atol=1e-9, rtol=0)


def test_without_demonstrations_there_is_nothing_to_learn() -> None:
    with pytest.raises(PlauditError, match=r"nothing to learn from: BC.show was not called"):
        trainer_on().train()


@pytest.mark.parametrize(
    ("key", "value"),
    [("learning_rate", 0.0), ("updates", 0), ("noise", -0.1), ("loss", "l1"), ("num_demonstrations", 0)],
)
def test_what_cannot_be_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"algorithm.cfg.{key}"):
        clone(sac_policy(probe()), **{key: value})


def test_a_loss_that_is_no_number_changes_nothing() -> None:
    policy = sac_policy(probe())
    algorithm = clone(policy)
    algorithm.show(shown(torch.full((4, 1), math.nan), torch.zeros(4, 1)))
    before = [part.clone() for part in policy.parameters()]
    with pytest.raises(NonFiniteError, match=r"the loss of behaviour cloning is nan. The step was not taken"):
        algorithm.update()
    assert all(torch.equal(*pair) for pair in zip(before, policy.parameters(), strict=True))
