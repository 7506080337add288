"""Rewards that are given again, because somebody else judges by now."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import torch

from plaudit.rl.buffers.replay_buffer import ReplayBuffer
from plaudit.rl.reward_source import Relabelled

logger = logging.getLogger("plaudit")

UNSETTLED = -1
"""Version of a reward that nobody has given yet."""

PIECE = 1000
"""Transitions, or the rest of an episode more, that are judged together."""


def relabel_replay(replay: ReplayBuffer, who: Relabelled) -> bool:
    """Has the rewards given again, in place, that are not of the present judge; returns whether there were any. The new
    verdict also says where the task was over.

    Nothing is learned meanwhile: it takes as long as the model takes for so many pictures, drawn again first where only
    snapshots are kept, and that is said.
    """
    columns = replay.columns
    pieces = [
        part
        for part in _pieces(replay, replay.transitions())
        if bool(
            (columns["reward_id"][part] != who.reward_fingerprint).any()
        )  # A rollout that was broken off is no reason for all.
    ]
    if not pieces:
        return False
    started, given, slots = time.perf_counter(), 0, torch.cat(pieces)
    columns["reward_id"][slots] = UNSETTLED  # Whoever is interrupted here, and lives in files, begins again.
    for part in pieces:
        seen = {name: columns[name][part] for name in replay.extras}
        reward, terminated = who.again(seen, columns["done"][part], replay.obs(replay.next(part)))
        columns["reward"][part] = reward.to(replay.device)
        columns["terminated"][part] = terminated.to(replay.device)
        if not given and len(slots) > 2 * len(part):
            seconds = (time.perf_counter() - started) * len(slots) / len(part)
            logger.info("replay: %s rewards are given anew, in about %.0f s.", f"{len(slots):,}", seconds)
        given += len(part)
    columns["reward_id"][slots] = who.reward_fingerprint
    logger.info(
        "replay: %s rewards were given anew, by version %d of the reward model, in %.1f s.",
        f"{given:,}",
        who.version,
        time.perf_counter() - started,
    )
    return True


def _pieces(replay: ReplayBuffer, slots: torch.Tensor) -> Iterator[torch.Tensor]:
    """Transitions of one env each, cut where episodes end, and wherever one was broken off: what was before does not
    count for what comes after.
    """
    for env in range(replay.num_envs):
        ours = slots[slots % replay.num_envs == env]
        ended, last = replay.columns["done"][ours], len(ours)
        broken = torch.zeros_like(ended)
        broken[:-1] = (replay.next(ours[:-1]) != ours[1:]) & ~ended[:-1]
        cuts = ((ended | broken).nonzero().squeeze(-1) + 1).tolist()
        start = 0
        for end in [*(cut for cut in cuts if cut < last), last]:
            if end - start >= PIECE or end == last or broken[end - 1]:
                if end > start:
                    yield ours[start:end]
                start = end
