import gymnasium as gym
import numpy as np
import torch

from plaudit.rl.policies.random_policy import UniformPolicy


def test_actions_fill_the_range_and_no_more() -> None:
    space = gym.spaces.Box(np.array([-2.0, -np.inf], np.float32), np.array([4.0, np.inf], np.float32))
    policy = UniformPolicy(space)
    torch.manual_seed(0)
    action, log_prob, value = policy.get_action(torch.zeros(5000, 3), deterministic=True)
    assert action.shape == (5000, 2) and value.eq(0).all()
    torch.testing.assert_close(action.min(0).values, torch.tensor([-2.0, -1.0]), atol=0.01, rtol=0)
    torch.testing.assert_close(action.max(0).values, torch.tensor([4.0, 1.0]), atol=0.01, rtol=0)
    torch.testing.assert_close(action.mean(0), torch.tensor([1.0, 0.0]), atol=0.1, rtol=0)
    torch.testing.assert_close(log_prob, torch.full((5000,), -np.log(6.0 * 2.0)).float())  # One over the area.


def test_observations_may_be_a_dict() -> None:
    policy = UniformPolicy(gym.spaces.Box(-1, 1, (4,)))
    assert policy.get_action({"state": torch.zeros(7, 3), "image": torch.zeros(7, 8, 8, 3)})[0].shape == (7, 4)
