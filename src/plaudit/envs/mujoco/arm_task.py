"""What the embedded tasks share: control of the arm, observations, episodes, frames and saved states."""

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
"""Which envs: their indices, or `EVERYONE`."""

EVERYONE = slice(None)

WORKSPACE = np.array([[-0.3, -0.3, 0.012], [0.2, 0.3, 0.4]])
"""Box that the gripper's target stays in, in metres."""

HAND_START = np.array([-0.1, 0.0, 0.17])
MAX_LEAD = 2.0
"""How far the target may run ahead of the gripper or the joints, in actions, when something is in their way."""


def finger_target(action: Array) -> Array:
    """Finger targets in metres for gripper actions in [-1, 1], from pressing to open as in ManiSkill.

    An action of 0.2 just touches the cube: noise around a closing action does not let go of what is held.
    """
    return panda.FINGER_CLOSED + (panda.FINGER_OPEN - panda.FINGER_CLOSED) * 0.5 * (action + 1)


class TaskEvaluation(NamedTuple):
    """What a task says of the states that all envs are in; (num_envs,) each.

    Attributes:
        terms: Of the dense reward, by name.
        success: Whether the task is done.
        metrics: Measurements, by name.
        looks_done: Whether a picture looks like success, where that is not the same.
    """

    terms: dict[str, Array]
    success: NDArray[np.bool_]
    metrics: dict[str, Array]
    looks_done: NDArray[np.bool_] | None = None


