"""Adapter of ManiSkill 3 tasks to `VecEnv`, with ids such as `maniskill:PickCube-v1`.

With CPU simulation, the envs are divided among worker processes (`process_pool`). With GPU simulation, ManiSkill's own
parallel scenes run in this process and tensors stay on the device (`simulation`). Both have the `Simulation` interface,
so most of this module does not depend on the backend.
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
"""Default number of envs of each backend, used if `num_envs` is not configured."""

MEMORY = 960 * 2**20
"""Memory of one worker process in bytes, after its first rendering."""

LOOKS_DONE = "is_obj_placed"
"""Metric of PickCube and similar tasks for success that is visible in an image.

The task's `success` also requires a robot at rest, which one image cannot show.
"""


class Simulation(Protocol):
    """Common interface of `WorkerPool` and `ManiSkillSim`, which document its members."""

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
    """Vectorized env with parallel copies of one ManiSkill task.

    With CPU simulation, an episode depends only on the seed, the env's index, the episode's number and the actions.
    `state_dict` therefore saves these, and `load_state_dict` replays the actions: PhysX's own state cannot be saved
    exactly.

    Args:
        task: ManiSkill's task id; `module:Id` imports the module that registers the task, also in worker processes.
        cfg: Config of the env (`env.cfg`).
        device: Device of the returned tensors.
        threads: Worker processes of the CPU simulation, unless `cfg.workers` is set; 0 is one for each core, or as many
            as fit into memory.
    """

    cfg: ManiSkillConfig

    def __init__(
        self, task: str, cfg: ManiSkillConfig | None = None, device: torch.device | str = "cpu", threads: int = 0
    ) -> None:
        super().__init__(cfg or ManiSkillConfig(), device)

        # Start the simulation: the layout that it reports determines the rest.
        self.task = task
        self.backend = _backend(self.cfg, self.device)
        self.num_envs = self.cfg.num_envs or NUM_ENVS[self.backend]
        self.sim = simulate(task, self.cfg, self.num_envs, self.backend, threads)
        layout = self.sim.layout
        self.max_episode_steps = self.cfg.max_episode_steps or layout.max_episode_steps
        self.cameras = layout.cameras
        self.fps = layout.fps
        self.frame_mode = self.cfg.frames

        # Stop the worker processes before the error is raised.
        if not self.cameras and (self.cfg.obs_mode == "rgb" or self.cfg.frames != "none"):
            self.close()
            self._need_cameras()
        self.readings = _readings(layout)
        self.can_save_state = isinstance(self.sim, WorkerPool) and self.max_episode_steps is not None
        self.can_snapshot = isinstance(self.sim, WorkerPool) and layout.snapshot > 0 and bool(layout.cameras)

        # What `state_dict` saves. `_actions`, (steps, num_envs, action_dim), holds the actions since the start of each
        # env's episode, if states can be saved; `_played` counts them.
        self.seed = 0
        self.episode = np.zeros(self.num_envs, np.int64)
        self._played = torch.zeros(self.num_envs, dtype=torch.int64)
        self._actions = torch.zeros(self.max_episode_steps or 0, self.num_envs, len(layout.low))

        # Action and observation spaces.
        self.action_space = gym.spaces.Box(np.array(layout.low, np.float32), np.array(layout.high, np.float32))
        self._low = torch.tensor(layout.low, device=self.device)
        self._high = torch.tensor(layout.high, device=self.device)
        spaces: dict[str, gym.Space[Any]] = {"state": gym.spaces.Box(-np.inf, np.inf, (layout.state,), np.float32)}
        if self.cfg.obs_mode == "rgb":
            spaces |= {name: gym.spaces.Box(0, 255, (*self.cfg.camera_size, 3), np.uint8) for name in self.cameras}
        self.observation_space = gym.spaces.Dict(spaces)

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        rows = ids.cpu().numpy()
        if seed is not None:
            self.seed = seed
            self.episode[:] = -1

        self.episode[rows] += 1
        self._played[ids.cpu()] = 0
        self.sim.start(rows.tolist(), episode_seeds(self.seed, rows, self.episode[rows]))

    def advance(self, action: torch.Tensor) -> Outcome:
        # Samples of a Gaussian policy may lie outside the action space, and ManiSkill clips them only if its controller
        # normalizes actions.
        action = action.detach().float().clamp(self._low, self._high)
        self._record(action)
        self.sim.advance(action)

        # Copy the metrics: the next step overwrites the simulation's buffers.
        layout = self.sim.layout
        metrics = {
            name: row.to(self.device, copy=True) for name, row in zip(layout.metrics, self.sim.metrics, strict=True)
        }

        success = self.sim.success.to(self.device) if layout.judged else None
        looks_done = metrics[LOOKS_DONE].bool() | success if success is not None and LOOKS_DONE in metrics else None
        return Outcome(
            reward=self.sim.reward.to(self.device),
            terminated=self.sim.terminated.to(self.device),
            success=success,
            looks_done=looks_done,
            metrics=metrics,
        )

    def _record(self, action: torch.Tensor) -> None:
        """Record the actions of the current episodes for `state_dict`."""
        if not self.can_save_state:
            return
        if int(self._played.max()) >= len(self._actions):  # The step limit was raised after the env was built.
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
            rows = slice(None) if ids is None else ids.cpu()  # Already rendered with the last step.
            return {name: frames[rows].to(self.device, copy=True) for name, frames in self.sim.frames.items()}
        rows_to_render = range(self.num_envs) if ids is None else ids.tolist()
        return {name: frames.to(self.device, copy=True) for name, frames in self.sim.render(rows_to_render).items()}

    def request_frames(self, mode: FrameMode) -> None:
        if mode != "none":
            self._need_cameras()
        super().request_frames(mode)

    def _groups(self, count: int) -> torch.Tensor:
        # Neighbouring envs belong to the same worker. Envs whose episodes end together should be spread over all
        # workers, so that all workers render last frames and start episodes at the same time.
        groups = min(count, self.num_envs)
        return torch.arange(self.num_envs) % groups * count // groups

    def _need_cameras(self) -> None:
        if not self.cameras:
            raise EnvError(f"maniskill:{self.task} has no cameras, so it cannot give frames.")

    def portrait(self, ids: torch.Tensor) -> torch.Tensor:
        images = self.sim.portrait(ids.tolist())
        return super().portrait(ids) if images is None else images.to(self.device)

    def expert_action(self) -> torch.Tensor:
        """Return the scripted expert's actions, float32 (num_envs, action_dim).

        The expert uses the true state of the simulation.
        """
        return self.misled_expert_action(np.zeros((self.num_envs, 3)))

    def misled_expert_action(self, offset: NDArray[np.float64]) -> torch.Tensor:
        """Return the expert's actions for goals displaced by `offset`.

        Args:
            offset: Displacement of each env's goal in metres, (num_envs, 3).
        """
        if self.task not in EXPERTS:
            raise ConfigError(
                f"maniskill:{self.task} has no scripted expert; there is one of {', '.join(EXPERTS)}. Let a trained "
                "policy act: reward.data_collection.actors=[{kind: policy, checkpoint: <a run>}]."
            )

        # The expert supports one control mode and a few robots.
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

        self.seed = int(state["seed"])
        self.clock = state["clock"].clone()
        self.episode[:] = state["episode"].numpy()
        self._played = state["played"].clone()

        # Only the recorded steps are saved: pad them to the buffer's length.
        actions = state["actions"]
        padding = torch.zeros(max(0, len(self._actions) - len(actions)), *actions.shape[1:])
        self._actions = torch.cat([actions, padding])

        # Replay each env's episode up to the saved step.
        played_actions = [actions[:count, env].numpy() for env, count in enumerate(self._played.tolist())]
        self.sim.replay(episode_seeds(self.seed, np.arange(self.num_envs), self.episode), played_actions)
        return self.observe()

    def close(self) -> None:
        self.sim.close()


def simulate(task: str, cfg: ManiSkillConfig, num_envs: int, backend: str, threads: int) -> Simulation:
    """Start the simulation of a task.

    Missing dependencies are reported before anything of ManiSkill is loaded.
    """
    if importlib.util.find_spec("mani_skill") is None:
        raise MissingDependencyError(
            f"maniskill:{task} needs ManiSkill: 'make maniskill' in a checkout, else pip install 'plaudit[maniskill]'."
        )

    # With NVIDIA's driver, SAPIEN supplies the missing Vulkan files itself.
    if cfg.render_backend == "cpu" or not torch.cuda.is_available():
        require_vulkan()

    # A GPU simulates all scenes in this process; the CPU simulates in worker processes.
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
    """Return the number of worker processes: as configured, or by cores and memory.

    By default there is one process for each core, at most one for each env, and no more than fit into the available
    memory. Training and evaluation each have a pool, and an idle pool keeps its memory, so there must be memory for two
    pools, of which the second may not have been started yet.
    """
    if cfg.workers or threads > 0:
        return cfg.workers or threads

    useful = min(cores(), num_envs)
    free_memory = available_memory()
    affordable = useful if free_memory is None else max(1, free_memory // (2 * MEMORY))
    if affordable < useful:
        logger.info("There is memory for %d of ManiSkill's processes, and %d would have had work.", affordable, useful)
    return min(affordable, useful)


def _backend(cfg: ManiSkillConfig, device: torch.device) -> str:
    """Return the simulation backend, `cpu` or `gpu`."""
    if cfg.sim_backend == "gpu" and not torch.cuda.is_available():
        raise ConfigError("env.cfg.sim_backend: 'gpu' needs an NVIDIA GPU that torch can use. Set it to cpu or auto.")
    if cfg.render_backend == "gpu" and not torch.cuda.is_available():
        raise ConfigError("env.cfg.render_backend: 'gpu' needs an NVIDIA GPU that torch can use. Leave it at auto.")

    device_backend = "gpu" if device.type == "cuda" and torch.cuda.is_available() else "cpu"
    backend = device_backend if cfg.sim_backend == "auto" else cfg.sim_backend

    # The config checks this for an explicit backend only; `auto` is resolved here.
    if backend == "gpu" and cfg.shader.startswith("rt"):
        raise ConfigError("env.cfg.shader: rays are traced only with env.cfg.sim_backend=cpu.")
    return backend


def _readings(layout: Layout) -> dict[str, Reading]:
    """Return the robot's proprioceptive readings by name.

    These are the joint positions, in rad or m, and for a Panda the gap between the fingers in m.
    """
    joint_readings = {name: Reading(index) for index, name in enumerate(layout.joints)}
    finger = joint_readings.get("panda_finger_joint1")
    # Both fingers move symmetrically, each by half of the gap.
    return joint_readings if finger is None else {**joint_readings, "gripper_width": Reading(finger.index, 0.5)}
