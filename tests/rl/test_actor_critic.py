from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import distributions as dist

from plaudit.config.algorithm_schema import ActorCriticConfig
from plaudit.config.schema import NetworkConfig
from plaudit.errors import ConfigError
from plaudit.rl import ActorCritic, build_policy
from plaudit.rl.policies.distributions import gaussian_log_prob

LOW, HIGH = np.float32([-1, -2, 0]), np.float32([1, 2, 3])


def box(size: int) -> gym.spaces.Box:
    return gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)


def camera() -> gym.spaces.Box:
    return gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)


def make(squash: bool, unit: bool = False, **config: Any) -> ActorCritic:
    action_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32) if unit else gym.spaces.Box(LOW, HIGH)
    net = NetworkConfig(hidden_sizes=(16,))
    policy = ActorCritic.build(
        box(4), action_space, torch.device("cpu"), ActorCriticConfig(squash=squash, **config), net, net
    )
    assert isinstance(policy, ActorCritic)
    with torch.no_grad():
        policy.log_std.copy_(torch.tensor([-1.0, 0.3, 0.0]))
        policy.actor[-1].weight.mul_(100.0)
    return policy


def reference(policy: ActorCritic, obs: torch.Tensor) -> dist.Distribution:
    """The same distribution from torch.distributions, in float64."""
    mean = policy.actor(obs).detach().double()
    base = dist.Normal(mean, policy.log_std.detach().double().exp())
    transforms: list[dist.Transform] = [dist.AffineTransform(policy.centre.double(), policy.reach.double())]
    if policy.config.squash:
        transforms.insert(0, dist.TanhTransform())
    return dist.Independent(dist.TransformedDistribution(base, transforms), 1)


@pytest.mark.parametrize("squash", [False, True])
def test_log_prob_is_that_of_torch_distributions(squash: bool) -> None:
    policy = make(squash)
    obs = torch.randn(256, 4)
    action, log_prob, value = policy.get_action(obs)
    expected = reference(policy, obs).log_prob(action.double())
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-4, atol=1e-4)
    again, entropy, same_value = policy.evaluate_actions(obs, action)
    assert torch.equal(again, log_prob)
    assert torch.equal(policy.log_prob(obs, action), log_prob)
    assert torch.equal(value, same_value)
    assert entropy.shape == log_prob.shape == value.shape == (256,)


def test_squashed_log_prob_is_exact_next_to_the_bounds() -> None:
    policy = make(True, unit=True)
    obs = torch.randn(4, 4)
    edge = torch.tensor([1 - 2**-24, 1 - 2**-20, -(1 - 2**-24), 0.999])
    actions = edge[:, None].repeat(1, 3)
    log_prob, _, _ = policy.evaluate_actions(obs, actions)
    # torch's own inverse loses digits here; atanh in float64 of the same float32 numbers does not.
    y = actions.double()
    u = torch.atanh(y)
    base = dist.Normal(policy.actor(obs).detach().double(), policy.log_std.detach().double().exp())
    expected = (base.log_prob(u) - torch.log((1 - y) * (1 + y))).sum(-1)
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-5, atol=1e-4)


def test_saturated_samples_have_a_finite_and_repeatable_log_prob() -> None:
    policy = make(True)
    with torch.no_grad():
        policy.actor[-1].bias.fill_(30.0)
    obs = torch.randn(8, 4)
    action, log_prob, _ = policy.get_action(obs)
    assert torch.isfinite(log_prob).all()
    assert torch.equal(policy.evaluate_actions(obs, action)[0], log_prob)
    assert (action <= torch.from_numpy(HIGH)).all()


def test_squashed_actions_stay_in_the_box_and_the_mean_is_deterministic() -> None:
    policy = make(True)
    obs = torch.randn(500, 4)
    action, _, _ = policy.get_action(obs)
    assert (action >= torch.from_numpy(LOW)).all()
    assert (action <= torch.from_numpy(HIGH)).all()
    mean, _, _ = policy.get_action(obs, deterministic=True)
    torch.testing.assert_close(mean, policy.centre + policy.reach * policy.actor(obs).tanh())


def test_plain_mean_is_in_units_of_the_action_range() -> None:
    policy = make(False)
    obs = torch.randn(5, 4)
    mean, _, _ = policy.get_action(obs, deterministic=True)
    # Centre (0, 0, 1.5) and half range (1, 2, 1.5) of the box.
    expected = torch.tensor([0.0, 0.0, 1.5]) + torch.tensor([1.0, 2.0, 1.5]) * policy.actor(obs)
    torch.testing.assert_close(mean, expected)


def test_entropies() -> None:
    obs = torch.randn(3, 4)
    plain = make(False)
    _, entropy, _ = plain.evaluate_actions(obs, plain.get_action(obs)[0])
    # Gaussian: sum of log std + log(half range) + (1 + log 2 pi)/2 = (-0.7) + log 3 + 3 * 1.418939
    torch.testing.assert_close(entropy, torch.full((3,), -0.7 + np.log(3.0) + 3 * 1.4189385).float())
    squashed = make(True)
    _, entropy, _ = squashed.evaluate_actions(obs, squashed.get_action(obs)[0])
    law = reference(squashed, obs)
    sampled = -law.log_prob(law.sample((200_000,))).mean(0)
    torch.testing.assert_close(entropy.double(), sampled, atol=0.03, rtol=0)


