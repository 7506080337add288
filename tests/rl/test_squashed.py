"""The squashed Gaussian by hand, against torch's distributions and autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from plaudit.rl.policies import distributions as squashed


def test_one_action_by_hand() -> None:
    # Mean 0.5, standard deviation 0.2, noise 1.5: u = 0.8, and the action is tanh 0.8.
    drawn = squashed.draw(torch.tensor([[0.5, math.log(0.2)]]), torch.tensor([[1.5]]))
    assert float(drawn.action) == pytest.approx(math.tanh(0.8), rel=1e-6)
    gaussian = -0.5 * 1.5**2 - math.log(0.2) - 0.5 * math.log(2 * math.pi)
    assert float(drawn.log_prob) == pytest.approx(gaussian - math.log(1 - math.tanh(0.8) ** 2), rel=1e-6)


def test_densities_are_those_of_torchs_distribution() -> None:
    outputs = torch.randn(6, 4, dtype=torch.float64)
    drawn = squashed.draw(outputs, torch.randn(6, 2, dtype=torch.float64))
    mean, log_std = outputs.chunk(2, -1)
    peer = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=0)])
    expected = peer.log_prob(drawn.action).sum(-1)
    torch.testing.assert_close(drawn.log_prob, expected)
    torch.testing.assert_close(squashed.log_prob(outputs, drawn.action.atanh()), expected)


def test_far_out_nothing_overflows() -> None:
    far = torch.tensor([-60.0, 0.0, 60.0])
    # log(1 - tanh²u) is log 4 - 2|u| there, where 1 - tanh² itself is 0 in float32.
    torch.testing.assert_close(squashed.log_slope(far), torch.tensor([math.log(4) - 120, 0.0, math.log(4) - 120]))
    drawn = squashed.draw(torch.tensor([[50.0, 9.0], [-50.0, -90.0]]), torch.tensor([[1.0], [1.0]]))
    assert torch.isfinite(drawn.log_prob).all()
    assert torch.isfinite(squashed.backward(drawn, torch.ones(2, 1), torch.tensor([0.5]))).all()


def test_the_gradient_is_autograds_also_at_the_bounds_of_the_deviation() -> None:
    outputs = torch.randn(5, 6, dtype=torch.float64)
    outputs[0, 3], outputs[1, 4] = 2.5, -20.5  # Outside: their deviation does not move.
    outputs.requires_grad_()
    noise, toward = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
    drawn = squashed.draw(outputs, noise)
    (expected,) = torch.autograd.grad((drawn.action * toward).sum() + 0.7 * drawn.log_prob.sum(), outputs)
    with torch.no_grad():
        found = squashed.backward(squashed.draw(outputs, noise), toward, torch.tensor([0.7], dtype=torch.float64))
    torch.testing.assert_close(found, expected)
    assert found[0, 3] == 0
