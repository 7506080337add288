"""A Gymnasium env whose every number is known, registered as `Counter-v0`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest


class Counter(gymnasium.Env[Any, Any]):
    """Counts to `length`, then terminates; adds up its actions; pictures as bright as the count.

    Args:
        render_mode: `rgb_array` or none.
        length: Of an episode.
        limit: Sum of actions beyond which an episode terminates too.
        success: Key of `info` that says, at the end, whether the sum is above 3.
        chosen: Value of that key for success.
        trouble: What goes wrong in the second step: `raise`, `die` or `hang`.
        views: Pictures that one `render()` gives.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  (Gymnasium's own spelling)

    def __init__(
        self,
        render_mode: str | None = None,
        length: int = 3,
        limit: float = np.inf,
        success: str = "is_success",
        chosen: Any = True,
        trouble: str | None = None,
        views: int = 1,
    ) -> None:
        self.render_mode, self.length, self.limit, self.views = render_mode, length, limit, views
        self.success, self.chosen, self.trouble = success, chosen, trouble
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {
                "z": box(-np.inf, np.inf, (2, 1), np.float64),
                "a": box(0.0, 100.0, (1,), np.float64),
                "eye": box(0, 255, (4, 5, 3), np.uint8),
            }
        )
        self.action_space = box(-2.0, 2.0, (1,), np.float64)

    def observe(self) -> dict[str, Any]:
        return {
            "z": np.array([[self.total], [self.start]]),
            "a": np.array([float(self.count)]),
            "eye": np.full((4, 5, 3), self.count, np.uint8),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.total, self.start = 0, 0.0, float(self.np_random.random())
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.total += float(action[0])
        if self.trouble is not None and self.count == 2:
            self.fail()
        ended = self.count >= self.length or self.total > self.limit
        won = type(self.chosen)(self.chosen if self.total > 3.0 else 0)
        return self.observe(), 1.0, ended, False, {self.success: won} if ended else {}

    def fail(self) -> None:
        if self.trouble == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.trouble == "hang":
            signal.pause()
        raise ZeroDivisionError("100 % of nothing")

    def render(self) -> Any:
        pictures = [np.full((6, 8, 3), self.count + 100 * view, np.uint8) for view in range(self.views)]
        return pictures if self.views > 1 else pictures[0]


@pytest.fixture
def counter() -> Iterator[type[Counter]]:
    """The class, which Gymnasium knows as `Counter-v0` for as long as a test runs."""
    gymnasium.register("Counter-v0", entry_point=Counter)  # type: ignore[arg-type]
    yield Counter
    gymnasium.registry.pop("Counter-v0")
