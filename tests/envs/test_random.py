"""Random numbers of episodes: uniform, and a function of seed, env and episode alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plaudit.envs.episode_rng import _mix, episode_uniforms

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def _uniforms(seed: int, env: int, episode: int, count: int = 4) -> NDArray[np.float64]:
    numbers: NDArray[np.float64] = episode_uniforms(seed, np.array([env]), np.array([episode]), count)[0]
    return numbers


def _splitmix(x: int) -> int:
    """The finaliser again, in Python's integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_finaliser_gives_splitmix64s_published_numbers() -> None:
    # The first outputs of SplitMix64 seeded with 0, as its reference implementation prints them.
    outputs = _mix(np.array([GOLDEN, (2 * GOLDEN) & MASK], np.uint64))
    assert [hex(int(x)) for x in outputs] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]


def test_numbers_worked_out_in_plain_integers() -> None:
    seed, env, episode = 12345, 6, 2
    key = _splitmix((seed + GOLDEN * (env + 1)) & MASK)
    key = _splitmix((key + GOLDEN * (episode + 1)) & MASK)
    expected = [(_splitmix((key + GOLDEN * (i + 1)) & MASK) >> 11) / 2**53 for i in range(4)]
    assert _uniforms(seed, env, episode).tolist() == expected


def test_uniform_in_the_unit_interval() -> None:
    n = 20_000
    u = episode_uniforms(0, np.arange(n) % 500, np.arange(n) // 500, 4)
    assert u.shape == (n, 4)
    assert (u >= 0).all()
    assert (u < 1).all()
    # Mean 1/2 and variance 1/12 within five standard errors; every tenth holds a tenth of them.
    np.testing.assert_allclose(u.mean(0), 0.5, atol=5 * np.sqrt(1 / 12 / n))
    np.testing.assert_allclose(u.var(0), 1 / 12, atol=5 * np.sqrt(1 / 180 / n))
    for column in u.T:
        counts = np.histogram(column, 10, (0, 1))[0]
        np.testing.assert_allclose(counts, n / 10, atol=5 * np.sqrt(n * 0.09))


def test_numbers_of_neighbours_are_not_correlated() -> None:
    n = 10_000
    limit = 5 / np.sqrt(n)
    base = episode_uniforms(3, np.arange(n), np.zeros(n, np.int64), 2)
    next_env = episode_uniforms(3, np.arange(n) + 1, np.zeros(n, np.int64), 2)
    next_episode = episode_uniforms(3, np.arange(n), np.ones(n, np.int64), 2)
    next_seed = episode_uniforms(4, np.arange(n), np.zeros(n, np.int64), 2)
    centred = base - 0.5
    for other in (base[:, 1], next_env[:, 0], next_episode[:, 0], next_seed[:, 0]):
        assert abs(12 * (centred[:, 0] * (other - 0.5)).mean()) < limit


def test_independent_of_who_else_asks() -> None:
    many = episode_uniforms(7, np.arange(100), np.arange(100) % 3, 8)
    few = episode_uniforms(7, np.array([42, 5]), np.array([0, 2]), 8)
    assert np.array_equal(few, many[[42, 5]])
    assert np.array_equal(_uniforms(7, 42, 0, 3), many[42, :3])


def test_seed_env_and_episode_each_matter() -> None:
    base = _uniforms(1, 2, 3)
    for other in (_uniforms(2, 2, 3), _uniforms(1, 3, 3), _uniforms(1, 2, 4), _uniforms(1, 3, 2), _uniforms(2, 1, 3)):
        assert not np.isin(other, base).any()


def test_any_python_integer_is_a_seed() -> None:
    assert not np.array_equal(_uniforms(-1, 0, 0), _uniforms(1, 0, 0))
    assert not np.array_equal(_uniforms(2**63 + 1, 0, 0), _uniforms(1, 0, 0))
