import gymnasium as gym
import numpy as np
import pytest
import torch

from plaudit.config.algorithm_schema import ActorCriticConfig
from plaudit.config.schema import NetworkConfig
from plaudit.rl import ActorCritic
from plaudit.rl.accel.flat_adam import FlatParameters
from plaudit.rl.accel.mlp_gradients import Autograd, WrittenOut, evaluator


def make(activation: str = "tanh", squash: bool = False, hidden: tuple[int, ...] = (16, 12)) -> ActorCritic:
    obs_space = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gym.spaces.Box(np.float32([-1, -2, 0]), np.float32([1, 2, 3]))
    net = NetworkConfig(hidden_sizes=hidden, activation=activation)  # type: ignore[arg-type]
    config = ActorCriticConfig(squash=squash)
    policy = ActorCritic.build(obs_space, action_space, torch.device("cpu"), config, net, net)
    assert isinstance(policy, ActorCritic)
    policy.learn_statistics(torch.randn(50, 5) * 3 + 1)
    with torch.no_grad():
        policy.log_std.copy_(torch.tensor([-1.0, 0.3, 0.0]))
        policy.actor[-1].weight.mul_(100.0)
    return policy.double()


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(("squash", "d_entropy"), [(False, 0.0), (False, -0.3), (True, 0.0)])
def test_written_out_is_autograd(activation: str, squash: bool, d_entropy: float) -> None:
    policy = make(activation, squash)
    slow = Autograd(policy, FlatParameters(policy))
    quick = evaluator(policy, slow.parameters, entropy_counts=d_entropy != 0.0)
    assert isinstance(quick, WrittenOut)
    # Twice, and with two sizes, since the buffers are kept.
    for count in (32, 9, 32):
        obs = torch.randn(count, 5, dtype=torch.float64)
        actions = policy.get_action(obs)[0].detach()
        d_logprob, d_value = torch.randn(2, count, dtype=torch.float64)
        for ours, theirs in zip(quick.evaluate(obs, actions), slow.evaluate(obs, actions), strict=True):
            torch.testing.assert_close(ours, theirs)
        found = quick.backward(d_logprob, d_value, d_entropy).clone()
        torch.testing.assert_close(found, slow.backward(d_logprob, d_value, d_entropy))


def test_what_is_not_written_out_goes_by_autograd() -> None:
    class Other(ActorCritic):
        """May say other things than ActorCritic does."""

    elu, squashed = make("elu"), make(squash=True)
    other = make()
    other.__class__ = Other
    for policy, entropy_counts in ((elu, False), (squashed, True), (other, False)):
        assert isinstance(evaluator(policy, FlatParameters(policy), entropy_counts), Autograd)


def test_a_step_on_the_vector_moves_the_module() -> None:
    policy = make()
    parameters = FlatParameters(policy)
    quick = evaluator(policy, parameters, entropy_counts=False)
    obs, actions = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    before = quick.evaluate(obs, actions)[2].clone()
    with torch.no_grad():
        parameters.data.add_(0.1)
    after = quick.evaluate(obs, actions)[2]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, policy.get_value(obs))
    assert set(policy.state_dict()) == set(make().state_dict())
