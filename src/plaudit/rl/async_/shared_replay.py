"""A replay that somebody else writes to."""

from __future__ import annotations

import torch

from plaudit.rl.async_.shared_state import Exchange
from plaudit.rl.buffers.replay_buffer import Allocate, Batch, ReplayBuffer
from plaudit.rl.observations import ObsDim
from plaudit.rl.reward_source import Layout


class ReplayReader(ReplayBuffer):
    """A replay of which another process fills the columns, as it may be learned from.

    Which slots hold a transition is kept here, apart from the column that the other one writes: those that it has said
    to be there, less those that it has said it may be writing to. What is read is read whole: whoever has read looks
    whether it may have been written to meanwhile, and draws again if so.

    Args:
        capacity: As in the other process, like `num_envs`, `obs_dim`, `action_dim` and `extras`.
        num_envs: See there.
        obs_dim: See there.
        action_dim: See there.
        extras: See there.
        allocate: From the name of a column to the column.
        exchange: Where the other one says what it does.
        device: Where batches are wanted.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        obs_dim: ObsDim,
        action_dim: int,
        extras: Layout,
        allocate: Allocate,
        exchange: Exchange,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(capacity, num_envs, obs_dim, action_dim, extras=extras, allocate=allocate, onto=device)
        self.exchange = exchange
        self._written = self.columns["valid"]
        self.columns["valid"] = torch.zeros_like(self._written)
        self._gone = torch.zeros_like(self.heads)  # Up to where nothing may be read any more, by env.
        self.take_in()

    def take_in(self) -> None:
        """Takes note of all that has come since the last time."""
        heads = self.exchange.heads.clone()
        self.reread()
        slots = self._between(torch.maximum(self.heads, self._gone), heads)
        self.columns["valid"][slots] = self._written[slots]
        self.size += int(self.columns["valid"][slots].sum())
        self.heads.copy_(heads)

    def reread(self) -> None:
        gone = self.exchange.reserved - self.rows
        self._free(self._between(self._gone, gone))
        self._gone = torch.maximum(self._gone, gone)

    def sample(self, count: int, n_step: int, gamma: float) -> Batch:
        while True:
            slots = self._draw(count)
            batch = self.take(slots, n_step, gamma)
            self.reread()
            # What a transition leads to is newer than itself, and is overwritten later.
            if bool(self.columns["valid"][slots].all()):
                return self._there(batch)

    def _between(self, first: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        """Slots of the numbers from `first` on and before `end`, int64 (num_envs,) each; no slot twice."""
        first = torch.maximum(first.clamp(min=0), end - self.rows)
        numbers = first[:, None] + torch.arange(max(0, int((end - first).max())))
        envs = self._envs[:, None].expand_as(numbers)
        wanted = numbers < end[:, None]
        return self.slot(numbers[wanted], envs[wanted])
