"""What was lived through, to be learned from again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import torch

from plaudit.errors import ConfigError, DataError, EnvError
from plaudit.rl.observations import ObsDim, PolicyObs, map_obs
from plaudit.rl.reward_source import Layout
from plaudit.utils.memory import available_memory

Columns = dict[str, torch.Tensor]
"""Name to (slots, ...)."""

Allocate: TypeAlias = Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]
"""From the name, the shape and the type of a column to the column."""

OBS = "obs/"
"""What the names of observations' columns begin with."""

NUMBER = "number"
"""The column that says how many slots its env had filled before this one: by that a reader knows what is old."""

CHANGED = 256
"""Observations that are changed together."""


class Batch(NamedTuple):
    """Transitions, n of them.

    Attributes:
        obs: (n, ...), or a dict of such.
        action: (n, action_dim), in the env's units.
        reward: (n,), summed and discounted over `n_step` steps, or as many as there are.
        discount: (n,), what the value of `next_obs` counts for: 0 where the task itself ended.
        next_obs: As `obs`, where those steps led to; the true last observation where the episode ended.
    """

    obs: PolicyObs
    action: torch.Tensor
    reward: torch.Tensor
    discount: torch.Tensor
    next_obs: PolicyObs


class ReplayBuffer:
    """The last transitions of some envs, in a ring for each env. Nothing is allocated after the first moment.

    A slot holds one observation and what was done there, so that each observation is stored once: where an action led
    to is the next slot. The last observation of an episode has a slot of its own, in which nothing was done. The ends
    are therefore exact, and an episode of T steps takes T + 1 slots.

    Args:
        capacity: Slots, of all envs together.
        num_envs: Envs that step together.
        obs_dim: Length of the observation vector, or key to shape; what has three dimensions is an image, uint8.
        action_dim: Length of the action vector.
        device: Where it is kept.
        extras: Name to shape and type of what else is kept of each transition.
        allocate: From the shape and type of a column to the column, by its name; `None` takes memory, after seeing
            that there is enough.
        onto: Where batches are wanted; `None` where it is kept.

    Attributes:
        columns: Everything, (slots, ...) each: `obs/…`, `action`, `reward`, `terminated` (the task was over), `done`
            (the episode was over, terminated or truncated), `valid` (the slot holds a transition), `reward_id`
            (fingerprint of the reward function that gave the reward), `number`, and the extras.
        heads: int64 (num_envs,), how many slots each env has filled so far; the next one's is taken modulo `rows`.
        rows: Slots of each env.
    """

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        obs_dim: ObsDim,
        action_dim: int,
        device: torch.device | str = "cpu",
        *,
        extras: Layout | None = None,
        allocate: Allocate | None = None,
        onto: torch.device | str | None = None,
    ) -> None:
        self.num_envs, self.device = num_envs, torch.device(device)
        self.onto = self.device if onto is None else torch.device(onto)
        self.slots = slots_of(capacity, num_envs)
        self.rows = self.slots // num_envs
        self.one_obs = isinstance(obs_dim, int) or list(obs_dim) == [""]
        self.extras = dict(extras or {})
        layout = layout_of(obs_dim, action_dim, extras)
        if allocate is None:
            check_room(layout, self.slots, self.device)
        self.columns: Columns = {
            name: torch.zeros(self.slots, *shape, dtype=kind, device=self.device)
            if allocate is None
            else allocate(name, (self.slots, *shape), kind)
            for name, (shape, kind) in layout.items()
        }
        self.heads = torch.zeros(num_envs, dtype=torch.int64)
        self._envs = torch.arange(num_envs)
        self.size = 0

    def __len__(self) -> int:
        """How many transitions there are."""
        return self.size

    @property
    def nbytes(self) -> int:
        """What it takes, all slots together."""
        return sum(column.nbytes for column in self.columns.values())

    def move(self, device: torch.device) -> None:
        """Is kept elsewhere from now on."""
        self.device = self.onto = device
        self.columns = {name: column.to(device) for name, column in self.columns.items()}

    def slot(self, heads: torch.Tensor, envs: torch.Tensor | None = None) -> torch.Tensor:
        """Where the slots with some numbers, int64 (n,), of some envs are."""
        return (heads % self.rows) * self.num_envs + (self._envs if envs is None else envs)

    def follow(self, obs: PolicyObs) -> None:
        """Takes note that the envs go on from `obs`, (num_envs, ...): episodes that this is not the next instant of
        were broken off, by a reset or a resume, and what comes is not taken for what their last action led to.
        """
        slots = self.slot(self.heads)
        same = torch.ones(self.num_envs, dtype=torch.bool)
        for name, part in self._parts(obs).items():
            same &= (self.columns[name][slots] == part.to(self.device)).flatten(1).all(1).cpu()
        before = self.slot(self.heads - 1)
        within = (self.heads > 0) & (self.columns["valid"][before] & ~self.columns["done"][before]).cpu()
        self._skip((within & ~same).nonzero().squeeze(-1))

    def add(
        self,
        obs: PolicyObs,
        action: torch.Tensor,
        reward: torch.Tensor,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
        next_obs: PolicyObs,
        final_obs: PolicyObs | None,
        *,
        reward_id: int = 0,
        extras: Mapping[str, torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Takes in one step of all envs, as a `Step` tells it.

        Args:
            obs: (num_envs, ...), what the actions were taken on.
            action: (num_envs, action_dim).
            reward: (num_envs,).
            terminated: bool (num_envs,).
            truncated: bool (num_envs,).
            next_obs: (num_envs, ...), what is acted on next.
            final_obs: (k, ...), last observations of the k envs that ended, or `None`.
            reward_id: Fingerprint of the reward function.
            extras: (num_envs, ...) each.

        Returns:
            Where it is, int64 (num_envs,).
        """
        slots, ended = self.slot(self.heads), terminated | truncated
        rows = ended.nonzero().squeeze(-1)
        if len(rows) and final_obs is None:
            raise EnvError(
                "an episode ended, but the step has no final_obs: what its last action led to would be taken for the "
                "next episode's first observation."
            )
        for name, part in self._parts(obs).items():
            self._write(name, slots, part)
        told = {"action": action, "reward": reward, "terminated": terminated, "done": ended, **(extras or {})}
        for name, value in told.items():
            self._write(name, slots, value)
        self.columns["reward_id"][slots] = reward_id
        self.columns[NUMBER][slots] = self.heads.to(self.device)
        self.columns["valid"][slots] = True
        self.size += self.num_envs
        self.heads += 1
        after = self.slot(self.heads)
        self._free(after)
        finals = self._parts(final_obs) if final_obs is not None else {}
        for name, part in self._parts(next_obs).items():
            self._write(name, after, part.index_copy(0, rows, finals[name]) if finals else part)
        self._skip(rows.cpu())
        return slots

    def add_episode(self, obs: PolicyObs, action: torch.Tensor, told: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Takes in an episode of T steps at once; for a replay of one env.

        Args:
            obs: (T + 1, ...), or a dict of such.
            action: (T, action_dim).
            told: (T, ...) of each of `reward`, `terminated`, `done`, `reward_id` and the extras.

        Returns:
            Where it is, int64 (T,).
        """
        count = len(action)
        if self.num_envs != 1 or count + 2 > self.rows:
            raise ValueError(f"an episode of {count} steps does not fit {self.rows} slots of one env.")
        numbers = self.heads + torch.arange(count + 1)
        slots = (numbers % self.rows).to(self.device)
        self._free(torch.cat([slots, (slots[-1:] + 1) % self.rows]))
        for name, part in self._parts(obs).items():
            self._write(name, slots, part)
        for name, value in {"action": action, NUMBER: numbers[:-1], **told}.items():
            self._write(name, slots[:-1], value)
        self.columns["valid"][slots[:-1]] = True
        self.size += count
        self.heads += count + 1
        return slots[:-1]

    def sample(self, count: int, n_step: int, gamma: float) -> Batch:
        """Draws transitions, each as likely as any other, with torch's global random numbers."""
        return self._there(self.take(self._draw(count), n_step, gamma))

    def _there(self, batch: Batch) -> Batch:
        """A batch where it is wanted."""
        if self.onto == self.device:
            return batch
        obs, next_obs = (map_obs(lambda part: part.to(self.onto), side) for side in (batch.obs, batch.next_obs))
        action, reward, discount = (part.to(self.onto) for part in (batch.action, batch.reward, batch.discount))
        return Batch(obs, action, reward, discount, next_obs)

    def take(self, slots: torch.Tensor, n_step: int, gamma: float) -> Batch:
        """The transitions that begin in some slots, int64 (n,)."""
        columns = self.columns
        reward = columns["reward"][slots]
        last, discount = slots, torch.full_like(reward, gamma)
        for _ in range(n_step - 1):
            # Up to the end of the episode or of the task, which another judge may see earlier than the episode had it,
            # or to what is known so far: fewer steps are as right.
            following = self.next(last)
            goes_on = columns["valid"][following] & ~(columns["done"][last] | columns["terminated"][last])
            last = torch.where(goes_on, following, last)
            reward = torch.where(goes_on, torch.addcmul(reward, discount, columns["reward"][last]), reward)
            discount = torch.where(goes_on, discount * gamma, discount)
        discount = discount.masked_fill_(columns["terminated"][last], 0.0)
        return Batch(self.obs(slots), columns["action"][slots], reward, discount, self.obs(self.next(last)))

    def reread(self) -> None:
        """Is called after reading, and before `valid` is read: where somebody else writes to the replay, what may have
        been overwritten meanwhile is taken out of `valid`. Nobody does that here.
        """

    def obs(self, slots: torch.Tensor) -> PolicyObs:
        """The observations in some slots."""
        found = {name.removeprefix(OBS): self.columns[name].index_select(0, slots) for name in self.obs_names}
        return found[""] if self.one_obs else found

    def change_obs(self, change: Callable[[PolicyObs], PolicyObs]) -> None:
        """Puts what `change` makes of observations in their place, some at a time."""
        every = torch.arange(self.slots, device=self.device)
        starts = range(0, self.slots, CHANGED)
        parts = [self._parts(change(self.obs(every[start : start + CHANGED]))) for start in starts]
        for name in self.obs_names:
            self.columns[name] = torch.cat([part[name] for part in parts])

    def next(self, slots: torch.Tensor) -> torch.Tensor:
        """The slots after some, of the same envs."""
        following = slots + self.num_envs
        return torch.where(following >= self.slots, following - self.slots, following)

    @property
    def obs_names(self) -> list[str]:
        """The columns of observations."""
        return [name for name in self.columns if name.startswith(OBS)]

    def transitions(self) -> torch.Tensor:
        """Slots of all transitions, int64 (n,): env after env, in the order of time."""
        numbers = self.heads[:, None] - torch.arange(min(self.rows, int(self.heads.max())), 0, -1)
        envs = self._envs[:, None].expand_as(numbers)
        known = numbers >= 0
        slots = self.slot(numbers[known], envs[known]).to(self.device)
        return slots[self.columns["valid"][slots]]

    def _parts(self, obs: PolicyObs) -> dict[str, torch.Tensor]:
        """Observations by the names of their columns."""
        if isinstance(obs, dict):
            return {OBS + key: part for key, part in obs.items()}
        return {next(iter(self.obs_names)): obs}

    def _write(self, name: str, slots: torch.Tensor, value: torch.Tensor) -> None:
        column = self.columns[name]
        if value.dtype != column.dtype:
            raise DataError(f"'{name}' is {value.dtype}, but the replay has room for {column.dtype}.")
        column.index_copy_(0, slots.to(self.device), value.to(self.device))

    def _free(self, slots: torch.Tensor) -> None:
        """Forgets what was in some slots."""
        valid = self.columns["valid"]
        self.size -= int(valid[slots].sum())
        valid[slots] = False

    def _skip(self, envs: torch.Tensor) -> None:
        """Some envs leave a slot without an action."""
        if len(envs):
            self.heads[envs] += 1
            self._free(self.slot(self.heads[envs], envs))

    def _draw(self, count: int) -> torch.Tensor:
        """Slots of transitions, by rejection: nearly every slot holds one, unless files of a resumed run are gone."""
        if not self.size:
            raise DataError("there is nothing in the replay to learn from.")
        limit = min(self.rows, int(self.heads.max()) + 1) * self.num_envs
        if 4 * self.size < limit:
            there = self.transitions()
            return there[torch.randint(len(there), (count,), device=self.device)]
        found = torch.zeros(0, dtype=torch.int64, device=self.device)
        while len(found) < count:
            wanted = int((count - len(found)) * 1.05 * limit / self.size) + 16
            tried = torch.randint(limit, (wanted,), device=self.device)
            found = torch.cat([found, tried[self.columns["valid"][tried]]])
        return found[:count]


def slots_of(capacity: int, num_envs: int) -> int:
    """How many slots a `ReplayBuffer` has: as many for each env."""
    return max(3, -(-capacity // num_envs)) * num_envs


def layout_of(obs_dim: ObsDim, action_dim: int, extras: Layout | None = None) -> Layout:
    """Name to the shape of one slot and the type of every column of a `ReplayBuffer`, with its arguments."""
    shapes = {"": (obs_dim,)} if isinstance(obs_dim, int) else obs_dim
    return {
        **{OBS + key: (shape, torch.uint8 if len(shape) == 3 else torch.float32) for key, shape in shapes.items()},
        "action": ((action_dim,), torch.float32),
        "reward": ((), torch.float32),
        "terminated": ((), torch.bool),
        "done": ((), torch.bool),
        "valid": ((), torch.bool),
        "reward_id": ((), torch.int32),
        NUMBER: ((), torch.int64),
        **(extras or {}),
    }


def bytes_of(layout: Layout) -> int:
    """What one slot takes."""
    return sum(torch.empty(shape, dtype=kind).nbytes for shape, kind in layout.values())


def check_room(
    layout: Layout,
    slots: int,
    device: torch.device,
    key: str = "algorithm.cfg.capacity",
    cure: str = "Set it lower, or keep it on the disk with algorithm.cfg.storage=disk",
) -> None:
    """Raises a `ConfigError` where a replay would take more memory than is free: `key` decides how much that is, and
    `cure` says what to do.
    """
    each = bytes_of(layout)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    if free is not None and slots * each > free:
        raise ConfigError(
            f"{key}: {slots:,} transitions of {each:,} bytes take {slots * each / 1e9:.1f} GB, but only "
            f"{free / 1e9:.1f} GB of memory are free. There is room for {int(0.8 * free / each):,}. {cure}."
        )
