import math
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from rl_helpers import make_policy
from torch import nn

from plaudit.config.algorithm_schema import PPOConfig
from plaudit.envs import Outcome, TaskEnv, build_env
from plaudit.envs.base import Obs
from plaudit.errors import NonFiniteError, PlauditError
from plaudit.rl import PPO, Policy, build_algo
from plaudit.rl.accel.flat_adam import FlatAdam, FlatParameters
from plaudit.rl.algorithms.ppo import explained_variance, ppo_loss, summarise

# Four samples, clip 0.2. Ratios 1.5, 1.5, 0.5, 0.5 with advantages 1, -1, 1, -1:
#   1.5,  1: min(1.5, 1.2)   =  1.2, clipped, no gradient
#   1.5, -1: min(-1.5, -1.2) = -1.5, gradient of the ratio times -1
#   0.5,  1: min(0.5, 0.8)   =  0.5, gradient of the ratio times 1
#   0.5, -1: min(-0.5, -0.8) = -0.8, clipped, no gradient
RATIO = torch.tensor([1.5, 1.5, 0.5, 0.5])
BATCH = {
    "logprobs": torch.zeros(4),
    "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0]),
    "returns": torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "values": torch.tensor([0.0, 0.0, 3.0, 5.0]),
}
VALUE = torch.tensor([2.0, 0.1, 3.0, 4.9])
CFG = PPOConfig(normalize_advantage=False, vf_coef=0.5, clip_coef=0.2)


def test_clipped_objective_by_hand() -> None:
    loss = ppo_loss(RATIO.log(), torch.full((4,), 2.0), VALUE, BATCH, CFG)
    torch.testing.assert_close(loss.objective, torch.tensor([1.2, -1.5, 0.5, -0.8]))
    # d(-mean objective)/d logprob = -advantage * ratio / 4 where it is not clipped.
    torch.testing.assert_close(loss.d_logprob, torch.tensor([0.0, 0.375, -0.125, 0.0]))
    # Errors 1, -1.9, 0, 0.9; their mean square is (1 + 3.61 + 0 + 0.81)/4 = 1.355; gradient 0.5 * 2 * error / 4.
    torch.testing.assert_close(loss.d_value, torch.tensor([0.25, -0.475, 0.0, 0.225]))
    numbers = summarise([loss], 0.2)
    assert numbers["actor_loss"] == pytest.approx(0.6 / 4)
    assert numbers["value_loss"] == pytest.approx(1.355)
    assert numbers["entropy"] == 2.0
    assert numbers["clip_fraction"] == 1.0
    # mean of (ratio - 1 - log ratio): (0.5 - 0.405465 - 0.5 + 0.693147)/2
    assert numbers["approx_kl"] == pytest.approx((0.5 - math.log(1.5) - 0.5 - math.log(0.5)) / 2, abs=1e-6)


def test_value_clipping_by_hand() -> None:
    loss = ppo_loss(RATIO.log(), torch.zeros(4), VALUE, BATCH, replace(CFG, clip_value=0.5))
    # Changes 2, 0.1, 0, -0.1 become 0.5, 0.1, 0, -0.1: values 0.5, 0.1, 3, 4.9; the first has no gradient.
    torch.testing.assert_close(loss.error, torch.tensor([-0.5, -1.9, 0.0, 0.9]))
    torch.testing.assert_close(loss.d_value, torch.tensor([0.0, -0.475, 0.0, 0.225]))


