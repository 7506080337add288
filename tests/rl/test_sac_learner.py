"""SAC's gradient step, by hand and against autograd."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from sac_helpers import make_sac

from plaudit.envs import build_env
from plaudit.rl.algorithms import sac_update as module
from plaudit.rl.algorithms.sac_update import SACLearner, UpdateInputs
from plaudit.rl.buffers.replay_buffer import Batch
from plaudit.rl.policies import distributions as squashed
from plaudit.rl.policies.sac_policy import SACPolicy

LR = 3e-3


def learner_of(sac: dict[str, Any], policy: dict[str, Any]) -> SACLearner:
    torch.manual_seed(0)
    algorithm = make_sac(build_env("probe/ObsActionReward", {"num_envs": 2}), {"learning_rate": LR, **sac}, policy, 8)
    return algorithm.learner


def some(count: int) -> Batch:
    numbers = torch.Generator().manual_seed(3)
    obs, action, reward, next_obs = torch.rand(4, count, generator=numbers) * 2 - 1
    discount = torch.tensor([0.9, 0.0]).repeat(count // 2)
    return Batch(obs[:, None], action[:, None], reward, discount, next_obs[:, None])


class ByAutograd:
    """The same algorithm, as a textbook has it, on a copy of the policy."""

    def __init__(self, policy: SACPolicy, cfg: Any) -> None:
        self.policy, self.cfg = copy.deepcopy(policy), cfg
        self.target = copy.deepcopy(policy.critics)
        self.steps = 0
        self.log_temperature = torch.tensor([math.log(cfg.init_temperature)], requires_grad=True)
        parts = self.policy.critics.parameters(), self.policy.actor.parameters(), [self.log_temperature]
        self.critic_adam, self.actor_adam, self.temperature_adam = (torch.optim.Adam(part, LR) for part in parts)

    @property
    def temperature(self) -> torch.Tensor:
        fixed = self.cfg.temperature
        return self.log_temperature.detach().exp() if fixed is None else torch.tensor([fixed])

    def draw(self, obs: torch.Tensor, noise: torch.Tensor) -> squashed.Draw:
        return squashed.draw(self.policy.actor(obs)[0], noise)

    def learn(
        self, batch: Batch, noise: torch.Tensor, other: torch.Tensor, believed: list[int] | None, shown: int
    ) -> None:
        self.steps += 1
        assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
        with torch.no_grad():
            drawn = self.draw(batch.next_obs, noise)
            values = self.target(torch.cat([batch.next_obs, drawn.action], -1))[..., 0]
            value = (values if believed is None else values[believed]).min(0).values
            if self.cfg.backup_entropy:
                value = value - self.temperature * drawn.log_prob
            aim = batch.reward + batch.discount * value
        said = self.policy.critics(torch.cat([batch.obs, batch.action], -1))[..., 0]
        loss = 0.5 * (said - aim).square().mean(1).sum()
        self.critic_adam.zero_grad()
        loss.backward()
        self.critic_adam.step()
        for ours, theirs in zip(self.target.parameters(), self.policy.critics.parameters(), strict=True):
            ours.data.lerp_(theirs.data, self.cfg.tau)
        if self.steps % self.cfg.actor_interval:
            return
        drawn = self.draw(batch.obs, other)
        values = self.policy.critics(torch.cat([batch.obs, drawn.action], -1))[..., 0]
        value = values.mean(0) if self.cfg.actor_critics == "mean" else values.min(0).values
        self.actor_adam.zero_grad()
        loss = (self.temperature * drawn.log_prob - value).mean()
        if shown:
            loss = loss + self.cfg.cloning * (drawn.action - batch.action)[:shown].square().sum(-1).mean()
        loss.backward()
        self.actor_adam.step()
        if self.cfg.temperature is None:
            self.temperature_adam.zero_grad()
            (-self.log_temperature * (drawn.log_prob.detach().mean() - 1.0)).backward()
            self.temperature_adam.step()


@pytest.mark.parametrize("shown", [0, 6])
@pytest.mark.parametrize(
    ("sac", "policy"),
    [
        ({}, {}),
        ({"cloning": 3.0, "demonstrations": "somewhere"}, {}),
        ({"temperature": 0.2, "backup_entropy": False}, {"critic_layer_norm": True}),
        (
            {"actor_critics": "mean", "min_critics": 2, "init_temperature": 0.5},
            {"num_critics": 5, "critic_layer_norm": True, "actor_layer_norm": True},
        ),
        ({"actor_interval": 2, "min_critics": 3}, {"num_critics": 5, "critic_layer_norm": True}),
    ],
)
def test_steps_are_those_of_the_textbook(sac: dict[str, Any], policy: dict[str, Any], shown: int) -> None:
    learner = learner_of(sac, policy)
    textbook = ByAutograd(learner.policy, learner.cfg)
    for turn in range(3):
        batch = some(32)
        torch.manual_seed(turn)
        learner.learn(batch, 2, shown)
        torch.manual_seed(turn)
        noise, other = torch.randn(2, 32, 1)
        subsets = learner._subsets(2)
        for step in range(2):
            part = slice(16 * step, 16 * (step + 1))
            textbook.learn(Batch(*(value[part] for value in batch)), noise[part], other[part], subsets[step], shown)
    for name, value in learner.policy.state_dict().items():
        torch.testing.assert_close(value, textbook.policy.state_dict()[name], atol=2e-5, rtol=1e-3, msg=name)
    torch.testing.assert_close(learner.temperature, textbook.temperature)
    target = torch.cat([part.flatten() for part in textbook.target.parameters()])
    torch.testing.assert_close(learner._target.data, target, atol=2e-5, rtol=1e-3)


SINGLY = [1, 1, 1, 1, 2, 1, 1, 1, 1, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [(1, SINGLY), (16, SINGLY), (47, [2, 1, 1, 2, 2, 2, 2, 1, 2]), (10_000, [3, 1, 2, 6, 1, 2])],
)
def test_the_actor_is_asked_once_until_it_changes(
    monkeypatch: pytest.MonkeyPatch, at_once: int, expected: list[int]
) -> None:
    results = []
    for limit, shares in ((at_once, expected), (16, SINGLY)):
        monkeypatch.setattr(module, "AT_ONCE", limit)
        learner = learner_of({"actor_interval": 5}, {})
        asked = []
        forward = learner.actor.forward
        monkeypatch.setattr(learner.actor, "forward", lambda x, f=forward, a=asked: (a.append(len(x) // 16), f(x))[1])
        torch.manual_seed(0)
        for count in (3, 1, 7, 2):
            learner.learn(some(16 * count), count)
        assert asked == shares  # One more where it learns.
        results.append(learner._actor.data)
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=1e-4)


def test_what_the_critics_should_say_by_hand() -> None:
    learner = learner_of({"temperature": 0.5}, {})
    with torch.no_grad():
        for network in (learner.policy.actor, learner.target.network):
            for part in network.parameters():
                part.zero_()
        # Two critics that say 2 and 3 of anything; an actor with mean 0 and deviation 1.
        learner.target.network.biases[-1].copy_(torch.tensor([2.0, 3.0])[:, None, None])
        drawn = learner._draw(
            [UpdateInputs(torch.zeros(2, 2, 2), torch.zeros(2, 2), None)], torch.zeros(1, 2, 2, 1), False
        )
        discount = torch.tensor([0.9, 0.0])
        given = learner._with_entropy(torch.ones(1, 2), discount[None], drawn.log_prob)
        found = learner._aim(given[0], discount, torch.zeros(2, 2), drawn.action, None)
    # The least is 2. The action is 0, where the density is that of the Gaussian: its logarithm -log(2π)/2. Entropy
    # counts half: 2 + 0.25 log(2π). The second episode is over.
    expected = 1.0 + 0.9 * (2.0 + 0.25 * math.log(2 * math.pi))
    torch.testing.assert_close(found, torch.tensor([expected, 1.0]))


def test_a_subset_is_drawn_without_replacement_anew_for_each_step() -> None:
    learner = learner_of({"min_critics": 2}, {"num_critics": 5})
    subsets = [tuple(one) for one in learner._subsets(300) if one is not None]
    assert len(subsets) == 300
    assert all(len(set(one)) == 2 for one in subsets)
    assert len(set(subsets)) == 10
    assert learner_of({"min_critics": 2}, {"num_critics": 2})._subsets(3) == [None] * 3


def test_the_temperature_seeks_the_entropy_that_is_wanted() -> None:
    for wanted, grows in ((5.0, True), (-20.0, False)):  # More than one action in [-1, 1] can have; far less.
        learner = learner_of({"target_entropy": wanted}, {})
        before = float(learner.temperature)
        for _ in range(3):
            learner.learn(some(32), 1)
        assert (float(learner.temperature) > before) == grows
    fixed = learner_of({"temperature": 0.3}, {})
    fixed.learn(some(32), 2)
    assert float(fixed.temperature) == pytest.approx(0.3)


def test_the_actor_learns_at_every_so_many_steps_over_calls() -> None:
    learner = learner_of({"actor_interval": 3}, {})
    moved = []
    for _ in range(7):
        before = learner._actor.data.clone()
        losses = learner.learn(some(32), 1)
        moved.append(not torch.equal(before, learner._actor.data))
        assert math.isnan(losses.entropy) != moved[-1]
    assert moved == [False, False, True, False, False, True, False]


def test_weights_that_a_policy_was_given_later_are_the_targets_too() -> None:
    learner = learner_of({"tau": 1e-9}, {})
    with torch.no_grad():
        for part in learner.policy.critics.parameters():
            part.add_(1.0)
    given = learner._critics.data.clone()
    learner.learn(some(32), 1)
    torch.testing.assert_close(learner._target.data, given)
