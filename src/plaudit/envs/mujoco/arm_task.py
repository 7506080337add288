"""Base class of the embedded tasks: arm control, observations, episodes, frames, saved states."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import Frames, Obs, Outcome, Reading, TaskEnv
from plaudit.envs.episode_rng import episode_uniforms
from plaudit.envs.mujoco import panda
from plaudit.envs.mujoco.batch_sim import BatchSim
from plaudit.envs.mujoco.config import ArmTaskConfig
from plaudit.envs.mujoco.renderer import BatchRenderer
from plaudit.envs.mujoco.scene import CONTROL_HZ, SUBSTEPS
from plaudit.errors import EnvError
from plaudit.utils.threads import simulation_threads

Array = NDArray[np.float64]
Ids = NDArray[np.int64]
Rows = NDArray[np.int64] | slice
"""A selection of envs: their indices, or `EVERYONE`."""

EVERYONE = slice(None)

WORKSPACE = np.array([[-0.3, -0.3, 0.012], [0.2, 0.3, 0.4]])
"""Lower and upper corner of the box that the gripper's target is clipped to, in metres."""

HAND_START = np.array([-0.1, 0.0, 0.17])
MAX_LEAD = 2.0
"""Maximum lead of the target over the gripper or the joints, in full actions, when an obstacle blocks them."""


def finger_target(action: Array) -> Array:
    """Return finger targets in metres for gripper actions in [-1, 1].

    -1 presses the fingers together and 1 opens them, as in ManiSkill. An action of 0.2 just touches the cube, so noise
    around a closing action does not release a grasped object.
    """
    return panda.FINGER_CLOSED + (panda.FINGER_OPEN - panda.FINGER_CLOSED) * 0.5 * (action + 1)


class TaskEvaluation(NamedTuple):
    """A task's evaluation of the current state of every env; arrays are (num_envs,).

    Attributes:
        terms: Terms of the dense reward, by name.
        success: True if the task is done.
        metrics: Measurements, by name.
        looks_done: True if an image of the state looks like success; `None` if that is the same as `success`.
    """

    terms: dict[str, Array]
    success: NDArray[np.bool_]
    metrics: dict[str, Array]
    looks_done: NDArray[np.bool_] | None = None


