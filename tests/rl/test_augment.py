import gymnasium as gym
import numpy as np
import pytest
import torch

from plaudit.config.algorithm_schema import PPOConfig
from plaudit.envs import build_env
from plaudit.errors import ConfigError
from plaudit.rl import ActorCritic, build_policy
from plaudit.rl.algorithms.ppo import PPO
from plaudit.rl.image_augmentation import disagreement, moved

NET = {"type": "cnn", "hidden_sizes": [8]}


def make(**cfg: float) -> PPO:
    """PPO with a rollout of the picture probe in its buffer."""
    env = build_env("probe/PictureAction", {"num_envs": 8})
    policy = build_policy({"actor": NET, "critic": NET}, env.observation_space, env.action_space)
    assert isinstance(policy, ActorCritic)
    with torch.no_grad():  # As if it had learned something: at the start it hardly depends on what it sees.
        policy.actor[-1].weight.mul_(100.0)
        policy.critic[-1].weight.mul_(100.0)
    algorithm = PPO(PPOConfig(batch_size=16, n_epochs=1, **cfg), policy)  # type: ignore[arg-type]
    algorithm.initialize_buffer(2, 8, {"state": (1,), "camera": (16, 16, 3)}, 1)
    algorithm.collect_rollout(env, policy, env.reset(0)[0], 2)
    return algorithm


def test_pictures_move_within_bounds_and_nothing_else_does() -> None:
    picture = torch.arange(5 * 6 * 3, dtype=torch.uint8).view(1, 5, 6, 3).repeat(200, 1, 1, 1)
    obs = {"state": torch.randn(200, 2), "a": picture, "b": picture}
    seen = moved(obs, 1)
    assert isinstance(seen, dict)
    assert seen["state"] is obs["state"]
    # The pixel in the middle shows its neighbour in one of nine directions; all nine come up.
    around = {tuple(picture[0, 2 + row, 3 + column].tolist()) for row in (-1, 0, 1) for column in (-1, 0, 1)}
    for camera in ("a", "b"):
        assert {tuple(pixel) for pixel in seen[camera][:, 2, 3].tolist()} == around
    assert not torch.equal(seen["a"], seen["b"])


def test_moving_repeats_the_edge() -> None:
    picture = torch.tensor([[10, 20], [30, 40]], dtype=torch.uint8).view(1, 2, 2, 1).repeat(300, 1, 1, 1)
    found = {tuple(image.flatten().tolist()) for image in moved(picture, 1)}  # type: ignore[union-attr]
    rows, columns = ((0, 0), (0, 1), (1, 1)), ((0, 0), (0, 1), (1, 1))
    table = [[10, 20], [30, 40]]
    assert found == {tuple(table[r][c] for r in row for c in column) for row in rows for column in columns}


def test_gradient_of_the_disagreement() -> None:
    true, other = torch.randn(2, 5, dtype=torch.float64)
    value, moved_value = torch.randn(2, 5, dtype=torch.float64)
    other.requires_grad_()
    moved_value.requires_grad_()
    loss = 0.3 * ((other - true).square() / 2 + (moved_value - value).square()).mean()
    expected = torch.autograd.grad(loss, (other, moved_value))
    torch.testing.assert_close(disagreement(true, value, other, moved_value, 0.3), expected)


def test_its_mean_is_the_divergence() -> None:
    # Of two Gaussians with the same deviation s: (difference of means)² / (2 s²).
    mean, other, std = 0.1, 0.12, 0.2
    action = mean + std * torch.randn(400_000, dtype=torch.float64)
    logprob, moved_logprob = (-(action - m).square() / (2 * std**2) for m in (mean, other))
    estimate = ((moved_logprob - logprob).square() / 2).mean().item()
    assert estimate == pytest.approx((mean - other) ** 2 / (2 * std**2), rel=0.03)


def test_ratios_are_those_of_the_true_pictures() -> None:
    # Before the first step the policy is the one that acted: with moved pictures in the ratio it would not seem so.
    means = make(image_shift=4, learning_rate=1e-12).update()
    assert abs(means["approx_kl"]) < 1e-6
    assert means["clip_fraction"] == 0.0


def test_learning_draws_both_views_together() -> None:
    def gap(algorithm: PPO, obs: dict[str, torch.Tensor]) -> float:
        with torch.no_grad():
            torch.manual_seed(0)
            true, other = (algorithm.policy.get_action(part, True)[0] for part in (obs, moved(obs, 4)))
        return float((true - other).square().mean())

    algorithm = make(image_shift=4, image_shift_coef=1.0, learning_rate=3e-3)
    obs = algorithm.buffer.flat_obs()
    assert isinstance(obs, dict)
    before = gap(algorithm, obs)
    algorithm.buffer._extras["advantages"].zero_()  # Nothing else is to be learned by the actor.
    for _ in range(30):
        algorithm.update()
    assert gap(algorithm, obs) < 0.5 * before


def test_while_only_the_critic_learns_moved_pictures_leave_the_actor_alone() -> None:
    algorithm = make(image_shift=2, critic_warmup=0.5)
    assert isinstance(algorithm.policy, ActorCritic)
    before = algorithm.policy.actor[-1].weight.clone()
    algorithm.update()
    assert torch.equal(algorithm.policy.actor[-1].weight, before)


def test_without_pictures_there_is_nothing_to_move() -> None:
    env = build_env("probe/ObsValue", {"num_envs": 2})
    net = {"type": "mlp"}
    algorithm = PPO(
        PPOConfig(image_shift=2),
        build_policy({"actor": net, "critic": net}, env.observation_space, gym.spaces.Box(-1, 1, (1,), np.float32)),
    )
    with pytest.raises(ConfigError, match="image_shift moves pictures, but the env observes none"):
        algorithm.initialize_buffer(2, 2, 1, 1)
