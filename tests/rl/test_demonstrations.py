"""Episodes as transitions, and what does not fit an env."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from plaudit.data.episode import UNKNOWN, Episode, EpisodeSource
from plaudit.errors import ConfigError, DataError
from plaudit.rl.buffers.demonstrations import check, chosen, demonstrations, own_rewards, whole

OBS = gym.spaces.Dict({"state": gym.spaces.Box(-9, 9, (2,), np.float32)})
ACTION = gym.spaces.Box(np.float32(-1), np.float32(2), (1,), np.float32)


def episode(id: str, length: int = 3, *, success: bool = True, **changes: Any) -> Episode:
    """State (t, 10 t), action t / 4, reward 1 at the end, which the clock is."""
    times = np.arange(length + 1, dtype=np.float32)
    made = Episode(
        id,
        {"camera": np.zeros((length + 1, 4, 4, 3), np.uint8)},
        np.array([0] * length + [int(success)], np.int8),
        np.arange(length + 1, dtype=np.int32),
        length,
        success,
        "simulator",
        state=np.stack([times, 10 * times], 1),
        actions=times[:-1, None] / 4,
        rewards=(times[1:] == length).astype(np.float32),
        terminated=np.zeros(length, bool),
        truncated=times[1:] == length,
    )
    return replace(made, **changes).check()


class Source(EpisodeSource):
    path, format = Path("somewhere"), "test"

    def __init__(self, episodes: Sequence[Episode]) -> None:
        self.episodes = list(episodes)

    def __len__(self) -> int:
        return len(self.episodes)

    def read(self, index: int) -> Episode:
        return self.episodes[index]


def test_successes_are_chosen_in_order() -> None:
    source = Source([episode("a", success=False), episode("b"), episode("c"), episode("d")])
    assert [one.id for one in chosen(source, None)] == ["b", "c", "d"]
    assert [one.id for one in chosen(source, 2)] == ["b", "c"]
    with pytest.raises(DataError, match=r"'somewhere' has 3 successes in 4 episodes, but 4 are wanted"):
        chosen(source, 4)
    with pytest.raises(DataError, match=r"has 0 successes in 1 episodes, but at least one is wanted"):
        chosen(Source(source.episodes[:1]), None)


def test_failures_are_chosen_too_where_they_are_wanted(caplog: pytest.LogCaptureFixture) -> None:
    source = Source([episode("a", success=False), episode("b"), episode("c", success=False)])
    assert [one.id for one in chosen(source, None, "success_at_end", failures=True)] == ["a", "b", "c"]
    assert [one.id for one in chosen(source, 2, failures=True)] == ["a", "b"]
    assert not caplog.messages
    assert [one.id for one in chosen(source, 1, failures=True)] == ["a"]
    assert "none of the 1 that are taken of 'somewhere' is a success" in caplog.text
    with pytest.raises(DataError, match=r"'somewhere' has 3 episodes, but 4 are wanted"):
        chosen(source, 4, failures=True)


def test_where_the_end_counts_those_come_first_that_end_in_success(caplog: pytest.LogCaptureFixture) -> None:
    left = episode("left", labels=np.array([0, 1, 1, 0], np.int8))  # A success that was not held.
    source = Source([left, episode("a", success=False), episode("held"), replace(left, id="again"), episode("last")])
    assert [one.id for one in chosen(source, None, "success_at_end")] == ["held", "last"]
    assert [one.id for one in chosen(source, 2, "success_at_end")] == ["held", "last"]
    assert not caplog.messages
    assert [one.id for one in chosen(source, 3, "success_at_end")] == ["held", "last", "left"]
    assert "only 2 of the 4 successes in 'somewhere' end in success, which is what counts" in caplog.text
    assert [one.id for one in chosen(source, 2)] == ["left", "held"]  # Where once is enough, the first ones.
    with pytest.raises(DataError, match=r"has 2 episodes that end in success in 5 episodes, but 5 are wanted"):
        chosen(source, 5, "success_at_end")
    # What nobody has labelled frame by frame is a success as a whole. A simulator's unknown is a picture that looks
    # like a success which is none.
    untold = replace(left, id="untold", labels=np.full(4, UNKNOWN, np.int8))
    partly = replace(left, labels=np.array([0, 1, UNKNOWN, UNKNOWN], np.int8))
    assert [one.id for one in chosen(Source([partly, untold]), None, "success_at_end")] == ["untold"]


def test_how_good_they_are_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    left = episode("left", labels=np.array([0, 1, 1, 0], np.int8), rewards=np.array([1, 1, 0], np.float32))
    demonstrations([episode("a"), left], OBS, ACTION, "cpu", own_rewards)
    assert "6 transitions; 1 of 2 demonstrations end in success, 50 % of steps rewarded" in caplog.text


def test_transitions_by_hand() -> None:
    last = np.array([False, True])
    short = episode("b", 2, terminated=last, truncated=~last & last)
    replay = demonstrations([episode("a"), short], OBS, ACTION, "cpu", own_rewards)
    batch = replay.take(replay.transitions(), 1, 0.9)
    assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
    assert batch.obs[:, 1].tolist() == [0, 10, 20, 0, 10]
    assert batch.next_obs[:, 0].tolist() == [1, 2, 3, 1, 2]
    assert batch.action[:, 0].tolist() == [0, 0.25, 0.5, 0, 0.25]
    assert batch.reward.tolist() == [0, 0, 1, 0, 1]
    # The first was ended by the clock, the second by itself.
    torch.testing.assert_close(batch.discount, torch.tensor([0.9, 0.9, 0.9, 0.9, 0.0]))


def test_without_its_reset_an_episode_begins_with_the_second_action() -> None:
    whole = episode("a")
    assert whole.state is not None
    replay = demonstrations([replace(whole, state=whole.state[1:])], OBS, ACTION, "cpu", own_rewards)
    batch = replay.take(replay.transitions(), 1, 0.9)
    assert isinstance(batch.obs, torch.Tensor)
    assert batch.obs[:, 0].tolist() == [1, 2]
    assert batch.action[:, 0].tolist() == [0.25, 0.5]
    assert batch.reward.tolist() == [0, 1]


def test_pictures_that_are_observed_come_from_the_frames() -> None:
    space = gym.spaces.Dict({**OBS.spaces, "camera": gym.spaces.Box(0, 255, (4, 4, 3), np.uint8)})
    frames = np.arange(4, dtype=np.uint8)[:, None, None, None] * np.ones((4, 4, 4, 3), np.uint8)
    replay = demonstrations([episode("a", frames={"camera": frames})], space, ACTION, "cpu", own_rewards)
    batch = replay.take(replay.transitions(), 1, 0.9)
    assert isinstance(batch.obs, dict) and isinstance(batch.next_obs, dict)
    assert batch.obs["camera"][:, 0, 0, 0].tolist() == [0, 1, 2]
    assert batch.next_obs["camera"][:, 0, 0, 0].tolist() == [1, 2, 3]
    few = episode(
        "b", frames={"camera": frames[[0, 3]]}, labels=np.array([0, 1], np.int8), frame_index=np.array([0, 3], np.int32)
    )
    with pytest.raises(
        DataError, match=r"the env observes 'camera' with shape \(4, 4, 3\), but the episode has nothing"
    ):
        check(few, space, ACTION)


def test_what_does_not_fit_is_named() -> None:
    good = episode("a")
    assert good.actions is not None
    check(good, OBS, ACTION)
    check(replace(good, actions=good.actions + 1.50001), OBS, ACTION)  # Rounding may lead out of the range.
    wrong: list[tuple[Episode, str]] = [
        (replace(good, state=None), r"observes 'state' with shape \(2,\), but the episode has nothing of it"),
        (replace(good, state=np.zeros((4, 3), np.float32)), r"but the episode has shape \(3,\)"),
        (replace(good, actions=None), r"has no actions, but the env takes \(1,\)"),
        (replace(good, actions=np.zeros((3, 2), np.float32)), r"has actions of shape \(2,\), but the env takes \(1,\)"),
        (replace(good, actions=good.actions + 1.9), r"number 0 of action 1 is 2.15, but the env takes -1 to 2"),
        (replace(good, actions=good.actions * np.float32("nan")), r"number 0 of action 0 is nan"),
        (replace(good, state=_with_nan(good.state, 1)), r"'a': 'state' is unknown or infinite at instant 1"),
        (replace(good, state=_with_nan(good.state, 2)[1:]), r"'a': 'state' is unknown or infinite at instant 2"),
    ]
    for one, message in wrong:
        with pytest.raises(DataError, match=message):
            check(one, OBS, ACTION)
    with pytest.raises(DataError, match=r"'a' has no rewards"):
        own_rewards(replace(good, rewards=None))
    with pytest.raises(DataError, match=r"'a': the reward of step 2 is nan"):
        own_rewards(replace(good, rewards=np.array([0, 1, np.nan], np.float32)))


def _with_nan(values: Any, row: int) -> Any:
    changed = values.copy()
    changed[row, 1] = np.nan
    return changed


def test_more_than_there_is_memory_for_is_told_by_the_key_that_decides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plaudit.rl.buffers.replay_buffer.available_memory", lambda: 100)
    with pytest.raises(ConfigError, match=r"algorithm.cfg.num_demonstrations: 6 transitions .*Take fewer\."):
        demonstrations([episode("a")], OBS, ACTION, "cpu", own_rewards)


def test_what_the_last_action_led_to_may_be_unknown() -> None:
    full = episode("a")
    space = gym.spaces.Dict({**OBS.spaces, "camera": gym.spaces.Box(0, 255, (4, 4, 3), np.uint8)})
    assert whole(full, space, ["camera"]) is full
    numberless = replace(full, state=_with_nan(full.state, 3))
    short = whole(numberless, OBS).check()
    assert short.length == 2 and short.frame_index.tolist() == [0, 1, 2] and short.state is not None
    assert short.state[:, 0].tolist() == [0, 1, 2] and short.rewards is not None and short.rewards.tolist() == [0, 0]
    over = whole(replace(numberless, terminated=np.array([False, False, True])), OBS).check()
    assert over.length == 3 and over.state is not None and over.state[:, 0].tolist() == [0, 1, 2, 2]
    index, frames = full.frame_index[:3], {"camera": full.frames["camera"][:3]}
    unseen = replace(full, frames=frames, frame_index=index, labels=full.labels[:3])
    assert whole(unseen, OBS) is unseen  # Nobody looks.
    assert whole(unseen, space).check().length == whole(unseen, OBS, ["camera"]).check().length == 2
    over = replace(unseen, terminated=np.array([False, False, True]))
    assert whole(over, space).check().frame_index.tolist() == [0, 1, 2, 3]
    assert whole(over, OBS, ["camera"]).length == 2  # A model cannot judge a picture that is not there.
    with pytest.raises(DataError, match=r"'one' has one step alone, and what it led to is unknown"):
        one = episode("one", 1)
        whole(replace(one, state=_with_nan(one.state, 1)), OBS)
