"""One vector of parameters, and Adam on it."""

from __future__ import annotations

import math

import pytest
import torch

from plaudit.rl.accel.flat_adam import BETAS, CLEARS_EVERY, TINY, FlatAdam, FlatParameters

SMALLEST = torch.finfo(torch.float32).tiny
"""That still has all its digits."""

LR = 1e-2


def made(size: int = 6) -> tuple[torch.nn.Linear, FlatAdam]:
    module = torch.nn.Linear(size, 1, bias=False)
    return module, FlatAdam(FlatParameters(module), LR, eps=1e-8)


def gradient_of(step: int) -> torch.Tensor:
    """Of six parameters, of which some are no longer in use after a while, as those of a unit that became inactive."""
    gradient = torch.sin(torch.arange(6) + 0.1 * step) * torch.tensor([1.0, 1e-3, 1e-6, 1.0, 1e-3, 1e-6])
    return torch.where(torch.arange(6) < 3, gradient, torch.zeros(6)) if step >= 50 else gradient


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_forgotten_gradient_leaves_never_has_few_digits_and_moves_nothing(elsewhere: bool) -> None:
    module, adam = made()
    other = torch.nn.Linear(6, 1, bias=False)
    other.load_state_dict(module.state_dict())
    flat, reference = adam.parameters, torch.optim.Adam(other.parameters(), LR, fused=True)
    smallest = []
    for step in range(1500):
        gradient = gradient_of(step)
        other.weight.grad = gradient[None].clone()
        reference.step()
        flat.gradient.copy_(gradient)
        if elsewhere:  # As a kernel does it.
            rate, root = adam.advance()
            adam.first.lerp_(gradient, 0.1)
            adam.second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            flat.data.sub_(rate * adam.first / (root * adam.second.sqrt() + adam.eps))
        else:
            adam.step()
        smallest.append(float(adam.first[adam.first != 0].abs().min()))
    assert min(smallest) > SMALLEST and not adam.first[3:].any()
    assert float(reference.state[other.weight]["exp_avg"][0, 3:].abs().max()) < SMALLEST  # Torch's own, left alone.
    torch.testing.assert_close(flat.data, other.weight.detach()[0], atol=2e-6 if elsewhere else 0, rtol=0)


def test_moments_are_cleared_before_they_can_lose_digits() -> None:
    assert TINY * BETAS[0] ** CLEARS_EVERY * 3e-4 > SMALLEST  # The product with a step size too.
    _, adam = made()
    parts = torch.tensor([9e-31, -9e-31, 0.0, -1.2e-30, 1e-3, math.nan])
    adam.parameters.gradient.zero_()
    for moment in (adam.first, adam.second):
        moment.copy_(parts.abs() if moment is adam.second else parts)
    adam.step()
    for moment in (adam.first, adam.second):
        assert not moment[:3].any() and moment[3] != 0 and moment[4] != 0 and moment[5].isnan()
    for moment in (adam.first, adam.second):
        moment.fill_(9e-31)
    adam.step()  # Not at every one.
    assert adam.first.all() and adam.second.all()


def test_what_is_resumed_is_cleared_at_the_same_steps() -> None:
    (_, unbroken), (_, resumed) = made(), made()
    resumed.parameters.data.copy_(unbroken.parameters.data)
    for step in range(50 + 12 * CLEARS_EVERY):
        if step == 50 + 9 * CLEARS_EVERY + 7:
            _, fresh = made()
            fresh.parameters.data.copy_(resumed.parameters.data)
            fresh.load_state_dict(resumed.state_dict())
            resumed = fresh
        for adam in (unbroken, resumed):
            adam.parameters.gradient.copy_(gradient_of(step))
            adam.step()
        assert torch.equal(unbroken.first, resumed.first) and torch.equal(unbroken.second, resumed.second)
    assert torch.equal(unbroken.parameters.data, resumed.parameters.data) and not resumed.first[3:].any()
