"""Check that observations and rewards are finite, and name the env and the quantity if not."""

from __future__ import annotations

import math

import torch

from plaudit.errors import NonFiniteError
from plaudit.rl.observations import PolicyObs


def check_step(
    obs: PolicyObs, reward: torch.Tensor, done: torch.Tensor, final_obs: PolicyObs | None, when: str
) -> None:
    """`check_finite` for all that a step gives.

    Args:
        obs: (num_envs, ...), or a dict of such.
        reward: (num_envs,).
        done: bool (num_envs,), which envs ended.
        final_obs: (k, ...) last observations of those, or `None`.
        when: Words that say which step this is.
    """
    check_finite(reward, "reward", when)
    check_finite(obs, "observation", when)
    if final_obs is not None:
        check_finite(final_obs, "final observation", when, done)


def check_finite(value: PolicyObs, what: str, when: str, rows: torch.Tensor | None = None) -> None:
    """Raises a `NonFiniteError` that names the env and the quantity.

    Args:
        value: (num_envs, ...), or a dict of such.
        what: What it is.
        when: Words that say which step this is.
        rows: bool (num_envs,), of which envs `value` tells where it is not all of them.
    """
    if not isinstance(value, dict):
        return _check(value, what, when, rows)
    for key, part in value.items():
        _check(part, f"{what} '{key}'", when, rows)


def _check(value: torch.Tensor, what: str, when: str, rows: torch.Tensor | None) -> None:
    # One sum is the cheapest look at all numbers. It can overflow, so a strange sum is followed by a real look.
    if not value.is_floating_point() or math.isfinite(float(value.sum())):
        return
    bad = ~torch.isfinite(value)
    if bad.any():
        index = bad.nonzero()[0].tolist()
        place = f"[{', '.join(map(str, index[1:]))}]" if len(index) > 1 else ""
        env = index[0] if rows is None else int(rows.nonzero()[index[0]])
        raise NonFiniteError(f"{what}{place} of env {env} is {float(value[tuple(index)])} at {when}.")
