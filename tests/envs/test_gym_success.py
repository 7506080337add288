"""Success, wherever an env says it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plaudit.envs.gym.success import SUCCESS_KEYS, SuccessReader, batched
from plaudit.errors import EnvError

NOBODY, FIRST = np.array([False, False]), np.array([True, False])


@pytest.mark.parametrize("key", SUCCESS_KEYS)
@pytest.mark.parametrize("values", [np.array([1.0, 0.0]), np.array([True, False]), np.array([np.float32(1), 0])])
def test_the_usual_keys(key: str, values: Any) -> None:
    read = SuccessReader("X-v0", 2, None)
    assert read({"other": np.zeros(2)}, None, NOBODY) is None
    said = read({key: values, f"_{key}": np.array([True, True])}, None, NOBODY)
    assert said is not None and said.tolist() == [True, False]
    # From now on an env that does not mention it has not succeeded.
    silent = read({}, None, NOBODY)
    assert silent is not None and silent.tolist() == [False, False]


def test_an_env_that_is_not_meant_is_not_counted() -> None:
    said = SuccessReader("X-v0", 2, None)({"success": np.array([1.0, 1.0]), "_success": FIRST}, None, NOBODY)
    assert said is not None and said.tolist() == [True, False]
    objects = SuccessReader("X-v0", 2, None)({"success": np.array([None, True]), "_success": ~FIRST}, None, NOBODY)
    assert objects is not None and objects.tolist() == [False, True]


def test_of_an_env_that_began_anew_the_last_word_counts() -> None:
    info = {"success": np.array([False, True])}
    said = SuccessReader("X-v0", 2, None)(info, {"success": np.array([True, False])}, FIRST)
    assert said is not None and said.tolist() == [True, True]


def test_a_key_that_is_named() -> None:
    read = SuccessReader("X-v0", 2, "won")
    said = read({"success": np.array([1.0, 1.0]), "won": np.array([0.0, 1.0])}, None, FIRST)
    assert said is not None and said.tolist() == [False, True]


def test_a_key_that_never_comes() -> None:
    read = SuccessReader("X-v0", 2, "is_sucess")
    read({"is_success": np.zeros(2)}, None, NOBODY)
    with pytest.raises(EnvError, match=r"'is_sucess'.*its info: is_success, near. Did you mean 'is_success'"):
        read({"is_success": np.zeros(2), "_is_success": FIRST, "near": np.zeros(2)}, None, FIRST)


def test_a_key_that_comes_only_with_success(caplog: pytest.LogCaptureFixture) -> None:
    read = SuccessReader("X-v0", 2, "won")
    read({"won": np.array([True, False])}, None, NOBODY)
    silent = read({"near": np.zeros(2)}, None, FIRST)  # At the end of the episode it is not mentioned.
    assert silent is not None and not silent.any() and not caplog.messages
    late = SuccessReader("X-v0", 2, "won")
    late({}, None, FIRST)  # The first episode has failed.
    assert "'won' (env.cfg.success_key) may come with success" in caplog.text
    said = late({"won": np.array([True, False])}, None, NOBODY)
    assert said is not None and said.tolist() == [True, False]


@pytest.mark.parametrize("value", [{"a": 1}, np.zeros((2, 2)), np.array(["no", "yes"]), np.array([None, 1.0])])
def test_what_is_neither_a_bool_nor_a_number_is_told(value: Any) -> None:
    with pytest.raises(EnvError, match=r"gym:X-v0 says 'success' as (.|\n)* Name another key of its info"):
        SuccessReader("X-v0", 2, None)({"success": value}, None, NOBODY)


def test_no_key_at_all_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    read = SuccessReader("X-v0", 2, None)
    with caplog.at_level("INFO", "plaudit"):
        for _ in range(2):
            assert read({"speed": np.zeros(2)}, {"height": np.zeros(2)}, FIRST) is None
    assert [record.getMessage() for record in caplog.records] == [
        "gym:X-v0 does not tell success: env.cfg.success_key may name the right key of its info: height, speed."
    ]


def test_last_words_of_each_env() -> None:
    final = batched([{"success": 1.0}, None])
    said = SuccessReader("X-v0", 2, None)({}, final, FIRST)
    assert said is not None and said.tolist() == [True, False]
    assert batched({"success": 3}) == {"success": 3}
