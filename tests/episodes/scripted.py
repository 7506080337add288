"""An env whose every frame says which env, episode and instant it shows, with success at known instants."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from plaudit.data import Episode
from plaudit.envs.base import Frames, Obs, Outcome, TaskEnv

SIZE = (4, 6)
LIMIT = 10


class Scripted(TaskEnv):
    """Env i's episode n lasts `lengths[i][n]` steps and shows success at `successes[i][n]`, both repeating.

    A frame's first pixel is (env, episode, instant), of the wrist camera with 100 added to the env. The state is the
    same three numbers. Episodes end by truncation where their length is even, else by termination.
    """

    can_save_state = True

    def __init__(
        self,
        lengths: list[list[int]],
        successes: list[list[set[int]]] | None = None,
        *,
        size: tuple[int, int] = SIZE,
        snapshots: bool = False,
        tells: bool = True,
        looks_done: set[int] | None = None,
    ) -> None:
        super().__init__(SimpleNamespace(num_envs=len(lengths)))
        self.num_envs = len(lengths)
        self.lengths, self.successes = lengths, successes or [[set()]] * len(lengths)
        self.size, self.can_snapshot, self.tells, self.looks_done = size, snapshots, tells, looks_done
        self.cameras = ("base_camera", "wrist_camera")
        self.observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)})
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.now = torch.zeros(self.num_envs, 3)
        self.now[:, 0] = torch.arange(self.num_envs)
        self.now[:, 1] = -1
        self.max_episode_steps = LIMIT
        self.drawn = 0

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        if seed is not None:
            self.now[:, 1] = -1
        self.now[ids, 1] += 1
        self.now[ids, 2] = 0

    def _of(self, table: list[list[Any]]) -> list[Any]:
        """What a table says of each env's present episode."""
        return [row[int(n) % len(row)] for row, n in zip(table, self.now[:, 1], strict=True)]

    def advance(self, action: torch.Tensor) -> Outcome:
        self.now[:, 2] += 1
        lengths = torch.tensor(self._of(self.lengths))
        instant = self.now[:, 2]
        success = torch.tensor([int(t) in wins for t, wins in zip(instant, self._of(self.successes), strict=True)])
        return Outcome(
            reward=instant / 10,
            terminated=(instant >= lengths) & (lengths % 2 == 1),
            success=success if self.tells else None,
            looks_done=None if self.looks_done is None else torch.tensor([int(t) in self.looks_done for t in instant]),
            metrics={"grasped": (instant % 2).float(), "goal_distance": 1.0 / instant},
        )

    def step(self, action: torch.Tensor) -> Any:
        # Turned on, so that each episode reaches the limit at its own length.
        self.clock = (LIMIT - torch.tensor(self._of(self.lengths)) + self.now[:, 2]).long()
        return super().step(action)

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        return {"state": (self.now if ids is None else self.now[ids]).clone()}

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        return self.render_snapshots(self.now if ids is None else self.now[ids])

    def snapshot(self) -> torch.Tensor:
        return self.now.clone()

    def render_snapshots(self, snapshots: torch.Tensor) -> Frames:
        self.drawn += len(snapshots)
        frames = torch.zeros(2, len(snapshots), *self.size, 3, dtype=torch.uint8)
        frames[:] = snapshots.to(torch.uint8)[:, None, None]
        frames[1, ..., 0] += 100
        return dict(zip(self.cameras, frames, strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"now": self.now.clone(), "clock": self.clock.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        self.now, self.clock = state["now"].clone(), state["clock"].clone()
        return self.observe()


def check_episode(episode: Episode, env: int, number: int, wins: set[int], length: int) -> None:
    """Every frame shows this env and episode at its instant, and its label is that instant's."""
    assert episode.length == length
    for camera, add in {"base_camera": 0, "wrist_camera": 100}.items():
        if camera not in episode.frames:
            continue
        pixels = episode.frames[camera]
        assert (pixels == pixels[:, :1, :1]).all()
        shown = pixels[:, 0, 0]
        expected = [(env + add, number, instant) for instant in episode.frame_index]
        np.testing.assert_array_equal(shown, expected)
    for instant, label, grasp in zip(episode.frame_index, episode.labels, episode.flags["grasp"], strict=True):
        assert label == (-1 if instant == 0 else int(instant in wins)), (episode.id, instant)
        assert grasp == (-1 if instant == 0 else instant % 2)
    assert episode.success is bool(wins)
    assert episode.state is not None
    np.testing.assert_array_equal(episode.state, [(env, number, instant) for instant in range(length + 1)])
    assert episode.rewards is not None and episode.truncated is not None and episode.terminated is not None
    np.testing.assert_allclose(episode.rewards, np.arange(1, length + 1) / 10, rtol=1e-6)
    last = np.arange(length) == length - 1
    np.testing.assert_array_equal(episode.truncated, last & (length % 2 == 0))
    np.testing.assert_array_equal(episode.terminated, last & (length % 2 == 1))
