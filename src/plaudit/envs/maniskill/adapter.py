"""ManiSkill 3's tasks as a `VecEnv`: `maniskill:PickCube-v1`.

Where the CPU simulates, worker processes share the envs (`maniskill_pool`); on a GPU, ManiSkill's own parallel scenes
are in our process, and tensors stay on the device (`maniskill_sim`). This module hardly cares which.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import FrameMode, Frames, Obs, Outcome, Reading, TaskEnv
from plaudit.envs.episode_rng import episode_seeds
from plaudit.envs.maniskill.config import ManiSkillConfig
from plaudit.envs.maniskill.experts import CONTROL, EXPERTS, ROBOTS
from plaudit.envs.maniskill.process_pool import WorkerPool
from plaudit.envs.maniskill.simulation import Layout, ManiSkillSim
from plaudit.envs.maniskill.vulkan import require_vulkan
from plaudit.errors import ConfigError, EnvError, MissingDependencyError
from plaudit.utils.memory import available_memory
from plaudit.utils.threads import cores

logger = logging.getLogger("plaudit")

NUM_ENVS = {"cpu": 16, "gpu": 512}
"""Envs, where the config leaves it to the backend."""

MEMORY = 960 * 2**20
"""Bytes that a process takes, once it has drawn something."""

LOOKS_DONE = "is_obj_placed"
"""The measurement of PickCube and its like that a picture shows: `success` also asks for a robot at rest."""


class Simulation(Protocol):
    """What `WorkerPool` and `ManiSkillSim` have in common; see there."""

    layout: Layout
    state: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    success: torch.Tensor
    metrics: torch.Tensor

    def start(self, ids: Sequence[int], seeds: Sequence[int]) -> None: ...

    def advance(self, action: torch.Tensor) -> None: ...

    def render(self, ids: Sequence[int]) -> Frames: ...

    def portrait(self, ids: Sequence[int]) -> torch.Tensor | None: ...

    def expert(self, elsewhere: torch.Tensor) -> torch.Tensor: ...

    def close(self) -> None: ...


class ManiSkillEnv(TaskEnv):
    """Copies of one ManiSkill task.

    An episode depends on the seed, the env and the episode's number alone where the CPU simulates, so a state is saved
    as those and the actions since, and put back by playing them again: PhysX's own state cannot be had exactly.

    Args:
        task: ManiSkill's id; `module:Id` imports the module that registers it, also where it is simulated.
        cfg: Our keys.
        device: Where tensors are handed out.
        threads: Processes that simulate on the CPU, unless `cfg.workers` says; 0 is one for each core, or as many as
            there is memory for.
    """

    cfg: ManiSkillConfig

    def __init__(
        self, task: str, cfg: ManiSkillConfig | None = None, device: torch.device | str = "cpu", threads: int = 0
    ) -> None:
        super().__init__(cfg or ManiSkillConfig(), device)
        self.task = task
        self.backend = _backend(self.cfg, self.device)
        self.num_envs = self.cfg.num_envs or NUM_ENVS[self.backend]
        self.sim = simulate(task, self.cfg, self.num_envs, self.backend, threads)
        layout = self.sim.layout
        self.max_episode_steps = self.cfg.max_episode_steps or layout.max_episode_steps
        self.cameras, self.fps, self.frame_mode = layout.cameras, layout.fps, self.cfg.frames
        if not self.cameras and (self.cfg.obs_mode == "rgb" or self.cfg.frames != "none"):
            self.close()
            self._need_cameras()
        self.readings = _readings(layout)
        # Actions since the start of each env's episode, (steps, num_envs, action_dim), where they will be needed.
        self.can_save_state = isinstance(self.sim, WorkerPool) and self.max_episode_steps is not None
        self.can_snapshot = isinstance(self.sim, WorkerPool) and layout.snapshot > 0 and bool(layout.cameras)
        self.seed = 0
        self.episode = np.zeros(self.num_envs, np.int64)
        self._played = torch.zeros(self.num_envs, dtype=torch.int64)
        self._actions = torch.zeros(self.max_episode_steps or 0, self.num_envs, len(layout.low))
        self.action_space = gym.spaces.Box(np.array(layout.low, np.float32), np.array(layout.high, np.float32))
        self._low, self._high = (torch.tensor(bound, device=self.device) for bound in (layout.low, layout.high))
        spaces: dict[str, gym.Space[Any]] = {"state": gym.spaces.Box(-np.inf, np.inf, (layout.state,), np.float32)}
        if self.cfg.obs_mode == "rgb":
            spaces |= {name: gym.spaces.Box(0, 255, (*self.cfg.camera_size, 3), np.uint8) for name in self.cameras}
        self.observation_space = gym.spaces.Dict(spaces)

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        which = ids.cpu().numpy()
        if seed is not None:
            self.seed = seed
            self.episode[:] = -1
        self.episode[which] += 1
        self._played[ids.cpu()] = 0
        self.sim.start(which.tolist(), episode_seeds(self.seed, which, self.episode[which]))

    def advance(self, action: torch.Tensor) -> Outcome:
        # A Gaussian's tails leave the space, and ManiSkill itself clips only where its controllers normalise.
        action = action.detach().float().clamp(self._low, self._high)
        self._remember(action)
        self.sim.advance(action)
        layout = self.sim.layout
        metrics = {
            name: row.to(self.device, copy=True) for name, row in zip(layout.metrics, self.sim.metrics, strict=True)
        }
        success = self.sim.success.to(self.device) if layout.judged else None
        looks = metrics[LOOKS_DONE].bool() | success if success is not None and LOOKS_DONE in metrics else None
        return Outcome(
            reward=self.sim.reward.to(self.device),
            terminated=self.sim.terminated.to(self.device),
            success=success,
            looks_done=looks,
            metrics=metrics,
        )

    def _remember(self, action: torch.Tensor) -> None:
        """Keeps the actions of the present episodes, for `state_dict`."""
        if not self.can_save_state:
            return
        if int(self._played.max()) >= len(self._actions):  # The limit was moved after the env was built.
            self._actions = torch.cat([self._actions, torch.zeros_like(self._actions)])
        self._actions[self._played, torch.arange(self.num_envs)] = action.cpu()
        self._played += 1

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        rows = slice(None) if ids is None else ids.to(self.sim.state.device)
        obs = {"state": self.sim.state[rows].to(self.device, copy=True)}
        return obs if self.cfg.obs_mode == "state" else {**obs, **self.render(ids)}

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        self._need_cameras()
        if isinstance(self.sim, WorkerPool) and self.cfg.obs_mode == "rgb":
            rows = slice(None) if ids is None else ids.cpu()  # Drawn with the last step already.
            return {name: frames[rows].to(self.device, copy=True) for name, frames in self.sim.frames.items()}
        which = range(self.num_envs) if ids is None else ids.tolist()
        return {name: frames.to(self.device, copy=True) for name, frames in self.sim.render(which).items()}

    def request_frames(self, mode: FrameMode) -> None:
        if mode != "none":
            self._need_cameras()
        super().request_frames(mode)

    def _groups(self, count: int) -> torch.Tensor:
        # Neighbours are of one worker. Those that end together should be of all of them, so that all have last frames
        # to draw and episodes to begin at the same time.
        there = min(count, self.num_envs)
        return torch.arange(self.num_envs) % there * count // there

    def _need_cameras(self) -> None:
        if not self.cameras:
            raise EnvError(f"maniskill:{self.task} has no cameras, so it cannot give frames.")

    def portrait(self, ids: torch.Tensor) -> torch.Tensor:
        pictures = self.sim.portrait(ids.tolist())
        return super().portrait(ids) if pictures is None else pictures.to(self.device)

    def expert_action(self) -> torch.Tensor:
        """What the scripted expert would do now, float32 (num_envs, action_dim). Knows the true state."""
        return self.misled_expert_action(np.zeros((self.num_envs, 3)))

    def misled_expert_action(self, offset: NDArray[np.float64]) -> torch.Tensor:
        """What the expert would do if every goal were elsewhere, by metres (num_envs, 3)."""
        if self.task not in EXPERTS:
            raise ConfigError(
                f"maniskill:{self.task} has no scripted expert; there is one of {', '.join(EXPERTS)}. Let a trained "
                "policy act: reward.data_collection.actors=[{kind: policy, checkpoint: <a run>}]."
            )
        if self.cfg.control_mode != CONTROL:
            mode = "the robot's default" if self.cfg.control_mode is None else f"'{self.cfg.control_mode}'"
            raise ConfigError(f"env.cfg.control_mode: the scripted expert acts in '{CONTROL}', not in {mode}.")
        robot = self.cfg.kwargs.get("robot_uids", ROBOTS[0])
        if robot not in ROBOTS:
            raise ConfigError(
                f"env.cfg.kwargs: the scripted expert moves {' or '.join(ROBOTS)}, not robot_uids '{robot}'."
            )
        return self.sim.expert(torch.from_numpy(offset.astype(np.float32))).to(self.device)

    def snapshot(self) -> torch.Tensor:
        return self.sim.snapshot() if isinstance(self.sim, WorkerPool) and self.can_snapshot else super().snapshot()

    def render_snapshots(self, snapshots: torch.Tensor) -> Frames:
        if not (isinstance(self.sim, WorkerPool) and self.can_snapshot):
            return super().render_snapshots(snapshots)
        return {name: frames.to(self.device) for name, frames in self.sim.draw(snapshots).items()}

    def state_dict(self) -> dict[str, Any]:
        if not self.can_save_state:
            return super().state_dict()
        return {
            "seed": self.seed,
            "episode": torch.from_numpy(self.episode.copy()),
            "clock": self.clock.clone(),
            "played": self._played.clone(),
            "actions": self._actions[: int(self._played.max())].clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        if not isinstance(self.sim, WorkerPool) or not self.can_save_state:
            return super().load_state_dict(state)
        if len(state["clock"]) != self.num_envs:
            raise EnvError(f"the saved state is of {len(state['clock'])} envs, but this env has {self.num_envs}.")
        self.seed, self.clock = int(state["seed"]), state["clock"].clone()
        self.episode[:] = state["episode"].numpy()
        self._played, actions = state["played"].clone(), state["actions"]
        room = torch.zeros(max(0, len(self._actions) - len(actions)), *actions.shape[1:])
        self._actions = torch.cat([actions, room])
        played = [actions[:count, env].numpy() for env, count in enumerate(self._played.tolist())]
        self.sim.replay(episode_seeds(self.seed, np.arange(self.num_envs), self.episode), played)
        return self.observe()

    def close(self) -> None:
        self.sim.close()


def simulate(task: str, cfg: ManiSkillConfig, num_envs: int, backend: str, threads: int) -> Simulation:
    """Starts the simulation of a task; what it needs and is not there is said before anything of it is loaded."""
    if importlib.util.find_spec("mani_skill") is None:
        raise MissingDependencyError(
            f"maniskill:{task} needs ManiSkill: 'make maniskill' in a checkout, else pip install 'plaudit[maniskill]'."
        )
    # With NVIDIA's driver SAPIEN brings what is missing by itself.
    if cfg.render_backend == "cpu" or not torch.cuda.is_available():
        require_vulkan()
    if backend == "gpu":
        return ManiSkillSim(task, cfg, num_envs, backend)
    return WorkerPool(
        "plaudit.envs.maniskill.simulation:ManiSkillSim",
        {"task": task, "cfg": cfg},
        num_envs,
        workers=processes(cfg, num_envs, threads),
        draws=cfg.obs_mode == "rgb",
        size=cfg.camera_size,
        patience=cfg.worker_timeout,
    )


def processes(cfg: ManiSkillConfig, num_envs: int, threads: int) -> int:
    """Processes that simulate: as many as somebody asked for, or one for each core that there is memory for.

    Training and evaluation have some each, and those of one keep their memory while the others work: so there must be
    room for two such sets, of which the second may not be there yet.
    """
    if cfg.workers or threads > 0:
        return cfg.workers or threads
    useful, free = min(cores(), num_envs), available_memory()
    room = useful if free is None else max(1, free // (2 * MEMORY))
    if room < useful:
        logger.info("There is memory for %d of ManiSkill's processes, and %d would have had work.", room, useful)
    return min(room, useful)


def _backend(cfg: ManiSkillConfig, device: torch.device) -> str:
    """Who simulates, `cpu` or `gpu`."""
    if cfg.sim_backend == "gpu" and not torch.cuda.is_available():
        raise ConfigError("env.cfg.sim_backend: 'gpu' needs an NVIDIA GPU that torch can use. Set it to cpu or auto.")
    if cfg.render_backend == "gpu" and not torch.cuda.is_available():
        raise ConfigError("env.cfg.render_backend: 'gpu' needs an NVIDIA GPU that torch can use. Leave it at auto.")
    there = "gpu" if device.type == "cuda" and torch.cuda.is_available() else "cpu"
    chosen = there if cfg.sim_backend == "auto" else cfg.sim_backend
    if chosen == "gpu" and cfg.shader.startswith("rt"):
        raise ConfigError("env.cfg.shader: rays are traced only with env.cfg.sim_backend=cpu.")
    return chosen


def _readings(layout: Layout) -> dict[str, Reading]:
    """What the robot measures: its joints' positions, in rad and m, and a Panda's gap between the fingers in m."""
    places = {name: Reading(place) for place, name in enumerate(layout.joints)}
    finger = places.get("panda_finger_joint1")
    # Both fingers move alike, each by half of the gap.
    return places if finger is None else {**places, "gripper_width": Reading(finger.index, 0.5)}