class ArmTask(TaskEnv):
    """One robot, one object, one goal: the base of PushCube, PickCube and PegInsertion.

    Arrays are numpy float64 inside, as the simulator wants them, and torch float32 at the edge.

    Args:
        cfg: The task's config.
        device: Where tensors are handed out.
        threads: Threads that simulate and render; 0 takes every core.
    """

    cfg: ArmTaskConfig
    can_save_state = True
    can_snapshot = True
    fps = CONTROL_HZ
    has_gripper_action = True
    randoms = 8
    """Random numbers that one episode draws."""

    def __init__(self, cfg: ArmTaskConfig, device: torch.device | str = "cpu", threads: int = 0) -> None:
        super().__init__(cfg, device)
        self.num_envs = cfg.num_envs
        self.max_episode_steps = cfg.episode_length
        self.cameras = cfg.cameras
        self.readings = {name: Reading(*where) for name, where in cfg.readings.items()}
        self.frame_mode = cfg.frames
        self._threads = simulation_threads(threads)
        self.sim = BatchSim(self.build_model(), cfg.num_envs, SUBSTEPS, min(self._threads, cfg.num_envs))
        self._renderers: dict[tuple[int, int, bool], BatchRenderer] = {}
        self._viewer: Any = None
        self.scale = cfg.action_scale or (0.03 if cfg.control == "ee" else 0.1)
        self.seed = 0
        self.episode = np.zeros(cfg.num_envs, np.int64)
        self.target = np.zeros((cfg.num_envs, 3))
        self.tcp = np.zeros((cfg.num_envs, 3))
        self.hand = np.zeros((cfg.num_envs, 3, 3))
        self.action_space = gym.spaces.Box(-1.0, 1.0, (self.arm_actions + self.has_gripper_action,), np.float32)
        self.observation_space = self._observation_space()

    # What a task defines.

    @abstractmethod
    def build_model(self) -> mujoco.MjModel:
        """The compiled scene."""

    @abstractmethod
    def place(self, ids: Ids, u: Array) -> None:
        """Puts robot, object and goal of the envs `ids` where the random numbers u, (n, randoms) in [0, 1), say."""

    @abstractmethod
    def task_state(self, rows: Rows) -> Array:
        """What the state observation of some envs holds beyond proprioception, (n, k)."""

    @abstractmethod
    def evaluate_task(self) -> TaskEvaluation:
        """What the present states are worth."""

    @abstractmethod
    def expert_action(self) -> torch.Tensor:
        """What the scripted expert would do now, float32 (num_envs, action_dim). Knows the true state; for `ee`."""

    def misled_expert_action(self, offset: Array) -> torch.Tensor:
        """What the expert would do if every goal were elsewhere, by metres (num_envs, 3)."""
        goals = self.sim.scenery[:, :3].copy()
        self.sim.scenery[:, :3] += offset
        try:
            return self.expert_action()
        finally:
            self.sim.scenery[:, :3] = goals

    # The episode.

    @property
    def arm_actions(self) -> int:
        """Action dimensions that move the arm."""
        return 3 if self.cfg.control == "ee" else 7

    def start(self, ids: torch.Tensor, seed: int | None = None) -> None:
        which = ids.cpu().numpy()
        if seed is not None:
            self.seed = seed
            self.episode[:] = -1
        self.episode[which] += 1
        self.sim.state[which] = 0.0
        self.place(which, episode_uniforms(self.seed, which, self.episode[which], self.randoms))
        self.tcp[which], self.hand[which] = panda.forward(self.sim.qpos[which, :7])
        self.target[which] = self.tcp[which]

    def place_robot(self, ids: Ids, tcp: Array, finger: float) -> None:
        """Sets the arm so that its gripper is at tcp (n, 3) with each finger opened by `finger` metres."""
        self.sim.qpos[ids, :7] = panda.inverse(tcp)
        self.sim.qpos[ids, 7:9] = finger
        self.sim.ctrl[ids] = self.sim.qpos[ids, :9]

    def advance(self, action: torch.Tensor) -> Outcome:
        self.sim.step(self._actuator_targets(action.detach().cpu().double().clamp(-1, 1).numpy()))
        self._look()
        verdict = self.evaluate_task()
        success = verdict.success
        rewards = {name: self._out(value) for name, value in verdict.terms.items()}
        reward = torch.stack(list(rewards.values())).sum(0)
        if self.cfg.reward_mode == "sparse":
            reward = self._out(success)
        ended = success if self.cfg.terminate_on_success else np.zeros_like(success)
        if self._viewer is not None:
            self._viewer.show(self.sim.qpos[0], self.sim.scenery[0])
        return Outcome(
            reward=reward,
            terminated=torch.from_numpy(ended.copy()).to(self.device),
            success=torch.from_numpy(success.copy()).to(self.device),
            looks_done=None if verdict.looks_done is None else torch.from_numpy(verdict.looks_done).to(self.device),
            rewards=rewards,
            metrics={name: self._out(value) for name, value in verdict.metrics.items()},
        )

    def _look(self) -> None:
        """Where the gripper is now: forward kinematics of the present joint angles."""
        self.tcp, self.hand = panda.forward(self.sim.qpos[:, :7])

    def _actuator_targets(self, action: Array) -> Array:
        """Joint and finger targets (num_envs, 9) for actions (num_envs, action_dim) in [-1, 1]."""
        arm = action[:, : self.arm_actions] * self.scale
        most = MAX_LEAD * self.scale
        if self.cfg.control == "ee":
            self.target = np.clip(self.tcp + np.clip(self.target + arm - self.tcp, -most, most), *WORKSPACE)
            joints = panda.inverse(self.target)
        else:
            now = self.sim.qpos[:, :7]
            joints = np.clip(now + np.clip(self.sim.ctrl[:, :7] + arm - now, -most, most), panda.LOWER, panda.UPPER)
        targets = self.sim.ctrl.copy()
        change = joints - targets[:, :7]
        # The real arm's speed limits: the whole motion is slowed, so that its direction stays.
        slow = np.maximum(1.0, np.abs(change / (panda.MAX_SPEED / CONTROL_HZ)).max(1, keepdims=True))
        targets[:, :7] += change / slow
        if self.has_gripper_action:
            targets[:, 7:9] = finger_target(action[:, -1:])
        return targets

    # What it shows.

    @property
    def thing(self) -> Array:
        """Position of the object's centre, (num_envs, 3)."""
        return self.sim.qpos[:, 9:12]

    def proprioception(self, rows: Rows) -> Array:
        """What the robot itself knows, (n, k): joints, speeds, gap, gripper position, and the servo's lead."""
        qpos, qvel, tcp = self.sim.qpos[rows], self.sim.qvel[rows], self.tcp[rows]
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
        return self._paint(qpos, scenery, looks[:, 0], self.cameras, self.cfg.camera_size)

    def portrait(self, ids: torch.Tensor) -> torch.Tensor:
        return self.draw(("show",), (240, 320), ids, fine=True)["show"]

    def draw(
        self, cameras: tuple[str, ...], size: tuple[int, int], ids: torch.Tensor | None = None, fine: bool = False
    ) -> Frames:
        """Frames from any camera at any (height, width) of the present state.

        `fine` ones are for people, and look the same in all episodes.
        """
        which = EVERYONE if ids is None else ids.cpu().numpy()
        looks = None if fine else self._looks(which)
        return self._paint(self.sim.qpos[which], self.sim.scenery[which], looks, cameras, size, fine)

    def _looks(self, rows: Rows) -> Array:
        """Which look the present episodes of some envs have, (n,): whole numbers below 2**53, exact in float64."""
        ids = np.arange(self.num_envs)[rows]
        if self.cfg.randomize == 0:
            return np.zeros(len(ids))
        # One random number more than `place` gets, so that a look tells nothing of where things are.
        return 2.0**53 * episode_uniforms(self.seed, ids, self.episode[ids], self.randoms + 1)[:, -1]

    def _paint(
        self,
        qpos: Array,
        scenery: Array,
        looks: Array | None,
        cameras: tuple[str, ...],
        size: tuple[int, int],
        fine: bool = False,
    ) -> Frames:
        key = (size[0], size[1], fine)
        if key not in self._renderers:
            self._renderers[key] = BatchRenderer(self.sim.model, *size, self._threads, fine)
        frames = self._renderers[key].render(qpos, scenery, cameras, looks, self.cfg.randomize)
        return {name: torch.from_numpy(pixels).to(self.device) for name, pixels in frames.items()}

    def _observation_space(self) -> gym.spaces.Dict:
        width = self.proprioception(EVERYONE).shape[1]
        spaces: dict[str, gym.Space[Any]] = {}
        if self.cfg.obs_mode == "state":
            width += self.task_state(EVERYONE).shape[1]
        else:
            shape = (*self.cfg.camera_size, 3)
            spaces = {camera: gym.spaces.Box(0, 255, shape, np.uint8) for camera in self.cameras}
        return gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (width,), np.float32), **spaces})

    def _out(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).to(self.device)

    # Saved states, the viewer, the end.

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
        """The arrays that make up the env's state."""
        sim = self.sim
        return {
            "physics": sim.state,
            "ctrl": sim.ctrl,
            "scenery": sim.scenery,
            "target": self.target,
            "episode": self.episode,
        }

    def open_viewer(self) -> None:
        """Opens MuJoCo's viewer on the first env."""
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
