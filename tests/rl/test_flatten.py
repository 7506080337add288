"""One vector of parameters, and Adam on it."""

from __future__ import annotations

import pytest
import torch

from plaudit.rl.flatten import EVERY, TINY, FlatAdam, FlatParameters

SMALLEST = torch.finfo(torch.float32).tiny
"""That still has all its digits."""


def gradient_of(step: int) -> torch.Tensor:
    """Of six parameters, of which some are no longer in use after a while, as those of a unit that became inactive."""
    gradient = torch.sin(torch.arange(6) + 0.1 * step) * torch.tensor([1.0, 1e-3, 1e-6, 1.0, 1e-3, 1e-6])
    return torch.where(torch.arange(6) < 3, gradient, torch.zeros(6)) if step >= 50 else gradient


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_forgotten_gradient_leaves_never_has_few_digits_and_moves_nothing(elsewhere: bool) -> None:
    module, other = torch.nn.Linear(6, 1, bias=False), torch.nn.Linear(6, 1, bias=False)
    other.load_state_dict(module.state_dict())
    flat, reference = FlatParameters(module), torch.optim.Adam(other.parameters(), 1e-2, fused=True)
    adam, smallest = FlatAdam(flat, 1e-2, eps=1e-8), []
    for step in range(50 + 12 * EVERY):
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
    assert min(smallest) > SMALLEST and not adam.first[3:].any()  # Torch's own come to less, long before the end:
    assert 0 < float(reference.state[other.weight]["exp_avg"][0, 3:].abs().min()) < SMALLEST < TINY
    torch.testing.assert_close(flat.data, other.weight.detach()[0], atol=2e-6 if elsewhere else 0, rtol=0)
