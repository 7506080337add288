"""Demonstrations for a training run: chosen from a data set, checked against the env, with the rewards of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plaudit.config.convert import to_dict
from plaudit.episodes.episode import Episode
from plaudit.errors import DataError
from plaudit.rewards.evidence import FRAME, PICTURED, PLAIN
from plaudit.rewards.steps import asked
from plaudit.rl.demonstrations import Told, any_rewards, check, chosen, demonstrations, own_rewards

if TYPE_CHECKING:
    from plaudit.envs.base import VecEnv
    from plaudit.rewards.env import RewardedEnv
    from plaudit.rewards.pipeline import RewardManager
    from plaudit.rl.algorithms import BaseAlgorithm
    from plaudit.rl.relabel import Layout


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
    from plaudit.episodes.formats import load_episodes

    wants = algorithm.wants
    if wants is None:
        return []
    place = Path(wants.place)
    if not place.exists():
        raise DataError(
            f"algorithm.cfg.demonstrations: there is nothing at '{place}'. Collect some with plaudit collect, or name "
            "another data set."
        )
    episodes = chosen(load_episodes(place), wants.episodes, env.headline, failures=wants.failures)
    for episode in episodes:
        check(episode, env.observation_space, env.action_space)
        _check_same_rules(episode, env, manager, wants.rewarded)
        cameras = () if manager is None or not wants.rewarded else manager.artifact.cameras
        if missing := [camera for camera in cameras if camera not in episode.frames]:
            raise DataError(
                f"demonstration '{episode.id}' has no pictures of '{missing[0]}', which the reward model looks at."
            )
    return episodes


def show(algorithm: BaseAlgorithm, env: VecEnv, episodes: Sequence[Episode]) -> None:
    """Gives an algorithm, whose buffer is there already, what `pick` found, with the rewards that `env` gives."""
    from plaudit.rewards.env import RewardedEnv

    if not episodes:
        return
    spaces = env.observation_space, env.action_space, env.device
    if algorithm.wants is not None and not algorithm.wants.rewarded:
        algorithm.show(demonstrations(episodes, *spaces, any_rewards))
    elif isinstance(env, RewardedEnv):
        layout, judge = _layout(env, episodes[0]), _Judge(env)
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


def _layout(env: RewardedEnv, episode: Episode) -> Layout:
    """What is kept of a demonstration, so that its rewards can be given again: its pictures themselves."""
    cameras = env.manager.artifact.cameras
    plain = {**PLAIN, PICTURED: torch.bool}
    sizes = {FRAME + camera: episode.frames[camera].shape[1:] for camera in cameras}
    return {name: ((), kind) for name, kind in plain.items()} | {
        name: (tuple(shape), torch.uint8) for name, shape in sizes.items()
    }


class _Judge:
    """Gives demonstrations the rewards of a reward model."""

    def __init__(self, env: RewardedEnv) -> None:
        self.env = env

    def tell(self, episode: Episode) -> Told:
        """`reward`, `version` and all that is kept of an episode."""
        seen = self._seen(episode)
        ended = torch.zeros(episode.length, dtype=torch.bool)
        ended[-1] = True
        state = episode.state_at(np.arange(1, episode.length + 1))
        obs = {} if state is None else {"state": torch.from_numpy(np.array(state))}
        reward, terminated = self.env.again(seen, ended, obs)
        version = torch.full((episode.length,), self.env.judge, dtype=torch.int32)
        return {"reward": reward, "terminated": terminated, "ended": ended, "version": version} | seen

    def _seen(self, episode: Episode) -> dict[str, torch.Tensor]:
        count, settings = episode.length, self.env.manager.settings
        last = np.arange(count) == count - 1
        instants = np.arange(1, count + 1)
        wanted = asked(last, instants, settings)
        places, there = np.searchsorted(episode.frame_index, instants), np.isin(instants, episode.frame_index)
        if (wanted & ~there).any():
            raise DataError(
                f"demonstration '{episode.id}' has pictures of {int(there.sum())} of its {count} steps, but the reward "
                f"model must see {int(wanted.sum())}. Collect with reward.data_collection.frames_per_episode=null."
            )
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
