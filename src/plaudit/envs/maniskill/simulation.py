"""One ManiSkill env with any number of parallel scenes, reduced to what the adapter needs.

All uses of ManiSkill's API are in this module. With CPU simulation, each worker process has several instances of one
scene each; with GPU simulation, one instance in the main process has all scenes.

Nothing is rendered unless requested: the env is made in an observation mode without cameras. This also holds for `rgb`,
for which the state beside the images comes from the same two methods that ManiSkill would call.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from plaudit.envs.base import Frames
from plaudit.envs.episode_rng import SEEDS
from plaudit.envs.maniskill.config import ManiSkillConfig
from plaudit.envs.maniskill.experts import EXPERTS
from plaudit.errors import ConfigError, EnvError, MissingDependencyError, PlauditError, RegistryError, nearest

PORTRAIT = 256
"""Height and width in pixels of an image for human viewers."""

_NOT_METRICS = ("success", "fail", "elapsed_steps", "reconfigure")


@dataclass(frozen=True)
class Layout:
    """Sizes and names of an env's data, as plain values that can be sent to another process.

    Attributes:
        state: Size of an observation's `state` vector.
        low: Least value of each action dimension.
        high: Greatest value of each action dimension.
        cameras: Names of the cameras to render.
        metrics: Names of the measurements that the task reports.
        judged: Whether the task reports success.
        snapshot: Size of a snapshot vector; 0 if an instant cannot be rendered later.
        joints: Names of the joints whose positions `state` begins with.
        max_episode_steps: The task's own step limit.
        fps: Control steps per second of simulated time.
    """

    state: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    cameras: tuple[str, ...]
    metrics: tuple[str, ...]
    judged: bool
    snapshot: int
    joints: tuple[str, ...]
    max_episode_steps: int | None
    fps: float


class ManiSkillSim:
    """Simulation of one ManiSkill env.

    Args:
        task: ManiSkill's task id; `module:Id` imports the module first.
        cfg: Config of the env (`env.cfg`).
        num_envs: Parallel scenes; more than one only on a GPU.
        backend: `cpu` or `gpu`.

    Attributes:
        layout: Sizes and names of the env's data.
        state: float32 (num_envs, d), current.
        reward: float32 (num_envs,), of the last step.
        terminated: bool (num_envs,), whether the last step ended the task.
        success: bool (num_envs,), of the last step; false if the task does not report it.
        metrics: float32 (len(layout.metrics), num_envs), of the last step.
    """

    def __init__(self, task: str, cfg: ManiSkillConfig, num_envs: int = 1, backend: str = "cpu") -> None:
        self.cfg = cfg
        self.num_envs = num_envs
        self.task = task
        spec, self.env = _make(task, cfg, num_envs, backend)

        # The first observation determines the layout.
        info = self.env.get_info()
        self.state = self._read(info)
        self.reward = torch.zeros(num_envs, device=self.env.device)
        self.terminated = torch.zeros(num_envs, dtype=torch.bool, device=self.env.device)
        self.success = self.terminated.clone()
        self.layout = self._layout(task, spec, info)

        # PhysX on the CPU keeps contacts across resets, unless the scene is rebuilt for each episode.
        self._remembers = backend == "cpu" and not self.env.reconfiguration_freq
        self.metrics = torch.zeros(len(self.layout.metrics), num_envs, device=self.env.device)

    def start(self, ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Start new episodes in some scenes, with one seed each."""
        if len(ids) == self.num_envs:
            # Tasks sample for all scenes with the first seed of the list, which must have one seed for each scene.
            scene_seeds = [(seeds[0] + scene) % SEEDS for scene in range(self.num_envs)]
            if self._remembers:
                self._forget_contacts(scene_seeds)
            obs, info = self.env.reset(seed=scene_seeds)
        else:
            obs, info = self._restart(ids, seeds[0])
        self.state = obs if self.cfg.obs_mode == "state" else self._read(info)

    def _restart(self, ids: Sequence[int], seed: int) -> tuple[Any, dict[str, Any]]:
        """Start new episodes in some of many scenes.

        Given seeds, ManiSkill would make two NumPy generators for every scene, including those whose episodes continue:
        a quarter of a second for a thousand scenes. Only its seeding of torch's generator is done here instead.
        """
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            obs, info = self.env.reset(options={"env_idx": torch.tensor(ids, device=self.env.device)})
        return obs, info

    def _forget_contacts(self, seeds: list[int]) -> None:
        """Make PhysX discard the contacts of the previous episode.

        PhysX keeps contacts until the bodies have separated in a step. With them, an object grasped last counts as
        grasped at the start of the next episode, and the same seed does not give the same episode bit for bit.
        """
        self.env.reset(seed=seeds)
        bodies = [actor for actor in self.env.scene.actors.values() if actor.px_body_type == "dynamic"]
        for number, body in enumerate(bodies):
            body.set_pose(self._away(number))
        self.env.scene.step()

    def advance(self, action: torch.Tensor) -> None:
        """Step all scenes with actions, float32 (num_envs, action_dim)."""
        obs, reward, terminated, _, info = self.env.step(action)
        self.state = obs if self.cfg.obs_mode == "state" else self._read(info)
        self.reward = reward.float()
        if not self.cfg.ignore_terminations:
            self.terminated = terminated
        if self.layout.judged:
            self.success = info["success"]
        if self.layout.metrics:
            self.metrics = torch.stack([info[name].float() for name in self.layout.metrics])

    def frames(self) -> Frames:
        """Render the current frames of all configured cameras."""
        if not self.layout.cameras:
            return {}

        # ManiSkill hides goal markers in observations; `show_goal` decides here.
        for marker in self.env._hidden_objects:
            (marker.show_visual if self.cfg.show_goal else marker.hide_visual)()

        self.env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        sensors = {name: self.env.scene.sensors[name] for name in self.layout.cameras}
        for sensor in sensors.values():
            sensor.capture()

        only_colour = {"rgb": True, "depth": False, "position": False, "segmentation": False}
        return {name: sensor.get_obs(**only_colour)["rgb"].clone() for name, sensor in sensors.items()}

    def render(self, ids: Sequence[int]) -> Frames:
        """Render the current frames of all configured cameras in some scenes."""
        return {name: frames[list(ids)] for name, frames in self.frames().items()}

    def portrait(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Return images for human viewers, uint8 (n, H, W, 3).

        They are of ManiSkill's camera for this purpose; `None` if the task has none.
        """
        if not self.env._human_render_cameras:
            return None
        images: torch.Tensor = self.env.render_rgb_array()
        return images[list(ids)].clone()

    def snapshot(self) -> torch.Tensor:
        """Return states (num_envs, layout.snapshot) from which `draw` renders this instant."""
        state: torch.Tensor = self.env.get_state()
        return state

    def draw(self, snapshot: torch.Tensor) -> Frames:
        """Set the state of a snapshot (num_envs, layout.snapshot) and render it.

        The simulation then continues from that state, though not exactly.
        """
        self.env.set_state(snapshot)
        return self.frames()

    def expert(self, elsewhere: torch.Tensor) -> torch.Tensor:
        """Return the expert's actions for displaced goals, float32 (num_envs, action_dim).

        Args:
            elsewhere: Displacement of each scene's goal in metres, (num_envs, 3).
        """
        return EXPERTS[self.task](self.env, elsewhere.to(self.env.device)).float()

    def close(self) -> None:
        """Release the scenes."""
        self.env.close()

    @staticmethod
    def _away(number: int) -> Any:
        """Return a pose far from everything else, different for each number."""
        import sapien

        return sapien.Pose([0.0, 0.0, 100.0 + 10.0 * number])

    def _read(self, info: dict[str, Any]) -> torch.Tensor:
        """Return the current `state`, float32 (num_envs, d)."""
        from mani_skill.utils.common import flatten_state_dict

        state_dict = {"agent": self.env._get_obs_agent(), "extra": self.env._get_obs_extra(info)}
        flat: torch.Tensor = flatten_state_dict(state_dict, use_torch=True, device=self.env.device)
        return flat.float()

    def _layout(self, task: str, spec: Any, info: dict[str, Any]) -> Layout:
        """Return the env's layout; raise an error if its action space is not supported."""
        space = self.env.single_action_space
        if getattr(space, "shape", None) is None or len(space.shape) != 1:
            raise EnvError(
                f"maniskill:{task} takes actions from {space}; Plaudit's policies give one continuous vector. With two "
                "robots there is one for each, which is not supported."
            )

        # Entries of `info` with one number for each scene.
        numbers = {name: value for name, value in info.items() if _is_number(value, self.num_envs)}
        return Layout(
            state=self.state.shape[1],
            low=tuple(space.low.tolist()),
            high=tuple(space.high.tolist()),
            cameras=_select_cameras(self.cfg.cameras, self.env),
            metrics=tuple(name for name in numbers if name not in _NOT_METRICS),
            judged="success" in numbers,
            # If a task rebuilds its scene for each episode, its state does not contain what it built.
            snapshot=0 if self.env.reconfiguration_freq else self.snapshot().shape[1],
            joints=self._joints(),
            max_episode_steps=spec.max_episode_steps,
            fps=float(self.env.control_freq),
        )

    def _joints(self) -> tuple[str, ...]:
        """Return the names of the joints whose positions `state` begins with.

        The result is empty if the robot's observation has another order.
        """
        robot = getattr(self.env.agent, "robot", None)
        if robot is None:
            return ()
        qpos = robot.get_qpos()
        if qpos.shape[1] > self.state.shape[1] or not torch.equal(self.state[:, : qpos.shape[1]], qpos):
            return ()
        return tuple(joint.name for joint in robot.active_joints)


def find_task(task: str) -> tuple[str, Any]:
    """Return a task's id without its module, and ManiSkill's spec of the task.

    `module:Id` imports the module first. An unknown task is an error.
    """
    import mani_skill.envs
    from mani_skill.utils.registration import REGISTERED_ENVS

    # Import the module that registers a user's task.
    module, _, task = task.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise MissingDependencyError(f"maniskill:{module}:{task} needs a module that fails: {error}.") from error

    if task not in REGISTERED_ENVS:
        hint = nearest(task, REGISTERED_ENVS)
        if hint.startswith(" Known"):
            hint = f" There are {len(REGISTERED_ENVS)} in ManiSkill {mani_skill.__version__}, such as PickCube-v1."
        raise RegistryError(f"unknown ManiSkill task '{task}'.{hint}")
    return task, REGISTERED_ENVS[task]


def _make(task: str, cfg: ManiSkillConfig, num_envs: int, backend: str) -> tuple[Any, Any]:
    """Return ManiSkill's spec of a task and the env; failures raise Plaudit's errors."""
    task, spec = find_task(task)
    if cfg.reward_mode not in spec.cls.SUPPORTED_REWARD_MODES:
        known = ", ".join(f"'{mode}'" for mode in spec.cls.SUPPORTED_REWARD_MODES)
        raise ConfigError(f"env.cfg.reward_mode: maniskill:{task} knows {known}, not '{cfg.reward_mode}'.")

    # The observation mode has no cameras: frames are rendered on request.
    height, width = cfg.camera_size
    arguments = {
        **cfg.kwargs,
        "num_envs": num_envs,
        "obs_mode": "state" if cfg.obs_mode == "state" else "none",
        "reward_mode": cfg.reward_mode,
        "sensor_configs": {"height": height, "width": width, "shader_pack": cfg.shader},
        "human_render_camera_configs": {"height": PORTRAIT, "width": PORTRAIT},
        "sim_backend": f"physx_{'cuda' if backend == 'gpu' else 'cpu'}",
        "render_backend": _drawer(cfg),
    }

    try:
        return spec, spec.make(control_mode=cfg.control_mode, **arguments)
    except EOFError:  # ManiSkill prompts for a download, and a worker has no terminal.
        fetch = f"python -m mani_skill.utils.download_asset {task}"
        raise EnvError(f"maniskill:{task} needs assets that ManiSkill downloads. Run this once: {fetch}") from None
    except Exception as error:
        raise _explained(error, task, spec, cfg, arguments) from error


def _drawer(cfg: ManiSkillConfig) -> str:
    """Return the render backend, `cpu` or `gpu`."""
    if cfg.render_backend == "auto":
        return "gpu" if torch.cuda.is_available() else "cpu"
    return cfg.render_backend


def _explained(error: Exception, task: str, spec: Any, cfg: ManiSkillConfig, arguments: dict[str, Any]) -> PlauditError:
    """Return the error that explains why a task could not be made.

    The causes are an unknown control mode, Vulkan, or anything else, which is quoted in ManiSkill's words.
    """
    # Make the env with its default control mode to list the modes of its robot.
    if isinstance(error, AssertionError) and cfg.control_mode is not None and cfg.control_mode in str(error):
        env = spec.make(control_mode=None, **arguments)
        modes = list(env.agent.supported_control_modes)
        env.close()
        hint = nearest(cfg.control_mode, modes)
        if not hint.startswith(" Known"):
            hint += f" Known: {', '.join(modes)}."
        return ConfigError(f"env.cfg.control_mode: the robot of maniskill:{task} has no '{cfg.control_mode}'.{hint}")

    if re.search("vk::|Vulkan|rendering device", str(error)):
        return MissingDependencyError(
            f"maniskill:{task} cannot be made, since Vulkan does not work here ({error}). In a container a GPU needs "
            "NVIDIA_DRIVER_CAPABILITIES=all. Else 'make maniskill' installs a driver that draws without one, with "
            "env.cfg.render_backend=cpu."
        )

    kwargs_note = f" with env.cfg.kwargs {cfg.kwargs}" if cfg.kwargs else ""
    return EnvError(f"maniskill:{task} cannot be made{kwargs_note}: {type(error).__name__}: {error}")


def _select_cameras(names: tuple[str, ...] | None, env: Any) -> tuple[str, ...]:
    """Return the names of the cameras to render, `None` for all; they must exist."""
    from mani_skill.sensors.camera import Camera

    available = [name for name, sensor in env.scene.sensors.items() if isinstance(sensor, Camera)]
    for name in names or ():
        if name not in available:
            known = f"there are {', '.join(available)}" if available else "the task has none"
            raise ConfigError(f"env.cfg.cameras: unknown camera '{name}'; {known}.")
    return tuple(available) if names is None else names


def _is_number(value: Any, num_envs: int) -> bool:
    return isinstance(value, torch.Tensor) and tuple(value.shape) == (num_envs,) and not value.is_complex()
