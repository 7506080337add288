"""Episodes that somebody has shown, as transitions to learn from."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.data.episode import SUCCESS, UNKNOWN, Episode, EpisodeSource
from plaudit.envs.base import Headline
from plaudit.errors import DataError
from plaudit.rl.buffers.replay_buffer import ReplayBuffer, check_room, layout_of
from plaudit.rl.observations import flat, obs_dim
from plaudit.rl.reward_source import Layout

logger = logging.getLogger("plaudit")

SLACK = 1e-4
"""By how much of its range an action may lie outside: what rounding does to it."""

Told = dict[str, torch.Tensor]
"""`reward` (T,) and the replay's extras (T, ...) of an episode."""


def chosen(
    source: EpisodeSource, count: int | None, headline: Headline = "success_once", *, failures: bool = False
) -> list[Episode]:
    """The first `count` successes, in the source's order; all of them by default. With `failures`, the first `count`
    episodes of any kind.

    Where the success of an episode is that of its end, those come first that end in success; the others, which teach to
    leave it again, only as far as a `count` needs them, and that is said.
    """
    found = [(place, one) for place, one in enumerate(source.summaries()) if one.positive or failures]
    once = failures or headline == "success_once"
    fine = {place: once or ends_in_success(one.labels) for place, one in found}
    good, others = ([place for place, one in fine.items() if one is wanted] for wanted in (True, False))
    places = good if count is None else (good + others)[:count]
    if not places or (count is not None and len(places) < count):
        there = f"{len(good)} {'successes' if once else 'episodes that end in success'} in " if not failures else ""
        raise DataError(
            f"'{source.path}' has {there}{len(source)} episodes, but "
            f"{count or 'at least one'} {'are' if count else 'is'} wanted (algorithm.cfg.num_demonstrations)."
        )
    if failures and not any(one.positive for place, one in found if place in places):
        logger.warning("demonstrations: none of the %d that are taken of '%s' is a success.", len(places), source.path)
    if len(places) > len(good):
        logger.warning(
            "demonstrations: only %d of the %d successes in '%s' end in success, which is what counts in this task; %d "
            "others are taken beside them. Collect more, or with less noise.",
            len(good),
            len(found),
            source.path,
            len(places) - len(good),
        )
    return [source.read(place) for place in places]


def ends_in_success(labels: NDArray[np.int8]) -> bool:
    """Whether the last frame of a success is one too. An unknown one is not, since what a picture cannot tell, such as
    whether the arm rests, was not so; only where no frame has a label, the word on the whole episode counts.
    """
    return bool(labels[-1] == SUCCESS) or bool((labels == UNKNOWN).all())


def demonstrations(
    episodes: Sequence[Episode],
    obs_space: gym.spaces.Dict,
    action_space: gym.spaces.Box,
    device: torch.device | str,
    tell: Callable[[Episode], Told],
    extras: Layout | None = None,
) -> ReplayBuffer:
    """A replay that holds some episodes. What does not fit the env is a `DataError` that names the episode.

    Args:
        episodes: Each with actions, and with all that the env observes.
        obs_space: The env's.
        action_space: The env's.
        device: Where it is kept.
        tell: The rewards of an episode, and the extras.
        extras: As `ReplayBuffer` takes them.
    """
    slots = sum(episode.length + 1 for episode in episodes) + 2
    dims, actions = obs_dim(obs_space), action_space.shape[0]
    check_room(
        layout_of(dims, actions, extras), slots, torch.device(device), "algorithm.cfg.num_demonstrations", "Take fewer"
    )
    replay = ReplayBuffer(slots, 1, dims, actions, device, extras=extras)
    for episode in episodes:
        obs, first = _observations(episode, obs_space)
        action = _actions(episode, action_space)[first:]
        ended, terminated = torch.zeros(2, len(action), dtype=torch.bool)
        ended[-1] = True
        terminated[-1] = episode.terminated is not None and bool(episode.terminated[-1])
        told = {name: value[first:] for name, value in tell(episode).items()}
        parts = {key: torch.from_numpy(np.array(part)).to(replay.device) for key, part in obs.items()}
        replay.add_episode(
            flat(parts),
            action.to(replay.device),
            {"terminated": terminated, **told, "done": ended},
        )
    logger.info(
        "demonstrations: %s transitions; %d of %d demonstrations end in success, %.0f %% of steps rewarded.",
        f"{len(replay):,}",
        sum(episode.positive and ends_in_success(episode.labels) for episode in episodes),
        len(episodes),
        100 * float((replay.columns["reward"][replay.transitions()] > 0).float().mean()),
    )
    return replay


def whole(episode: Episode, observed: gym.spaces.Dict, judged: Collection[str] = ()) -> Episode:
    """An episode of which the last instant is known, as far as it can be.

    Some layouts do not record what the last action led to. Where the task itself was over by then, no value depends on
    it, and what was before stands in its place. Else, and where a reward model would have to see it, the last step is
    left out.

    Args:
        episode: Any.
        observed: The env's observations.
        judged: Cameras that a reward model looks at.
    """
    cameras = {key for key, part in observed.spaces.items() if len(part.shape or ()) != 1}
    state = episode.state if len(cameras) < len(observed.spaces) else None
    needed = (cameras | set(judged)) & set(episode.frames)
    unseen = bool(needed) and bool(episode.frame_index[-1] == episode.length - 1)
    if not unseen and (state is None or bool(np.isfinite(state[-1]).all())):
        return episode
    over = episode.terminated is not None and bool(episode.terminated[-1])
    return _repeated(episode) if over and not (unseen and judged) else _shortened(episode)


