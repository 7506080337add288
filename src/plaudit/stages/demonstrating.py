"""Demonstrations for a training run: chosen from a data set, checked against the env, with the rewards of the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from plaudit.episodes.episode import Episode
from plaudit.errors import DataError
from plaudit.rewards.evidence import FRAME
from plaudit.rewards.steps import asked
from plaudit.rl.demonstrations import Told, check, chosen, demonstrations, own_rewards

if TYPE_CHECKING:
    from plaudit.envs.base import VecEnv
    from plaudit.rewards.env import RewardedEnv
    from plaudit.rl.algorithms import BaseAlgorithm
    from plaudit.rl.relabel import Layout


def pick(algorithm: BaseAlgorithm, env: VecEnv, cameras: Sequence[str] | None) -> list[Episode]:
    """The demonstrations that an algorithm's config names, if it does: those that fit the env, or an error.

    Args:
        algorithm: Any.
        env: Training envs, with their own rewards.
        cameras: That the reward model looks at; `None` where the env's own rewards are learned from.
    """
    from plaudit.episodes.formats import load_episodes
    from plaudit.rl.algorithms.sac import SAC

    if not isinstance(algorithm, SAC) or algorithm.cfg.demonstrations is None:
        return []
    place = Path(algorithm.cfg.demonstrations)
    if not place.exists():
        raise DataError(
            f"algorithm.cfg.demonstrations: there is nothing at '{place}'. Collect some with plaudit collect, or name "
            "another data set."
        )
    episodes = chosen(load_episodes(place), algorithm.cfg.num_demonstrations)
    for episode in episodes:
        check(episode, env.observation_space, env.action_space)
        if cameras is None:
            _check_same_reward(episode, env)
        elif missing := [camera for camera in cameras if camera not in episode.frames]:
            raise DataError(
                f"demonstration '{episode.id}' has no pictures of '{missing[0]}', which the reward model looks at."
            )
    return episodes


def show(algorithm: BaseAlgorithm, env: VecEnv, episodes: Sequence[Episode]) -> None:
    """Gives an algorithm, whose buffer is there already, what `pick` found, with the rewards that `env` gives."""
    from plaudit.rewards.env import RewardedEnv
    from plaudit.rl.algorithms.sac import SAC

    if not isinstance(algorithm, SAC) or not episodes:
        return
    spaces = env.observation_space, env.action_space, env.device
    if isinstance(env, RewardedEnv):
        layout, judge = _layout(env, episodes[0]), _Judge(env)
        algorithm.show(demonstrations(episodes, *spaces, judge.tell, layout))
    else:
        algorithm.show(demonstrations(episodes, *spaces, own_rewards))


def _check_same_reward(episode: Episode, env: VecEnv) -> None:
    """Refuses rewards that were recorded with another kind of reward than the env's, where both say which."""
    ours = getattr(getattr(env, "cfg", None), "reward_mode", None)
    theirs: Any = (episode.meta.get("env_cfg") or {}).get("reward_mode")
    if ours is not None and theirs is not None and ours != theirs:
        raise DataError(
            f"demonstration '{episode.id}' has rewards of env.cfg.reward_mode '{theirs}', but this run's are '{ours}'. "
            "Collect demonstrations with this recipe."
        )


def _layout(env: RewardedEnv, episode: Episode) -> Layout:
    """What is kept of a demonstration, so that its rewards can be given again: its pictures themselves."""
    cameras = env.manager.artifact.cameras
    plain = {"asked": torch.bool, "env_reward": torch.float32, "terminated_by_env": torch.bool}
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
        version = torch.full((episode.length,), self.env.version, dtype=torch.int32)
        told = {"reward": reward, "terminated": terminated, "ended": ended | terminated, "version": version}
        return told | seen

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
            "asked": torch.from_numpy(wanted),
            "env_reward": torch.from_numpy(rewards),
            "terminated_by_env": torch.from_numpy(terminated),
            **frames,
        }
