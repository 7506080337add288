"""Acting on the side, while training waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from plaudit.rl.policy import Policy
from plaudit.rl.rng import preserved_rng


@contextlib.contextmanager
def on_the_side(policy: Policy) -> Iterator[None]:
    """Inside, the policy is in eval mode and without gradients; outside, its mode and the random state go on as if
    nothing had been.
    """
    training = policy.training
    policy.eval()
    try:
        with preserved_rng(), torch.no_grad():
            yield
    finally:
        policy.train(training)