def _repeated(episode: Episode) -> Episode:
    """An episode whose last instant looks like the one before."""
    changes: dict[str, Any] = {}
    if episode.state is not None and len(episode.state) > 1 and not np.isfinite(episode.state[-1]).all():
        changes["state"] = np.concatenate([episode.state[:-1], episode.state[-2:-1]])
    if episode.frame_index[-1] == episode.length - 1:
        changes["frames"] = {name: np.concatenate([part, part[-1:]]) for name, part in episode.frames.items()}
        changes["frame_index"] = np.append(episode.frame_index, np.int32(episode.length))
        changes["labels"] = np.append(episode.labels, np.int8(UNKNOWN))
        changes["flags"] = {name: np.append(part, np.int8(UNKNOWN)) for name, part in episode.flags.items()}
    return replace(episode, **changes)


def _shortened(episode: Episode) -> Episode:
    """An episode without its last step."""
    if episode.length < 2:
        raise DataError(f"demonstration '{episode.id}' has one step alone, and what it led to is unknown.")
    kept = episode.frame_index < episode.length
    names = ("state", "actions", "rewards", "terminated", "truncated")
    steps: dict[str, Any] = {name: None if (part := getattr(episode, name)) is None else part[:-1] for name in names}
    return replace(
        episode,
        length=episode.length - 1,
        frames={name: part[kept] for name, part in episode.frames.items()},
        labels=episode.labels[kept],
        flags={name: part[kept] for name, part in episode.flags.items()},
        frame_index=episode.frame_index[kept],
        **steps,
    )


def check(episode: Episode, obs_space: gym.spaces.Dict, action_space: gym.spaces.Box) -> None:
    """Raises a `DataError` where an episode does not fit an env."""
    _observations(episode, obs_space)
    _actions(episode, action_space)


def own_rewards(episode: Episode) -> Told:
    """The rewards that were recorded with an episode."""
    if episode.rewards is None:
        raise DataError(f"demonstration '{episode.id}' has no rewards; train on a reward model, or record them.")
    if (bad := ~np.isfinite(episode.rewards)).any():
        step = int(bad.argmax())
        raise DataError(f"demonstration '{episode.id}': the reward of step {step} is {episode.rewards[step]}.")
    return {"reward": torch.from_numpy(np.array(episode.rewards))}


def any_rewards(episode: Episode) -> Told:
    """The rewards that were recorded with an episode, as far as there are any: for whoever does not learn from them."""
    recorded = np.zeros(episode.length, np.float32) if episode.rewards is None else episode.rewards
    return {"reward": torch.from_numpy(np.nan_to_num(recorded))}


def _observations(episode: Episode, space: gym.spaces.Dict) -> tuple[dict[str, NDArray[Any]], int]:
    """Observations of all instants, in the env's keys, and the first instant that there are any of."""
    first = 0
    found: dict[str, NDArray[Any]] = {}
    for key, part in space.spaces.items():
        values: NDArray[Any] | None = episode.frames.get(key)
        if len(part.shape or ()) == 1:
            values = episode.state
            late = 0 if values is None else episode.length + 1 - len(values)
        else:
            late = 0 if values is None else int(episode.frame_index[0])
            whole = values is not None and len(values) == episode.length + 1 - late
            values = values if whole else None
        if values is None or values.shape[1:] != part.shape:
            shape = "nothing of it" if values is None else f"shape {values.shape[1:]}"
            raise DataError(
                f"demonstration '{episode.id}': the env observes '{key}' with shape {part.shape}, but the episode has "
                f"{shape}. Collect demonstrations in the same env, with all frames where it observes pictures."
            )
        if values.dtype == np.float32 and (bad := ~np.isfinite(values).all(-1)).any():
            raise DataError(
                f"demonstration '{episode.id}': '{key}' is unknown or infinite at instant {late + int(bad.argmax())}. "
                "Leave the episode out, or record it again."
            )
        first, found[key] = max(first, late), values
    return {key: values[len(values) - (episode.length + 1 - first) :] for key, values in found.items()}, first


def _actions(episode: Episode, space: gym.spaces.Box) -> torch.Tensor:
    """Actions (T, action_dim), within the env's range."""
    actions = episode.actions
    if actions is None or actions.shape[1:] != space.shape:
        shape = "no actions" if actions is None else f"actions of shape {actions.shape[1:]}"
        raise DataError(f"demonstration '{episode.id}' has {shape}, but the env takes {space.shape}.")
    slack = SLACK * (space.high - space.low)
    outside = ~((actions >= space.low - slack) & (actions <= space.high + slack))
    if outside.any():
        step, dim = np.argwhere(outside)[0]
        raise DataError(
            f"demonstration '{episode.id}': number {dim} of action {step} is {actions[step, dim]:g}, but the env takes "
            f"{space.low[dim]:g} to {space.high[dim]:g}. Was it recorded with another action space?"
        )
    return torch.from_numpy(np.clip(actions, space.low, space.high).astype(np.float32))
