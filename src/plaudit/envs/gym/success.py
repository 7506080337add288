"""Where Gymnasium's envs say that they succeeded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.errors import EnvError, listed

logger = logging.getLogger("plaudit")

SUCCESS_KEYS = ("success", "is_success", "succeed", "next.success")
"""Keys of `info` by which robotics envs tell it, as a bool or as a number."""

ENOUGH = 0.5
"""What a number must be at least to count as success."""

BOOKKEEPING = ("final_obs", "final_observation", "final_info")
"""Keys of `info` that are Gymnasium's own."""


class SuccessReader:
    """Reads success from the `info` of a vector env.

    Args:
        env_id: What messages call the env.
        num_envs: How many envs there are.
        key: The key that tells it; `None` takes the first of `SUCCESS_KEYS` that ever comes.

    Attributes:
        hint: What to do where none came.
    """

    def __init__(self, env_id: str, num_envs: int, key: str | None) -> None:
        self.env_id, self.num_envs = env_id, num_envs
        self.named, self.key = key is not None, key
        self._asked = False
        self._there: set[str] = set()
        self.hint = ""

    def __call__(
        self, info: Mapping[str, Any], final: Mapping[str, Any] | None, ended: NDArray[np.bool_]
    ) -> NDArray[np.bool_] | None:
        """Bool (num_envs,), false for envs that do not mention it; `None` until one first does.

        Args:
            info: What the envs said.
            final: What those that ended said last, where `info` is already of their next episode.
            ended: bool (num_envs,), which those are.
        """
        parts = [info] if final is None else [info, final]
        if self.key is None:
            self.key = next((key for key in SUCCESS_KEYS for part in parts if key in part), None)
        if not self._asked:
            self._look(parts, bool(ended.any()))
        if self.key is None:
            return None
        if final is None:
            return self._said(info)
        return np.where(ended, self._said(final), self._said(info))

    def _said(self, info: Mapping[str, Any]) -> NDArray[np.bool_]:
        if self.key is None or self.key not in info:
            return np.zeros(self.num_envs, bool)
        said = info[self.key]
        told = np.broadcast_to(np.asarray(info.get(f"_{self.key}", True), bool), self.num_envs).tolist()
        try:
            values = np.asarray(said).reshape(self.num_envs).tolist()
            return np.array([there and float(value) >= ENOUGH for value, there in zip(values, told, strict=True)])
        except (TypeError, ValueError):
            raise EnvError(
                f"gym:{self.env_id} says '{self.key}' as {said!r}, which is not one bool or number of each env. Name "
                "another key of its info with env.cfg.success_key."
            ) from None

    def _look(self, parts: list[Mapping[str, Any]], over: bool) -> None:
        """Until the first episode is over: a key that was named must have come by then, unless nothing did, and if none
        was found that is told.
        """
        self._there |= {key for part in parts for key in part if not key.startswith("_") and key not in BOOKKEEPING}
        if not over:
            return
        self._asked, there = True, sorted(self._there)
        if self.named and not there:
            logger.warning(
                "gym:%s ended an episode with nothing in its info: '%s' (env.cfg.success_key) may come with success.",
                self.env_id,
                self.key,
            )
        elif self.named and self.key not in there:
            raise EnvError(
                f"gym:{self.env_id} ended an episode without env.cfg.success_key '{self.key}'; the keys of its info: "
                f"{listed(str(self.key), there)}"
            )
        if self.key is None:
            keys = ", ".join(there) or "none"
            self.hint = f"env.cfg.success_key may name the right key of its info: {keys}."
            logger.info("gym:%s does not tell success: %s", self.env_id, self.hint)


def batched(final: Any) -> Mapping[str, Any]:
    """What envs said last, by key; Gymnasium 1.0 gave a dict of each env instead, and `None` for those that go on."""
    if isinstance(final, Mapping):
        return final
    keys = {key for one in final for key in one or ()}
    found = {key: np.array([(one or {}).get(key) for one in final], object) for key in keys}
    told = {f"_{key}": np.array([key in (one or {}) for one in final]) for key in keys}
    return found | told
