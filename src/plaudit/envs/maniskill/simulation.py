"""One ManiSkill env, of any number of parallel scenes, reduced to what our adapter needs of it.

Everything that touches ManiSkill's API is here. It is used in two ways: with one scene, several times in each worker
process, where the CPU simulates; and with all scenes in our own process, where a GPU does.

Nothing is drawn unless it is asked for: the env is made in an observation mode without cameras, also for `rgb`, where
the numbers beside the pictures come from the same two methods that ManiSkill would call.
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
"""Pixels of a picture for people, each way."""

_NOT_METRICS = ("success", "fail", "elapsed_steps", "reconfigure")


@dataclass(frozen=True)
class Layout:
    """What is in an env, as plain values that can be sent to another process.

    Attributes:
        state: Numbers in an observation's `state`.
        low: Least value of each action dimension.
        high: Greatest value of each action dimension.
        cameras: Their names, as chosen.
        metrics: Names of the measurements that the task reports.
        judged: Whether the task knows success.
        snapshot: Numbers in a snapshot; 0 where an instant cannot be drawn later.
        joints: Names of the joints whose positions `state` begins with.
        max_episode_steps: The task's own limit.
        fps: Steps in a second of the real thing.
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
    """One ManiSkill env.

    Args:
        task: ManiSkill's id; `module:Id` imports the module first.
        cfg: Our keys.
        num_envs: Parallel scenes; more than one only on a GPU.
        backend: `cpu` or `gpu`.

    Attributes:
        layout: What is in it.
        state: float32 (num_envs, d), of the present.
        reward: float32 (num_envs,), of the last step.
        terminated: bool (num_envs,), whether the last step ended the task.
        success: bool (num_envs,), of the last step; false where the task does not know.
        metrics: float32 (len(layout.metrics), num_envs), of the last step.
    """

    def __init__(self, task: str, cfg: ManiSkillConfig, num_envs: int = 1, backend: str = "cpu") -> None:
        self.cfg = cfg
        self.num_envs = num_envs
        self.task = task
        spec, self.env = _make(task, cfg, num_envs, backend)
        info = self.env.get_info()
        self.state = self._read(info)
        self.reward = torch.zeros(num_envs, device=self.env.device)
        self.terminated = torch.zeros(num_envs, dtype=torch.bool, device=self.env.device)
        self.success = self.terminated.clone()
        self.layout = self._layout(task, spec, info)
        self._remembers = backend == "cpu" and not self.env.reconfiguration_freq
        self.metrics = torch.zeros(len(self.layout.metrics), num_envs, device=self.env.device)

    def start(self, ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Begins new episodes in some scenes, a seed for each."""
        if len(ids) == self.num_envs:
            # Tasks draw their numbers for all scenes from the first seed of the list, which must have one for each.
            every = [(seeds[0] + scene) % SEEDS for scene in range(self.num_envs)]
            if self._remembers:
                self._forget_contacts(every)
            obs, info = self.env.reset(seed=every)
        else:
            obs, info = self._restart(ids, seeds[0])
        self.state = obs if self.cfg.obs_mode == "state" else self._read(info)

    def _restart(self, ids: Sequence[int], seed: int) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes in some of many scenes.

        With seeds, ManiSkill would make two of NumPy's generators for every scene, those that play on included: a
        quarter of a second for a thousand scenes. What it does with them for torch's numbers is done here instead.
        """
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(seed)
            obs, info = self.env.reset(options={"env_idx": torch.tensor(ids, device=self.env.device)})
        return obs, info

    def _forget_contacts(self, seeds: list[int]) -> None:
        """Makes PhysX lose the contacts of the episode before.

        It keeps them until bodies have parted in a step. With them, what was grasped last counts as grasped at the
        start of the next episode, and the same seed does not give the same episode, bit for bit.
        """
        self.env.reset(seed=seeds)
        bodies = [actor for actor in self.env.scene.actors.values() if actor.px_body_type == "dynamic"]
        for number, body in enumerate(bodies):
            body.set_pose(self._away(number))
        self.env.scene.step()

    def advance(self, action: torch.Tensor) -> None:
        """One step of all scenes, float32 (num_envs, action_dim)."""
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
        """What every chosen camera sees now."""
        if not self.layout.cameras:
            return {}
        for thing in self.env._hidden_objects:
            (thing.show_visual if self.cfg.show_goal else thing.hide_visual)()
        self.env.scene.update_render(update_sensors=True, update_human_render_cameras=False)
        sensors = {name: self.env.scene.sensors[name] for name in self.layout.cameras}
        for sensor in sensors.values():
            sensor.capture()
        only_colour = {"rgb": True, "depth": False, "position": False, "segmentation": False}
        return {name: sensor.get_obs(**only_colour)["rgb"].clone() for name, sensor in sensors.items()}

    def render(self, ids: Sequence[int]) -> Frames:
        """What every chosen camera sees now in some scenes."""
        return {name: frames[list(ids)] for name, frames in self.frames().items()}

    def portrait(self, ids: Sequence[int]) -> torch.Tensor | None:
        """Pictures for people, uint8 (n, H, W, 3), by the camera that ManiSkill has for them; `None` without one."""
        if not self.env._human_render_cameras:
            return None
        pictures: torch.Tensor = self.env.render_rgb_array()
        return pictures[list(ids)].clone()

    def snapshot(self) -> torch.Tensor:
        """Numbers (num_envs, layout.snapshot) from which the present can be drawn."""
        state: torch.Tensor = self.env.get_state()
        return state

    def draw(self, snapshot: torch.Tensor) -> Frames:
        """Takes the state of a snapshot (num_envs, k) and draws it; goes on from there, inexactly."""
        self.env.set_state(snapshot)
        return self.frames()

    def expert(self, elsewhere: torch.Tensor) -> torch.Tensor:
        """What the task's expert would do now, (num_envs, action_dim), if goals were `elsewhere`, metres (num_envs, 3)
        from where they are.
        """
        return EXPERTS[self.task](self.env, elsewhere.to(self.env.device)).float()

    def close(self) -> None:
        """Gives back the scenes."""
        self.env.close()

    @staticmethod
    def _away(number: int) -> Any:
        """A place far from everything."""
        import sapien

        return sapien.Pose([0.0, 0.0, 100.0 + 10.0 * number])

    def _read(self, info: dict[str, Any]) -> torch.Tensor:
        """`state` of the present, float32 (num_envs, d)."""
        from mani_skill.utils.common import flatten_state_dict

        seen = {"agent": self.env._get_obs_agent(), "extra": self.env._get_obs_extra(info)}
        flat: torch.Tensor = flatten_state_dict(seen, use_torch=True, device=self.env.device)
        return flat.float()

    def _layout(self, task: str, spec: Any, info: dict[str, Any]) -> Layout:
        space = self.env.single_action_space
        if getattr(space, "shape", None) is None or len(space.shape) != 1:
            raise EnvError(
                f"maniskill:{task} takes actions from {space}; Plaudit's policies give one continuous vector. With two "
                "robots there is one for each, which is not supported."
            )
        numbers = {name: value for name, value in info.items() if _is_number(value, self.num_envs)}
        return Layout(
            state=self.state.shape[1],
            low=tuple(space.low.tolist()),
            high=tuple(space.high.tolist()),
            cameras=_chosen(self.cfg.cameras, self.env),
            metrics=tuple(name for name in numbers if name not in _NOT_METRICS),
            judged="success" in numbers,
            # A task that builds its scene anew for each episode does not keep what it built in its state.
            snapshot=0 if self.env.reconfiguration_freq else self.snapshot().shape[1],
            joints=self._joints(),
            max_episode_steps=spec.max_episode_steps,
            fps=float(self.env.control_freq),
        )

    def _joints(self) -> tuple[str, ...]:
        """Names of the joints whose positions `state` begins with; none where the robot observes in another order."""
        robot = getattr(self.env.agent, "robot", None)
        if robot is None:
            return ()
        qpos = robot.get_qpos()
        if qpos.shape[1] > self.state.shape[1] or not torch.equal(self.state[:, : qpos.shape[1]], qpos):
            return ()
        return tuple(joint.name for joint in robot.active_joints)


def find_task(task: str) -> tuple[str, Any]:
    """A task's own id, and ManiSkill's spec of it; `module:Id` imports the module first. An unknown one is an error."""
    import mani_skill.envs
    from mani_skill.utils.registration import REGISTERED_ENVS

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
    """ManiSkill's spec of a task, and the env; what can go wrong with it is said in our words."""
    task, spec = find_task(task)
    if cfg.reward_mode not in spec.cls.SUPPORTED_REWARD_MODES:
        known = ", ".join(f"'{mode}'" for mode in spec.cls.SUPPORTED_REWARD_MODES)
        raise ConfigError(f"env.cfg.reward_mode: maniskill:{task} knows {known}, not '{cfg.reward_mode}'.")
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
    except EOFError:  # ManiSkill asks on the terminal whether to download, and a worker has none.
        fetch = f"python -m mani_skill.utils.download_asset {task}"
        raise EnvError(f"maniskill:{task} needs assets that ManiSkill downloads. Run this once: {fetch}") from None
    except Exception as error:
        raise _explained(error, task, spec, cfg, arguments) from error


def _drawer(cfg: ManiSkillConfig) -> str:
    """Who draws, `cpu` or `gpu`."""
    if cfg.render_backend == "auto":
        return "gpu" if torch.cuda.is_available() else "cpu"
    return cfg.render_backend


def _explained(error: Exception, task: str, spec: Any, cfg: ManiSkillConfig, arguments: dict[str, Any]) -> PlauditError:
    """Why a task could not be made: a control mode that its robot does not have, or in ManiSkill's own words."""
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
    given = f" with env.cfg.kwargs {cfg.kwargs}" if cfg.kwargs else ""
    return EnvError(f"maniskill:{task} cannot be made{given}: {type(error).__name__}: {error}")


def _chosen(wanted: tuple[str, ...] | None, env: Any) -> tuple[str, ...]:
    """The cameras to render, which must exist."""
    from mani_skill.sensors.camera import Camera

    there = [name for name, sensor in env.scene.sensors.items() if isinstance(sensor, Camera)]
    for name in wanted or ():
        if name not in there:
            known = f"there are {', '.join(there)}" if there else "the task has none"
            raise ConfigError(f"env.cfg.cameras: unknown camera '{name}'; {known}.")
    return tuple(there) if wanted is None else wanted


def _is_number(value: Any, num_envs: int) -> bool:
    return isinstance(value, torch.Tensor) and tuple(value.shape) == (num_envs,) and not value.is_complex()
