"""Our envs seen through Gymnasium: pictures, seeds, and wrong uses."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import plaudit.envs  # noqa: F401  (registers the envs)
from plaudit.errors import EnvError


def test_pictures_belong_to_the_episode() -> None:
    env = gymnasium.make("PushCube", render_mode="rgb_array", episode_length=2, camera_size=[16, 24])
    env.reset(seed=0)
    action = np.zeros(4, np.float32)
    action[2] = 1.0
    env.step(action)
    moving = env.render()
    env.step(action)
    last = env.render()
    env.reset()
    first = env.render()
    assert isinstance(moving, np.ndarray) and moving.shape == (16, 24, 3) and moving.dtype == np.uint8
    assert isinstance(last, np.ndarray) and isinstance(first, np.ndarray)
    assert (last != first).any()  # The last picture is not of the episode that has begun behind the scenes.
    env.close()


def test_seeds_reproduce_and_resets_without_one_go_on() -> None:
    env = gymnasium.make("probe/ObsActionReward")
    first = env.reset(seed=3)[0]
    env.step(np.zeros(1, np.float32))
    second = env.reset()[0]
    assert not np.array_equal(first, second)
    assert np.array_equal(env.reset(seed=3)[0], first)


def test_envs_that_nobody_seeded_play_different_episodes() -> None:
    envs = gymnasium.make_vec("probe/ObsActionReward", num_envs=4, vectorization_mode="sync")
    first = envs.reset()[0]
    again = envs.reset()[0]
    assert len(np.unique(np.concatenate([first, again]))) == 8  # Later resets without a seed go on.


def test_single_and_batch_play_the_same_episodes() -> None:
    single, batch = gymnasium.make("probe/ObsActionReward"), gymnasium.make_vec("probe/ObsActionReward", num_envs=3)
    assert np.array_equal(single.reset(seed=5)[0], batch.reset(seed=5)[0][0])


def test_gymnasiums_own_vector_envs_work_too() -> None:
    envs = gymnasium.make_vec("probe/Timeout", num_envs=2, vectorization_mode="sync")
    envs.reset(seed=0)
    truncated = [envs.step(np.zeros((2, 1), np.float32))[3].all() for _ in range(5)]
    assert truncated == [False] * 4 + [True]


def test_wrong_uses() -> None:
    with pytest.raises(EnvError, match="no cameras"):
        gymnasium.make("probe/Timeout", render_mode="rgb_array")
    with pytest.raises(EnvError, match="pass an int"):
        gymnasium.make_vec("probe/Timeout", num_envs=2).reset(seed=[1, 2])  # type: ignore[arg-type]
    with pytest.raises(EnvError, match="without a render_mode"):
        gymnasium.make("probe/Timeout").unwrapped.render()
