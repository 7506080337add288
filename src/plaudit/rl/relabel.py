"""The protocol by which rewards that are not the env's own reach an algorithm. Whoever gives them implements it."""

from __future__ import annotations

from typing import Any, Protocol, cast, runtime_checkable

import torch


class Settled(Protocol):
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

    def defer(self, wanted: bool) -> bool:
        """Says whether rewards are wanted from `settle`; returns whether they will be. Until then steps say 0."""

    def settle(self) -> Settled | None:
        """The rewards of the steps since the last time; `None` where each step had its own."""

    def report(self) -> dict[str, float]:
        """Numbers for the log, of the steps since the last time."""

    def watched(self) -> dict[str, float]:
        """Numbers for the log of an evaluation: how far the rewards are to be trusted."""


def settle(env: Any) -> Settled | None:
    """The rewards of the steps since the last time, where an env gives them so; else `None`, and steps had their own.

    An algorithm that calls this before it computes advantages says `relabels = True`.
    """
    ask = getattr(env, "settle", None)
    return None if ask is None else cast("Settled | None", ask())
