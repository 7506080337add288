"""Demonstrations for a training run: chosen from a data set, checked against the env, with the rewards of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.config.structured import to_dict
from plaudit.data.episode import Episode
from plaudit.errors import DataError
from plaudit.rewards.relabel import FRAME, PICTURED, PLAIN
from plaudit.rewards.reward_function import asked
from plaudit.rl.buffers.demonstrations import Told, any_rewards, check, chosen, demonstrations, own_rewards, whole

if TYPE_CHECKING:
    from plaudit.config.reward_schema import RewardConfig
    from plaudit.envs.base import VecEnv
    from plaudit.rewards.reward_env import RewardedEnv
    from plaudit.rewards.reward_function import RewardManager
    from plaudit.rl.algorithms import BaseAlgorithm
    from plaudit.rl.reward_source import Layout


HARMLESS = {
    *("cameras", "camera_size", "frames", "randomize", "shader", "show_goal", "draft"),
    *("num_envs", "expert", "vectorization", "worker_timeout", "workers", "sim_backend", "real_time"),
    *("episode_length", "max_episode_steps"),
}
"""Keys of envs in which demonstrations may differ: how an env looks, how it is run, and when the clock ends an episode,
which is bootstrapped from. Any other may change what an action does, or what it is worth."""

REWARDING = ("reward_", "success_")
"""What those keys begin with that change only the env's own reward."""


def pick(algorithm: BaseAlgorithm, env: VecEnv, manager: RewardManager | None) -> list[Episode]:
    """The demonstrations that an algorithm wants, if it does: those that fit the env, or an error.

    Args:
        algorithm: Any.
        env: Training envs, with their own rewards.
        manager: The reward model; `None` where the env's own rewards are learned from.
    """
    from plaudit.data.formats import load_episodes

    wants = algorithm.wants
    if wants is None:
        return []
    place = Path(wants.place)
    if not place.exists():
        raise DataError(
            f"algorithm.cfg.demonstrations: there is nothing at '{place}'. Collect some with plaudit collect, or name "
            "another data set."
        )
    cameras = () if manager is None or not wants.rewarded else manager.artifact.cameras
    found = chosen(load_episodes(place), wants.episodes, env.headline, failures=wants.failures)
    episodes = [whole(episode, env.observation_space, cameras) for episode in found]
    for episode in episodes:
        check(episode, env.observation_space, env.action_space)
        _check_same_rules(episode, env, manager, wants.rewarded)
        if wants.rewarded and (manager is None or manager.settings.combine_mode != "replace"):
            own_rewards(episode)
        if wants.rewarded and manager is not None:
            _check_pictures(episode, manager)
    return episodes


def show(algorithm: BaseAlgorithm, env: VecEnv, episodes: Sequence[Episode]) -> None:
    """Gives an algorithm, whose buffer is there already, what `pick` found, with the rewards that `env` gives."""
    from plaudit.rewards.reward_env import RewardedEnv

    if not episodes:
        return
    spaces = env.observation_space, env.action_space, env.device
    if algorithm.wants is not None and not algorithm.wants.rewarded:
        algorithm.show(demonstrations(episodes, *spaces, any_rewards))
    elif isinstance(env, RewardedEnv):
        layout, judge = _layout(env, episodes[0]), _DemonstrationRewards(env)
        algorithm.show(demonstrations(episodes, *spaces, judge.tell, layout))
    else:
        algorithm.show(demonstrations(episodes, *spaces, own_rewards))


def _check_same_rules(episode: Episode, env: VecEnv, manager: RewardManager | None, rewarded: bool) -> None:
    """Refuses what was recorded where an action did, or was worth, something else, as far as both sides tell."""
    theirs: Mapping[str, Any] = episode.meta.get("env_cfg") or {}
    ours = to_dict(vars(getattr(env, "cfg", None) or SimpleNamespace()))
    replaced = not rewarded or (manager is not None and manager.settings.combine_mode == "replace")
    for key in sorted((ours.keys() & theirs.keys()) - HARMLESS):
        if ours[key] != theirs[key] and not (replaced and key.startswith(REWARDING)):
            raise DataError(
                f"demonstration '{episode.id}' was recorded with env.cfg.{key} {theirs[key]!r}, but this run has "
                f"{ours[key]!r}: the same action would not do, or would not be worth, the same. Collect demonstrations "
                "with this recipe."
            )