def test_advantages_are_normalised() -> None:
    batch = {**BATCH, "advantages": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    loss = ppo_loss(torch.zeros(4), torch.zeros(4), VALUE, batch, replace(CFG, normalize_advantage=True))
    # Mean 2.5, standard deviation sqrt(5/3) = 1.290994; the ratio is 1, so the objective is the advantage.
    torch.testing.assert_close(loss.objective, torch.tensor([-1.161895, -0.387298, 0.387298, 1.161895]))


def test_a_minibatch_of_one_sample_is_finite() -> None:
    one = {name: value[:1] for name, value in BATCH.items()}
    loss = ppo_loss(RATIO[:1].log(), torch.zeros(1), VALUE[:1], one, replace(CFG, normalize_advantage=True))
    assert torch.isfinite(loss.d_logprob).all()


@pytest.mark.parametrize("clip_value", [None, 0.3])
def test_gradient_is_autograds(clip_value: float | None) -> None:
    cfg = PPOConfig(clip_value=clip_value, vf_coef=0.7)
    batch = {name: torch.randn(50, dtype=torch.float64) for name in BATCH}
    logprob = (batch["logprobs"] + 0.3 * torch.randn(50)).requires_grad_()
    value = torch.randn(50, dtype=torch.float64, requires_grad=True)
    advantage = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    ratio = (logprob - batch["logprobs"]).exp()
    actor = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    kept = value if clip_value is None else batch["values"] + (value - batch["values"]).clamp(-0.3, 0.3)
    expected = torch.autograd.grad(actor + 0.7 * (kept - batch["returns"]).square().mean(), [logprob, value])
    with torch.no_grad():
        loss = ppo_loss(logprob, torch.zeros(50), value, batch, cfg)
    torch.testing.assert_close(loss.d_logprob, expected[0])
    torch.testing.assert_close(loss.d_value, expected[1])


def test_flat_adam_is_torchs_adam() -> None:
    ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    theirs.load_state_dict(ours.state_dict())
    flat = FlatParameters(ours)
    mine, torchs = FlatAdam(flat, 0.01), torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
    for _ in range(5):
        x = torch.randn(8, 4)
        of_ours = torch.autograd.grad(ours(x).square().sum(), flat.parts)
        for part, gradient in zip(flat.parts, of_ours, strict=True):
            flat.gradient_of(part).copy_(gradient)
        mine.step()
        torchs.zero_grad()
        theirs(x).square().sum().backward()
        torchs.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


def collected(**cfg: Any) -> PPO:
    env = build_env("probe/ObsActionReward", {"num_envs": 16})
    algorithm = build_algo("ppo", PPOConfig(**cfg), make_policy(env))
    assert isinstance(algorithm, PPO)
    algorithm.initialize_buffer(8, 16, 1, 1)
    algorithm.collect_rollout(env, algorithm.policy, env.reset(0)[0]["state"], 8)
    return algorithm


def test_the_first_gradient_step_sees_a_ratio_of_one() -> None:
    algorithm = collected(n_epochs=1, batch_size=128)
    for _ in range(3):
        assert algorithm.update()["approx_kl"] == pytest.approx(0.0, abs=1e-6)
        env = build_env("probe/ObsActionReward", {"num_envs": 16})
        algorithm.collect_rollout(env, algorithm.policy, env.reset(0)[0]["state"], 8)


def test_logged_losses_and_statistics() -> None:
    algorithm = collected(n_epochs=2, batch_size=50)
    losses = algorithm.update()
    assert set(losses) == {
        "actor_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "explained_variance",
        "learning_rate",
    }
    assert algorithm.policy.normalizer.count == 128


def test_target_kl_stops_the_epochs() -> None:
    torch.manual_seed(0)
    free = collected(n_epochs=10, batch_size=32, learning_rate=0.02)
    free.update()
    torch.manual_seed(0)
    held = collected(n_epochs=10, batch_size=32, learning_rate=0.02, target_kl=0.01)
    held.update()
    assert free.optimizer.steps == 40
    assert held.optimizer.steps < 40


def test_gradients_are_shortened() -> None:
    algorithm = collected(max_grad_norm=1e-3)
    algorithm._learn(next(algorithm.buffer.iterate_minibatches(64)))
    assert float(algorithm.parameters.gradient.norm()) == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.parametrize(
    ("schedule", "expected"), [("constant", [1.0, 1.0, 1.0]), ("linear", [1.0, 0.5, 0.0]), ("cosine", [1.0, 0.5, 0.0])]
)
def test_learning_rate_schedules(schedule: str, expected: list[float]) -> None:
    algorithm = collected(learning_rate=1.0, lr_schedule=schedule)
    found = []
    for fraction in (0.0, 0.5, 1.0):
        algorithm.progress(fraction)
        found.append(algorithm.optimizer.lr)
    assert found == pytest.approx(expected)


def test_a_gradient_that_is_not_finite_stops_before_the_step() -> None:
    algorithm = collected()
    algorithm.buffer._extras["returns"][0, 0] = math.inf
    before = algorithm.parameters.data.clone()
    with pytest.raises(NonFiniteError, match=r"actor_loss .*value_loss inf"):
        for _ in range(2):
            algorithm._learn(next(algorithm.buffer.iterate_minibatches(128)))
    assert torch.equal(algorithm.parameters.data, before)


def test_entropy_bonus_widens_the_policy() -> None:
    narrow, wide = collected(ent_coef=0.0, n_epochs=20), collected(ent_coef=1.0, n_epochs=20)
    narrow.update()
    wide.update()
    assert wide.policy.log_std.item() > narrow.policy.log_std.item()


def test_only_the_critic_learns_while_it_warms_up() -> None:
    algorithm = collected(critic_warmup=0.3, ent_coef=0.01)
    before = {name: value.clone() for name, value in algorithm.policy.named_parameters()}

    def moved() -> set[str]:
        now = algorithm.policy.named_parameters()
        return {name.split(".")[0] for name, value in now if not torch.equal(value, before[name])}

    algorithm.progress(0.29)
    algorithm.update()
    assert moved() == {"critic"}
    algorithm.progress(0.3)
    assert float(algorithm.optimizer.steps) == 0.0 and not algorithm.optimizer.second.any()
    algorithm.update()
    assert moved() == {"actor", "critic", "log_std"}
    steps = float(algorithm.optimizer.steps)
    algorithm.progress(0.31)
    assert float(algorithm.optimizer.steps) == steps > 0
    before = {name: value.clone() for name, value in algorithm.policy.named_parameters()}
    algorithm.rewards_are_new()
    algorithm.progress(0.0)  # What the critic knows is wrong again.
    algorithm.update()
    assert moved() == {"critic"}
    algorithm.rewards_are_new()
    algorithm.progress(0.31)  # Where nothing is prolonged, there is no time for it.
    algorithm.update()
    assert moved() == {"actor", "critic", "log_std"}


class Column(Policy):
    """A policy that gives values as a column, which would broadcast silently."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.weight = nn.Parameter(torch.zeros(1))

    def get_action(self, obs: Any, deterministic: bool = False) -> Any:
        return torch.zeros(len(obs), 1), torch.zeros(len(obs)), torch.zeros(len(obs))

    def get_value(self, obs: Any) -> torch.Tensor:
        return torch.zeros(len(obs))

    def evaluate_actions(self, obs: Any, actions: torch.Tensor) -> Any:
        return self.weight * torch.ones(len(obs)), torch.zeros(len(obs)), torch.zeros(len(obs), 1)


def test_lasting_noise_needs_a_policy_that_takes_it() -> None:
    with pytest.raises(PlauditError, match=r"noise_correlation .* Column does not"):
        PPO(PPOConfig(noise_correlation=0.5), Column())


class Time(TaskEnv):
    """Observes a time that never comes again: one later with each step, ten later with each new episode.

    Episodes of three steps with reward 1. Env 1 is one step ahead, so that it ends before the others.
    """

    max_episode_steps = 3

    def __init__(self) -> None:
        super().__init__(None)
        self.num_envs = 3
        self.observation_space = gym.spaces.Dict({"state": gym.spaces.Box(0, np.inf, (1,), np.float32)})
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.time = torch.tensor([-10.0, 90.0, 190.0])

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        self.time[ids] += 10.0

    def stagger(self) -> None:
        self.clock = torch.tensor([0, 1, 0])

    def advance(self, action: torch.Tensor) -> Outcome:
        self.time += 1.0
        return Outcome(torch.ones(3), torch.zeros(3, dtype=torch.bool))

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        return {"state": (self.time if ids is None else self.time[ids])[:, None].clone()}


class Reader(Column):
    """Values an observation at what it reads."""

    def get_action(self, obs: Any, deterministic: bool = False) -> Any:
        return torch.zeros(len(obs), 1), torch.zeros(len(obs)), self.get_value(obs)

    def get_value(self, obs: Any) -> torch.Tensor:
        return obs.squeeze(-1)


def test_truncation_is_valued_by_the_true_final_observation() -> None:
    env = Time()
    algorithm = PPO(PPOConfig(gamma=0.5, gae_lambda=0.0), Reader())
    algorithm.initialize_buffer(4, 3, 1, 1)
    obs = env.reset(0)[0]["state"]
    env.stagger()
    algorithm.collect_rollout(env, algorithm.policy, obs, 4)
    # Env 0 reads 0, 1, 2, ends at 3, and goes on with 13 and 14; env 2 does so 200 later; env 1 reads 100, 101, ends at
    # 102, and goes on with 112, 113 and 114. With lambda 0 a return is 1 + 0.5 * (what the action led to).
    led_to = torch.tensor([[1.0, 101.0, 201.0], [2.0, 102.0, 202.0], [3.0, 113.0, 203.0], [14.0, 114.0, 214.0]])
    torch.testing.assert_close(algorithm.buffer._extras["returns"], 1.0 + 0.5 * led_to)


def test_explained_variance() -> None:
    returns = torch.tensor([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.zeros(3), returns) == 0.0
    assert math.isnan(explained_variance(torch.zeros(3), torch.ones(3)))


def test_a_value_of_the_wrong_shape_is_named() -> None:
    env = build_env("probe/ObsActionReward", {"num_envs": 16})
    algorithm = PPO(PPOConfig(), Column())
    algorithm.initialize_buffer(8, 16, 1, 1)
    algorithm.collect_rollout(env, algorithm.policy, env.reset(0)[0]["state"], 8)
    with pytest.raises(PlauditError, match=r"value of shape \(128, 1\)"):
        algorithm.update()


def test_build_algo_gives_the_config_a_device() -> None:
    env = build_env("probe/ConstantValue", {"num_envs": 2})
    algorithm = build_algo("ppo", {"learning_rate": 0.5}, make_policy(env), "cpu")
    assert isinstance(algorithm, PPO)
    assert isinstance(algorithm.cfg, PPOConfig)
    assert algorithm.cfg.learning_rate == 0.5
    assert getattr(algorithm.cfg, "device") == "cpu"  # noqa: B009 (added by build_algo, so mypy does not know it)


def test_pixels_train_too() -> None:
    space = gym.spaces.Dict(
        {"state": gym.spaces.Box(-1, 1, (2,), np.float32), "cam": gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)}
    )
    from plaudit.rl import build_policy

    net = {"type": "cnn", "hidden_sizes": [8]}
    policy = build_policy(
        {"name": "actor_critic", "actor": net, "critic": net}, space, gym.spaces.Box(-1, 1, (1,), np.float32)
    )
    algorithm = PPO(PPOConfig(batch_size=4), policy)
    algorithm.initialize_buffer(2, 4, {"state": (2,), "cam": (8, 8, 3)}, 1)
    obs = {"state": torch.randn(4, 2), "cam": torch.randint(0, 255, (4, 8, 8, 3), dtype=torch.uint8)}
    for _ in range(2):
        algorithm.buffer.add(
            obs, torch.randn(4, 1), torch.randn(4), torch.zeros(4).bool(), torch.zeros(4), torch.zeros(4)
        )
    algorithm.buffer.set_extras({"advantages": torch.randn(2, 4), "returns": torch.randn(2, 4)})
    before = algorithm.parameters.data.clone()
    algorithm.update()
    assert not torch.equal(before, algorithm.parameters.data)