def test_gaussian_gradient() -> None:
    args = [torch.randn(6, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)]
    inputs = [arg.requires_grad_() for arg in args]
    x = torch.randn(6, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda mean, log_std: gaussian_log_prob(mean, log_std, x), inputs)
    law = dist.Independent(dist.Normal(inputs[0], inputs[1].exp()), 1)
    torch.testing.assert_close(gaussian_log_prob(inputs[0], inputs[1], x), law.log_prob(x))


def test_statistics_change_only_when_told_and_are_saved_with_the_model() -> None:
    policy = make(False)
    obs = torch.randn(100, 4) * 3 + 5
    action, before, _ = policy.get_action(obs)
    policy.evaluate_actions(obs, action)
    assert torch.equal(policy.evaluate_actions(obs, action)[0], before)
    policy.learn_statistics(obs)
    assert not torch.equal(policy.evaluate_actions(obs, action)[0], before)
    other = make(False)
    other.load_state_dict(policy.state_dict())
    assert torch.equal(other.get_value(obs), policy.get_value(obs))
    assert "normalizer.mean" in policy.state_dict()


def test_images_share_one_encoder_and_mlp_networks_do_not_see_them() -> None:
    space = gym.spaces.Dict({"state": box(3), "base_camera": camera()})
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    block = {"actor": {"type": "cnn", "hidden_sizes": [8]}, "critic": {"type": "mlp", "hidden_sizes": [8]}}
    policy = build_policy({"name": "actor_critic", "cfg": {}, **block}, space, action_space)
    obs = {"state": torch.randn(4, 3), "base_camera": torch.randint(0, 255, (4, 16, 16, 3), dtype=torch.uint8)}
    inverted = {**obs, "base_camera": 255 - obs["base_camera"]}
    assert torch.equal(policy.get_value(obs), policy.get_value(inverted))
    assert not torch.equal(policy.get_action(obs, True)[0], policy.get_action(inverted, True)[0])
    log_prob, _, value = policy.evaluate_actions(obs, torch.zeros(4, 2))
    (log_prob.sum() + value.sum()).backward()
    assert policy.encoder.towers[0].net.layers[0].weight.grad.abs().sum() > 0


def test_only_a_camera() -> None:
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    block = {"actor": {"type": "cnn", "hidden_sizes": [8]}, "critic": {"type": "cnn", "hidden_sizes": [8]}}
    policy = build_policy({"name": "actor_critic", **block}, gym.spaces.Dict({"cam": camera()}), action_space)
    assert policy.get_action(torch.zeros(4, 16, 16, 3, dtype=torch.uint8))[0].shape == (4, 2)


@pytest.mark.parametrize(
    ("block", "space", "message"),
    [
        ({"actor": None}, box(3), "policy.actor is missing"),
        ({"critic": None}, box(3), "policy.critic is missing"),
        ({"actor": {"type": "cnn"}}, box(3), "needs cameras"),
        ({}, gym.spaces.Dict({"cam": camera()}), "observes only cameras"),
        ({}, gym.spaces.Box(0, 1, (2, 2), np.float32), r"shape \(2, 2\)"),
        ({}, gym.spaces.Box(0, 1, (8, 8, 3), np.float32), r"shape \(8, 8, 3\) and type float32"),
    ],
)
def test_blocks_that_cannot_work(block: dict[str, Any], space: Any, message: str) -> None:
    whole = {"name": "actor_critic", "actor": {"type": "mlp"}, "critic": {"type": "mlp"}, **block}
    with pytest.raises(ConfigError, match=message):
        build_policy(whole, space, gym.spaces.Box(-1.0, 1.0, (2,), np.float32))


def test_squash_needs_bounds() -> None:
    net = {"type": "mlp"}
    with pytest.raises(ConfigError, match="finite bounds"):
        build_policy({"name": "actor_critic", "cfg": {"squash": True}, "actor": net, "critic": net}, box(3), box(2))


def test_noise_of_a_policy_that_is_taken_over_can_be_narrowed() -> None:
    left, narrowed = make(False), make(False, resume_log_std=-0.5)
    for policy in (left, narrowed):
        policy.on_pretrained_loaded()
    assert left.log_std.tolist() == pytest.approx([-1.0, 0.3, 0.0]) and narrowed.log_std.tolist() == [-0.5] * 3
    with pytest.raises(ValueError, match="must be finite"):
        ActorCriticConfig(resume_log_std=float("nan"))


def test_a_policy_that_is_taken_over_sees_numbers_as_it_did() -> None:
    few, other = torch.randn(8, 4), 5.0 + 4.0 * torch.randn(4096, 4)
    moved, kept = make(False), make(False)
    kept.load_state_dict(moved.state_dict())
    for policy in (moved, kept):
        policy.learn_statistics(few)
    before = kept.get_action(few, deterministic=True)[0]
    kept.on_pretrained_loaded()
    for policy in (moved, kept):
        policy.learn_statistics(other)
    torch.testing.assert_close(kept.get_action(few, deterministic=True)[0], before)
    assert (moved.get_action(few, deterministic=True)[0] - before).abs().max() > 1e-3
    again = make(False)  # A run that is resumed goes on so.
    again.load_state_dict(kept.state_dict())
    again.learn_statistics(other)
    torch.testing.assert_close(again.get_action(few, deterministic=True)[0], before)
