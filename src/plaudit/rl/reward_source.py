"""The protocol by which rewards that are not the env's own reach an algorithm. Whoever gives them implements it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import torch

Layout: TypeAlias = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name to the shape and the type of what is kept of one transition."""


class RolloutRewards(Protocol):
    """Rewards of T steps of N envs, told afterwards."""

    @property
    def reward(self) -> torch.Tensor:
        """float32 (T, N), what is learned from."""

    @property
    def verdict(self) -> torch.Tensor:
        """Bool (T, N), whether it is a success to whoever gives the rewards."""


@runtime_checkable
class Relabelled(Protocol):
    """What a `VecEnv` has besides where its rewards are somebody else's.

    Each `Step` has the reward, and the verdict that may have ended the episode; or, for an algorithm that asks with
    `settle` before it computes advantages, a rollout's rewards are given together, which is quicker.
    """

    @property
    def version(self) -> int:
        """Changes where somebody else gives the rewards from then on: those given before do not compare with them."""

    @property
    def reward_fingerprint(self) -> int:
        """Stands for whoever gives the rewards and for the rule by which, in any run: a hash of both, more than 0."""

    def defer(self, wanted: bool) -> bool:
        """Says whether rewards are wanted from `settle`; returns whether they will be. Until then steps say 0."""

    def settle(self) -> RolloutRewards | None:
        """The rewards of the steps since the last time; `None` where each step had its own."""

    def remember(self) -> Layout:
        """Says that rewards may have to be given again, to whom all that they depend on is kept; returns what that is
        beside observations. `seen` gives it from then on.
        """

    def seen(self) -> dict[str, torch.Tensor]:
        """What the rewards of the last step depend on, (N, ...) each."""

    def again(
        self, seen: Mapping[str, torch.Tensor], ended: torch.Tensor, obs: torch.Tensor | Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rewards of T steps of one env, in the order of time and from the beginning of an episode where possible,
        as they would be given today.

        Args:
            seen: (T, ...) each, as `seen` gave it.
            ended: bool (T,), whether an episode ended with the step.
            obs: (T, ...), what the steps led to; of a one-key dict the part.

        Returns:
            float32 (T,), and bool (T,): whether the step would have ended the task.
        """

    def report(self) -> dict[str, float]:
        """Numbers for the log, of the steps since the last time."""

    def watched(self) -> dict[str, float]:
        """Numbers for the log of an evaluation: how far the rewards are to be trusted."""


def settle(env: Any) -> RolloutRewards | None:
    """The rewards of the steps since the last time, where an env gives them so; else `None`, and steps had their own.

    An algorithm that calls this before it computes advantages says `relabels = True`.
    """
    ask = getattr(env, "settle", None)
    return None if ask is None else cast("RolloutRewards | None", ask())