class ArmTask(TaskEnv):
    """Base of PushCube, PickCube and PegInsertion: one robot, one object, one goal.

    Arrays are numpy float64 inside, as the simulator requires, and torch float32 in the public interface.

    Args:
        cfg: The task's config.
        device: Device of the returned tensors.
        threads: Number of threads that simulate and render; 0 uses every core.
    """

    cfg: ArmTaskConfig
    can_save_state = True
    can_snapshot = True
    fps = CONTROL_HZ
    has_gripper_action = True
    randoms = 8
    """Number of random numbers that one episode draws."""

    def __init__(self, cfg: ArmTaskConfig, device: torch.device | str = "cpu", threads: int = 0) -> None:
        super().__init__(cfg, device)
        self.num_envs = cfg.num_envs
        self.max_episode_steps = cfg.episode_length
        self.cameras = cfg.cameras
        self.readings = {name: Reading(*where) for name, where in cfg.readings.items()}
        self.frame_mode = cfg.frames

        # Renderers are built on first use: a policy on states needs no OpenGL.
        self._threads = simulation_threads(threads)
        self.sim = BatchSim(self.build_model(), cfg.num_envs, SUBSTEPS, min(self._threads, cfg.num_envs))
        self._renderers: dict[tuple[int, int, bool], BatchRenderer] = {}
        self._viewer: Any = None

        # Metres (ee) or radians (joint) that an action of 1 moves the target by.
        self.scale = cfg.action_scale or (0.03 if cfg.control == "ee" else 0.1)

        # State of the episodes, beyond the simulator's own.
        self.seed = 0
        self.episode = np.zeros(cfg.num_envs, np.int64)
        self.target = np.zeros((cfg.num_envs, 3))
        self.tcp = np.zeros((cfg.num_envs, 3))
        self.hand = np.zeros((cfg.num_envs, 3, 3))

        self.action_space = gym.spaces.Box(-1.0, 1.0, (self.arm_actions + self.has_gripper_action,), np.float32)
        self.observation_space = self._observation_space()

    # Methods that each task implements.

    @abstractmethod
    def build_model(self) -> mujoco.MjModel:
        """Compile the scene."""

    @abstractmethod
    def place(self, ids: Ids, u: Array) -> None:
        """Place robot, object and goal of some envs at the start of an episode.

        Args:
            ids: Indices of the envs, (n,).
            u: Random numbers in [0, 1) that determine the placement, (n, randoms).
        """

    @abstractmethod
    def task_state(self, rows: Rows) -> Array:
        """Return the task's part of the state observation, beyond proprioception, (n, k)."""

    @abstractmethod
    def evaluate_task(self) -> TaskEvaluation:
        """Compute reward terms, success and metrics of the current states."""

    @abstractmethod
    def expert_action(self) -> torch.Tensor:
        """Return the scripted expert's actions, float32 (num_envs, action_dim).

        The expert reads the true state and works with `control: ee`.
        """

    def misled_expert_action(self, offset: Array) -> torch.Tensor:
        """Return the expert's actions for goals shifted by `offset`, metres (num_envs, 3)."""
        goals = self.sim.scenery[:, :3].copy()
        self.sim.scenery[:, :3] += offset
        try:
            return self.expert_action()
        finally:
            self.sim.scenery[:, :3] = goals

    # Episodes and control.

    @property
    def arm_actions(self) -> int:
        """Number of action dimensions that move the arm."""
        return 3 if self.cfg.control == "ee" else 7

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        rows = ids.cpu().numpy()

        # A new seed restarts the episode count of every env, so that a seed always gives the same episodes.
        if seed is not None:
            self.seed = seed
            self.episode[:] = -1
        self.episode[rows] += 1

        self.sim.state[rows] = 0.0
        self.place(rows, episode_uniforms(self.seed, rows, self.episode[rows], self.randoms))
        self.tcp[rows], self.hand[rows] = panda.forward(self.sim.qpos[rows, :7])
        self.target[rows] = self.tcp[rows]

    def place_robot(self, ids: Ids, tcp: Array, finger: float) -> None:
        """Set the arm so that its gripper is at `tcp`, (n, 3), each finger opened by `finger` metres."""
        self.sim.qpos[ids, :7] = panda.inverse(tcp)
        self.sim.qpos[ids, 7:9] = finger
        self.sim.ctrl[ids] = self.sim.qpos[ids, :9]

    def advance(self, action: torch.Tensor) -> Outcome:
        self.sim.step(self._actuator_targets(action.detach().cpu().double().clamp(-1, 1).numpy()))
        self._look()
        evaluation = self.evaluate_task()
        success = evaluation.success

        # The dense terms are reported in both reward modes.
        rewards = {name: self._out(value) for name, value in evaluation.terms.items()}
        reward = torch.stack(list(rewards.values())).sum(0)
        if self.cfg.reward_mode == "sparse":
            reward = self._out(success)
        terminated = success if self.cfg.terminate_on_success else np.zeros_like(success)
        looks_done = evaluation.looks_done

        if self._viewer is not None:
            self._viewer.show(self.sim.qpos[0], self.sim.scenery[0])

        # `from_numpy` shares memory, and `terminated` may be the same array as `success`: hence the copies.
        return Outcome(
            reward=reward,
            terminated=torch.from_numpy(terminated.copy()).to(self.device),
            success=torch.from_numpy(success.copy()).to(self.device),
            looks_done=None if looks_done is None else torch.from_numpy(looks_done).to(self.device),
            rewards=rewards,
            metrics={name: self._out(value) for name, value in evaluation.metrics.items()},
        )

    def _look(self) -> None:
        """Update the gripper's pose by forward kinematics of the current joint angles."""
        self.tcp, self.hand = panda.forward(self.sim.qpos[:, :7])

    def _actuator_targets(self, action: Array) -> Array:
        """Return joint and finger targets for one control step.

        Args:
            action: (num_envs, action_dim), in [-1, 1].

        Returns:
            (num_envs, 9): seven joint angles in rad, two finger positions in m.
        """
        arm = action[:, : self.arm_actions] * self.scale
        max_lead = MAX_LEAD * self.scale

        # An action moves the previous target, not the measured pose; the target's lead over the pose is limited.
        if self.cfg.control == "ee":
            self.target = np.clip(self.tcp + np.clip(self.target + arm - self.tcp, -max_lead, max_lead), *WORKSPACE)
            joints = panda.inverse(self.target)
        else:
            angles = self.sim.qpos[:, :7]
            lead = np.clip(self.sim.ctrl[:, :7] + arm - angles, -max_lead, max_lead)
            joints = np.clip(angles + lead, panda.LOWER, panda.UPPER)

        # Respect the real arm's speed limits. All joints slow down by the same factor, which keeps the direction.
        targets = self.sim.ctrl.copy()
        change = joints - targets[:, :7]
        slowdown = np.maximum(1.0, np.abs(change / (panda.MAX_SPEED / CONTROL_HZ)).max(1, keepdims=True))
        targets[:, :7] += change / slowdown

        if self.has_gripper_action:
            targets[:, 7:9] = finger_target(action[:, -1:])
        return targets

    # Observations and frames.

    @property
    def thing(self) -> Array:
        """Position of the object's centre, (num_envs, 3)."""
        return self.sim.qpos[:, 9:12]

    def proprioception(self, rows: Rows) -> Array:
        """Return the robot's own measurements, (n, k).

        Joint angles, joint speeds, gap between the fingers, gripper position, and the lead of the servo targets over
        the measured pose, each multiplied by a fixed factor.
        """
        qpos = self.sim.qpos[rows]
        qvel = self.sim.qvel[rows]
        tcp = self.tcp[rows]
        lead = self.target[rows] - tcp if self.cfg.control == "ee" else self.sim.ctrl[rows, :7] - qpos[:, :7]
        gap = qpos[:, 7:8] + qpos[:, 8:9]
        return np.concatenate([qpos[:, :7], 0.3 * qvel[:, :7], 20 * gap, 5 * tcp, 10 * lead], axis=1)

    def observe(self, ids: torch.Tensor | None = None) -> Obs:
        rows = EVERYONE if ids is None else ids.cpu().numpy()
        state = self.proprioception(rows)
        if self.cfg.obs_mode == "state":
            state = np.concatenate([state, self.task_state(rows)], axis=1)
        obs = {"state": self._out(state)}
        return obs if self.cfg.obs_mode == "state" else {**obs, **self.render(ids)}

    def render(self, ids: torch.Tensor | None = None) -> Frames:
        return self.draw(self.cameras, self.cfg.camera_size, ids)

    def snapshot(self) -> torch.Tensor:
        looks = self._looks(EVERYONE)[:, None]
        return torch.from_numpy(np.concatenate([self.sim.qpos, self.sim.scenery, looks], axis=1))

    def render_snapshots(self, snapshots: torch.Tensor) -> Frames:
        joints = self.sim.qpos.shape[1]
        qpos, scenery, looks = np.split(snapshots.numpy(), [joints, joints + self.sim.scenery.shape[1]], axis=1)
        return self._render_states(qpos, scenery, looks[:, 0], self.cameras, self.cfg.camera_size)

    def portrait(self, ids: torch.Tensor) -> torch.Tensor:
        return self.draw(("show",), (240, 320), ids, fine=True)["show"]

    def draw(
        self, cameras: tuple[str, ...], size: tuple[int, int], ids: torch.Tensor | None = None, fine: bool = False
    ) -> Frames:
        """Render the current state from any camera at any (height, width).

        `fine` frames are for people: better quality, and without domain randomization.
        """
        rows = EVERYONE if ids is None else ids.cpu().numpy()
        looks = None if fine else self._looks(rows)
        return self._render_states(self.sim.qpos[rows], self.sim.scenery[rows], looks, cameras, size, fine)

    def _looks(self, rows: Rows) -> Array:
        """Return the appearance seeds of the current episodes of some envs, (n,).

        Seeds are below 2**53, so they are exact in float64; `domain_randomization.look_of` turns them into appearances.
        """
        ids = np.arange(self.num_envs)[rows]
        if self.cfg.randomize == 0:
            return np.zeros(len(ids))
        # One random number beyond those that `place` gets, so that the appearance is independent of the placement.
        return 2.0**53 * episode_uniforms(self.seed, ids, self.episode[ids], self.randoms + 1)[:, -1]

    def _render_states(
        self,
        qpos: Array,
        scenery: Array,
        looks: Array | None,
        cameras: tuple[str, ...],
        size: tuple[int, int],
        fine: bool = False,
    ) -> Frames:
        """Render states with the renderer for this size and quality, built on first use.

        Args:
            qpos: (n, nq).
            scenery: (n, 7).
            looks: (n,), appearance seeds; `None` renders the scene as modelled.
            cameras: Camera names.
            size: Height and width in pixels.
            fine: Render for people.
        """
        key = (size[0], size[1], fine)
        if key not in self._renderers:
            self._renderers[key] = BatchRenderer(self.sim.model, *size, self._threads, fine)
        frames = self._renderers[key].render(qpos, scenery, cameras, looks, self.cfg.randomize)
        return {name: torch.from_numpy(pixels).to(self.device) for name, pixels in frames.items()}

    def _observation_space(self) -> gym.spaces.Dict:
        """Build the space of `observe`'s output, with widths read from the arrays themselves."""
        width = self.proprioception(EVERYONE).shape[1]
        spaces: dict[str, gym.Space[Any]] = {}
        if self.cfg.obs_mode == "state":
            width += self.task_state(EVERYONE).shape[1]
        else:
            shape = (*self.cfg.camera_size, 3)
            spaces = {camera: gym.spaces.Box(0, 255, shape, np.uint8) for camera in self.cameras}
        return gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (width,), np.float32), **spaces})

    def _out(self, array: NDArray[Any]) -> torch.Tensor:
        """Convert a numpy array to a float32 tensor on the env's device."""
        return torch.from_numpy(array.astype(np.float32)).to(self.device)

    # Saved states, viewer and closing.

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: torch.from_numpy(value.copy()) for name, value in self._saved().items()}
        return {**arrays, "clock": self.clock.clone(), "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        if len(state["clock"]) != self.num_envs:
            raise EnvError(f"the saved state is of {len(state['clock'])} envs, but this env has {self.num_envs}.")
        for name, value in self._saved().items():
            value[:] = state[name].numpy()
        self.clock = state["clock"].clone()
        self.seed = state["seed"]
        self._look()
        return self.observe()

    def _saved(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that make up the env's state, not copied."""
        sim = self.sim
        return {
            "physics": sim.state,
            "ctrl": sim.ctrl,
            "scenery": sim.scenery,
            "target": self.target,
            "episode": self.episode,
        }

    def open_viewer(self) -> None:
        """Open MuJoCo's viewer on the first env."""
        from plaudit.envs.mujoco.viewer import Viewer

        self._viewer = Viewer(self.sim.model)

    def close(self) -> None:
        self.sim.close()
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None
