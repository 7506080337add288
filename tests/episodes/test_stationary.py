"""Still steps: which frames repeat, and episodes without them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from samples import assert_same, make_episode

from plaudit.data import Episode
from plaudit.data.frame_selection import repeats, still_steps, without_still_steps


def with_still(*steps: int, length: int = 6, success_at: int | None = None, **changes: Any) -> Episode:
    episode = make_episode("a", length=length, success_at=success_at)
    actions = np.array(episode.actions)
    actions[list(steps)] = 1e-6
    return dataclasses.replace(episode, actions=actions, **changes)


def test_the_frame_after_a_still_action_repeats_the_one_before() -> None:
    episode = with_still(2, 3)
    assert np.flatnonzero(still_steps(episode)).tolist() == [2, 3]
    assert np.flatnonzero(repeats(episode)).tolist() == [3, 4]


def test_the_last_frame_and_label_changes_are_kept() -> None:
    assert np.flatnonzero(repeats(with_still(4, 5))).tolist() == [5]
    assert np.flatnonzero(repeats(with_still(4, 5), keep_last=False)).tolist() == [5, 6]
    assert np.flatnonzero(repeats(with_still(1, 2, success_at=3))).tolist() == [2]


def test_of_few_frames_one_repeats_only_if_nothing_moved_since_the_one_before() -> None:
    whole = with_still(0, 3, 4)
    rows = np.array([1, 3, 5, 6])
    few = dataclasses.replace(
        whole,
        frames={name: pixels[rows] for name, pixels in whole.frames.items()},
        labels=whole.labels[rows],
        frame_index=whole.frame_index[rows],
        flags={},
    ).check()
    # 1 has no frame before it; between 1 and 3 there is a move; between 3 and 5 there is none.
    assert repeats(few).tolist() == [False, False, True, False]


def test_nothing_repeats_where_actions_are_not_known() -> None:
    assert not repeats(dataclasses.replace(with_still(1, 2), actions=None)).any()


def test_an_episode_without_its_still_steps() -> None:
    episode = with_still(1, 2)
    short = without_still_steps(episode).check()
    assert short.length == 4 and short.frame_index.tolist() == [0, 1, 2, 3, 4]
    kept_instants, kept_steps = [0, 1, 4, 5, 6], [0, 3, 4, 5]
    for camera in episode.frames:
        np.testing.assert_array_equal(short.frames[camera], episode.frames[camera][kept_instants])
    assert episode.state is not None and episode.actions is not None
    np.testing.assert_array_equal(short.state, episode.state[kept_instants])
    np.testing.assert_array_equal(short.actions, episode.actions[kept_steps])
    np.testing.assert_array_equal(short.flags["grasp"], episode.flags["grasp"][kept_instants])
    assert short.truncated is not None and short.truncated.tolist() == [False, False, False, True]


def test_the_end_and_label_changes_stay_even_if_still() -> None:
    episode = with_still(2, 4, 5, success_at=3)
    short = without_still_steps(episode).check()
    assert short.labels.tolist() == [0, 0, 0, 1, 1, 1]  # Only step 4 is gone.
    assert short.truncated is not None and short.truncated[-1]


def test_a_state_without_the_reset_loses_the_same_steps() -> None:
    episode = with_still(1)
    assert episode.state is not None
    short = without_still_steps(dataclasses.replace(episode, state=episode.state[1:])).check()
    np.testing.assert_array_equal(short.state, episode.state[[1, 3, 4, 5, 6]])


def test_an_episode_that_always_moves_is_left_as_it_is() -> None:
    episode = with_still()
    assert_same(without_still_steps(episode), episode)
