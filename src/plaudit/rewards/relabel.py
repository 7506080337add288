"""What rewards depend on, kept so that another model can give them again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import Frames, Step, VecEnv
from plaudit.errors import CheckpointError, DataError, EnvError
from plaudit.rewards.reward_function import RewardManager, asked

FRAME = "frame/"
"""What the names of kept pictures begin with."""

CHUNK = 256
"""Pictures that are drawn, or fetched, together."""

PLAIN = {"age": torch.int32, "env_reward": torch.float32, "terminated_by_env": torch.bool}
"""What is kept of every step beside pictures, to its type."""

PICTURED = "pictured"
"""Name of what says whether there are pictures of a step, where these are kept themselves."""

RelabelInputs = Mapping[str, torch.Tensor]
"""Of T steps: `age`, how many steps the episode had, where it goes on; `env_reward`, `terminated_by_env`, (T,) each;
and the pictures, as `snapshot` (T, k), or as `frame/<camera>` (T, H, W, 3) and bool `pictured` (T,), where observations
do not hold them."""

Observed = torch.Tensor | Mapping[str, torch.Tensor]


class Evidence:
    """Takes down what the rewards of every step depend on: pictures above all.

    Those that the policy observes are kept anyway. Of others the env's snapshot is enough, a hundredth of their size,
    where it takes any: they are drawn again when they are needed. Else they are kept themselves.

    Args:
        env: The env, without rewards of a model.
        cameras: Names of the cameras that the model looks at.

    Attributes:
        layout: Name to shape and type of what `take` gives of one env.
    """

    def __init__(self, env: VecEnv, cameras: tuple[str, ...]) -> None:
        self.env, self.cameras = env, cameras
        self.layout: dict[str, tuple[tuple[int, ...], torch.dtype]] = {name: ((), kind) for name, kind in PLAIN.items()}
        if all(camera in env.observation_space.spaces for camera in cameras):
            return
        try:
            env.request_snapshots(True)
            snapshot = env.snapshot()
            self.layout["snapshot"] = tuple(snapshot.shape[1:]), snapshot.dtype
        except EnvError:
            drawn = env.render(torch.tensor([0]))
            self.layout[PICTURED] = (), torch.bool
            self.layout |= {FRAME + name: (tuple(drawn[name].shape[1:]), torch.uint8) for name in cameras}

    def take(self, step: Step, age: NDArray[np.int64], running: torch.Tensor, drawn: Frames) -> dict[str, torch.Tensor]:
        """Of a step of all envs, (num_envs, ...) each.

        Args:
            step: As the env gave it, with `final_frames`.
            age: How many steps the episodes have had that go on, (num_envs,).
            running: Envs that go on and that the model is asked of, int64 (n,).
            drawn: Their pictures.
        """
        taken = {
            "age": torch.from_numpy(age.astype(np.int32)).to(step.reward.device),
            "env_reward": step.reward.clone(),
            "terminated_by_env": step.terminated.clone(),
        }
        if PICTURED in self.layout:
            taken[PICTURED] = step.done.clone()
            taken[PICTURED][running] = True
        if "snapshot" in self.layout:
            assert step.snapshot is not None
            taken["snapshot"] = step.snapshot.to(step.reward.device)
        for name in self.layout:
            if name.startswith(FRAME):
                taken[name] = self._pictures(step, running, drawn, name.removeprefix(FRAME))
        return taken

    def _pictures(self, step: Step, running: torch.Tensor, drawn: Frames, camera: str) -> torch.Tensor:
        shape, kind = self.layout[FRAME + camera]
        pictures = torch.zeros(len(step.reward), *shape, dtype=kind, device=step.reward.device)
        if len(running):
            pictures[running] = drawn[camera]
        if step.final_frames is not None:
            pictures[step.ended] = step.final_frames[camera]
        return pictures

    def frames(self, seen: RelabelInputs, obs: Observed, rows: torch.Tensor) -> Frames:
        """The pictures of some of the steps, int64 (n,)."""
        if all(FRAME + camera in seen for camera in self.cameras):
            return {camera: seen[FRAME + camera][rows] for camera in self.cameras}
        if "snapshot" in seen:
            drawn = self.env.render_snapshots(seen["snapshot"][rows].cpu())
            return {camera: drawn[camera] for camera in self.cameras}
        named = self.named(obs)
        if missing := [camera for camera in self.cameras if camera not in named]:
            raise CheckpointError(
                f"the reward model looks at '{missing[0]}', of which nothing was kept: rewards that another model gave "
                "cannot be given again by this one. Take one that looks at the same cameras, or begin a new run."
            )
        return {camera: named[camera][rows] for camera in self.cameras}

    def named(self, obs: Observed) -> Mapping[str, torch.Tensor]:
        """Observations under their names."""
        if isinstance(obs, Mapping):
            return obs
        return {next(iter(self.env.observation_space.spaces)): obs}


def recompute_rewards(
    evidence: Evidence, manager: RewardManager, seen: RelabelInputs, ended: torch.Tensor, obs: Observed
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rewards of T steps of one env by a model that need not be the one of then.

    Args:
        evidence: Whose `take` gave `seen`.
        manager: The model.
        seen: (T, ...) each.
        ended: bool (T,).
        obs: (T, ...), what the steps led to.

    Returns:
        float32 (T,), and bool (T,): whether the step ended the task, by the env's own word or by the model's.
    """
    scores = np.full((len(ended), 1, 2), np.nan, np.float32)
    for rows in _chunks(_asked_today(manager, seen, ended)):
        scores[rows.cpu().numpy(), 0] = manager.score(evidence.frames(seen, obs, rows))
    state = None
    if manager.guards:
        named = evidence.named(obs)
        if "state" not in named:
            raise DataError("reward.guards need 'state' among the observations.")
        state = named["state"].cpu().numpy()[:, None]
    done, env_reward = (part.cpu().numpy()[:, None] for part in (ended, seen["env_reward"]))
    judged, _ = manager.rewards_from_scores(scores, done, env_reward, state, manager.begin(1))
    terminated = seen["terminated_by_env"].cpu().clone()
    if manager.settings.terminate_on_success:
        terminated |= torch.from_numpy(judged.verdict[:, 0])
    return torch.from_numpy(judged.reward[:, 0]), terminated


def _asked_today(manager: RewardManager, seen: RelabelInputs, ended: torch.Tensor) -> torch.Tensor:
    """The steps of which the model is asked by the settings of today, int64 (n,)."""
    keys = manager.settings
    wanted = torch.from_numpy(asked(ended.cpu().numpy(), seen["age"].cpu().numpy(), keys))
    if PICTURED in seen and bool((wanted & ~seen[PICTURED].cpu()).any()):
        raise CheckpointError(
            f"reward.reward_mode '{keys.reward_mode}' with reward_interval {keys.reward_interval} asks the model of "
            "steps whose pictures were not kept, because it was not asked of them then. Set both as they were, or "
            "begin a new run."
        )
    return wanted.nonzero().squeeze(-1)


def _chunks(rows: torch.Tensor) -> Iterator[torch.Tensor]:
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
