"""Observations of Gymnasium's envs as ours: numbers in one vector, pictures by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import Obs
from plaudit.errors import ConfigError, EnvError, listed
from plaudit.utils.images import fit

Path: TypeAlias = tuple[str, ...]
"""The keys that lead to a part of an observation."""


class ObsReader:
    """Turns the observations of a Gymnasium env into ours.

    Pictures (uint8, HxWx3 or 3xHxW) keep their name: the keys that lead to them, joined by dots; one that is the whole
    observation is called `image`. All other numbers are flattened and joined into `state`, in the sorted order of their
    names or in that of `state_keys`, which may also leave some out. Bounds are not taken over: nobody needs them, and
    many envs do not keep theirs.

    Args:
        space: Of one env's observations.
        env_id: What messages call the env.
        state_keys: Names of what goes into `state`; `None` for all of it.
        size: Height and width that pictures are scaled to; `None` leaves them as they are.

    Attributes:
        space: Of one env's observations, as ours.
        pictures: Names of the pictures.
        parts: Names of what is in `state`, and how many numbers each is.
    """

    def __init__(
        self,
        space: gymnasium.Space[Any],
        env_id: str,
        state_keys: Sequence[str] | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        leaves = dict(sorted(_leaves(space, (), env_id), key=lambda leaf: leaf[0]))
        self.size = size
        self._pictures = {".".join(path) or "image": path for path, box in leaves.items() if _channel(box) is not None}
        self._channels = {name: _channel(leaves[path]) for name, path in self._pictures.items()}
        numbers = {".".join(path): path for path in leaves if path not in self._pictures.values()}
        self._vectors = _chosen(numbers, state_keys, env_id)
        if self._vectors and "state" in self._pictures:
            raise EnvError(f"gym:{env_id} has a picture called 'state', which is the name of our vector observation.")
        self.parts = {name: int(np.prod(leaves[path].shape)) for name, path in self._vectors.items()}
        spaces: dict[str, gymnasium.Space[Any]] = {
            name: gymnasium.spaces.Box(0, 255, (*(size or _sides(leaves[path])), 3), np.uint8)
            for name, path in self._pictures.items()
        }
        if self._vectors:
            spaces["state"] = gymnasium.spaces.Box(-np.inf, np.inf, (sum(self.parts.values()),), np.float32)
        self.space = gymnasium.spaces.Dict(spaces)

    @property
    def pictures(self) -> tuple[str, ...]:
        """Names of the pictures."""
        return tuple(self._pictures)

    def __call__(self, obs: Any, device: torch.device) -> Obs:
        """Batched numpy observations as new tensors."""
        result = {name: torch.from_numpy(self._picture(name, _at(obs, path))) for name, path in self._pictures.items()}
        if self._vectors:
            parts = [np.asarray(_at(obs, path)) for path in self._vectors.values()]
            flat = [part.reshape(len(part), -1).astype(np.float32) for part in parts]
            result["state"] = torch.from_numpy(np.concatenate(flat, axis=1))
        return {name: value.to(device) for name, value in result.items()}

    def _picture(self, name: str, pixels: Any) -> NDArray[np.uint8]:
        """A copy, with its channels last and in the size that is wanted."""
        last = np.moveaxis(np.asarray(pixels), 1, -1) if self._channels[name] == 0 else np.asarray(pixels)
        return np.stack([fit(picture, self.size) for picture in last])


def row(obs: Any, index: int) -> Any:
    """One env's observation out of a batch."""
    return {key: row(part, index) for key, part in obs.items()} if isinstance(obs, dict) else obs[index]


def stack(rows: Sequence[Any]) -> Any:
    """Observations of single envs as a batch."""
    if isinstance(rows[0], dict):
        return {key: stack([one[key] for one in rows]) for key in rows[0]}
    return np.stack([np.asarray(one) for one in rows])


def _chosen(numbers: dict[str, Path], keys: Sequence[str] | None, env_id: str) -> dict[str, Path]:
    """What goes into `state`, in its order."""
    for key in keys or ():
        if key not in numbers:
            there = f"it has {listed(key, numbers)}" if all(numbers) else "all of it is one array."
            raise ConfigError(f"env.cfg.state_keys: gym:{env_id} observes no numbers called '{key}': {there}")
    return numbers if keys is None else {key: numbers[key] for key in keys}


def _leaves(space: gymnasium.Space[Any], path: Path, env_id: str) -> list[tuple[Path, gymnasium.spaces.Box]]:
    """The boxes in a space with the keys that lead to them."""
    if isinstance(space, gymnasium.spaces.Box):
        return [(path, space)]
    if isinstance(space, gymnasium.spaces.Dict):
        return [leaf for key, part in space.spaces.items() for leaf in _leaves(part, (*path, key), env_id)]
    name = f" '{'.'.join(path)}'" if path else ""
    raise EnvError(
        f"gym:{env_id} observes{name} {space}; only Box spaces and Dicts of them can be read. "
        f"gymnasium.wrappers.FlattenObservation may help."
    )


def _channel(box: gymnasium.spaces.Box) -> int | None:
    """Which axis of a picture its channels are, 0 or 2; `None` where it is no picture."""
    if box.dtype != np.uint8 or len(box.shape) != 3:
        return None
    return 2 if box.shape[2] == 3 else 0 if box.shape[0] == 3 else None


def _sides(box: gymnasium.spaces.Box) -> tuple[int, int]:
    """Height and width of a picture."""
    return (box.shape[0], box.shape[1]) if _channel(box) == 2 else (box.shape[1], box.shape[2])


def _at(obs: Any, path: Path) -> Any:
    """The array that the keys lead to."""
    for key in path:
        obs = obs[key]
    return obs