def _check_pictures(episode: Episode, manager: RewardManager) -> None:
    """Refuses an episode that a reward model cannot judge."""
    size = tuple(manager.artifact.image_size)
    for camera in manager.artifact.cameras:
        if camera not in episode.frames:
            why = f"has no pictures of '{camera}', which the reward model looks at"
            raise DataError(f"demonstration '{episode.id}' {why}.")
        if (found := episode.frames[camera].shape[1:3]) != size:
            raise DataError(
                f"demonstration '{episode.id}': the pictures of '{camera}' are {found[0]}x{found[1]}, but the reward "
                f"model takes {size[0]}x{size[1]}. Collect demonstrations with this recipe."
            )
    wanted, there = _wanted(episode, manager.settings)
    if (wanted & ~there).any():
        raise DataError(
            f"demonstration '{episode.id}' has pictures of {int(there.sum())} of its {episode.length} steps, but the "
            f"reward model must see {int(wanted.sum())}. Collect with reward.data_collection.frames_per_episode=null, "
            "or name a data set that holds all pictures."
        )


def _wanted(episode: Episode, settings: RewardConfig) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of which steps, (T,), a reward model is asked, and of which there are pictures."""
    instants = np.arange(1, episode.length + 1)
    return asked(instants == episode.length, instants, settings), np.isin(instants, episode.frame_index)


def _layout(env: RewardedEnv, episode: Episode) -> Layout:
    """What is kept of a demonstration, so that its rewards can be given again: its pictures themselves."""
    cameras = env.manager.artifact.cameras
    plain = {**PLAIN, PICTURED: torch.bool}
    sizes = {FRAME + camera: episode.frames[camera].shape[1:] for camera in cameras}
    return {name: ((), kind) for name, kind in plain.items()} | {
        name: (tuple(shape), torch.uint8) for name, shape in sizes.items()
    }


class _DemonstrationRewards:
    """Gives demonstrations the rewards of a reward model."""

    def __init__(self, env: RewardedEnv) -> None:
        self.env = env

    def tell(self, episode: Episode) -> Told:
        """`reward`, `reward_id` and all that is kept of an episode."""
        seen = self._seen(episode)
        ended = torch.zeros(episode.length, dtype=torch.bool)
        ended[-1] = True
        state = episode.state_at(np.arange(1, episode.length + 1))
        obs = {} if state is None else {"state": torch.from_numpy(np.array(state))}
        reward, terminated = self.env.again(seen, ended, obs)
        version = torch.full((episode.length,), self.env.reward_fingerprint, dtype=torch.int32)
        return {"reward": reward, "terminated": terminated, "done": ended, "reward_id": version} | seen

    def _seen(self, episode: Episode) -> dict[str, torch.Tensor]:
        count = episode.length
        instants = np.arange(1, count + 1)
        _, there = _wanted(episode, self.env.manager.settings)
        places = np.searchsorted(episode.frame_index, instants)
        rewards = np.zeros(count, np.float32) if episode.rewards is None else np.array(episode.rewards)
        terminated = np.zeros(count, bool) if episode.terminated is None else np.array(episode.terminated)
        frames = {
            FRAME + camera: torch.from_numpy(episode.frames[camera][np.minimum(places, len(episode) - 1)])
            for camera in self.env.manager.artifact.cameras
        }
        return {
            "age": torch.from_numpy(instants.astype(np.int32)),
            PICTURED: torch.from_numpy(there),
            "env_reward": torch.from_numpy(rewards),
            "terminated_by_env": torch.from_numpy(terminated),
            **frames,
        }
