"""Which frames each step takes."""

from __future__ import annotations

import numpy as np
import pytest

from plaudit.reward_models.training.samplers import BatchSampler, Shuffles, class_weights, step_seed

LABELS = np.array([0] * 70 + [1] * 10 + [-1] * 5, np.int8)


def test_shuffles_take_all_before_any_again() -> None:
    rows = np.arange(10, 17)
    stream = Shuffles(rows, seed=3, stream=1)
    taken = np.concatenate([stream.take(0, 5), stream.take(5, 6), stream.take(6, 21)])
    laps = taken.reshape(3, 7)
    assert all(sorted(lap) == rows.tolist() for lap in laps) and len({tuple(lap) for lap in laps}) == 3
    np.testing.assert_array_equal(stream.take(4, 18), taken[4:18])
    assert Shuffles(rows, 4, 1).take(0, 7).tolist() != Shuffles(rows, 3, 2).take(0, 7).tolist() != laps[0].tolist()


def test_every_frame_once_an_epoch_where_nothing_is_balanced() -> None:
    sampler = BatchSampler(LABELS, 16, seed=0)
    assert sampler.steps_per_epoch == 5
    assert sorted(np.concatenate([sampler[step] for step in range(5)])) == list(range(80))  # None without a label.


@pytest.mark.parametrize(("share", "batch"), [(0.5, 16), (0.25, 10), (0.3, 7)])
def test_batches_have_the_share_of_successes(share: float, batch: int) -> None:
    sampler = BatchSampler(LABELS, batch, seed=0, success_share=share)
    batches = [sampler[step] for step in range(200)]
    counts = [int((LABELS[rows] == 1).sum()) for rows in batches]
    assert {len(rows) for rows in batches} == {batch} and max(abs(count - share * batch) for count in counts) < 1
    assert sum(counts) == int(200 * batch * share)
    every = np.concatenate(batches)
    for kind in (0, 1):
        taken = np.bincount(every, minlength=85)[kind == LABELS]
        assert taken.max() - taken.min() <= 1
    assert (np.bincount(every, minlength=85)[LABELS == -1] == 0).all()


def test_a_step_is_the_same_whatever_was_asked_before() -> None:
    ours, theirs = (BatchSampler(LABELS, 16, seed=1, success_share=0.5) for _ in range(2))
    for step in range(12):
        ours[step]
    np.testing.assert_array_equal(ours[12], theirs[12])
    assert ours[12].tolist() != BatchSampler(LABELS, 16, seed=2, success_share=0.5)[12].tolist()


def test_a_batch_is_no_larger_than_the_data() -> None:
    sampler = BatchSampler(LABELS, 1000, seed=0, success_share=0.5)
    assert sampler.batch == 80 and sampler.steps_per_epoch == 1


def test_class_weights_by_hand() -> None:
    # 70 failures and 10 successes: half of the loss each is 40/70 and 40/10.
    assert class_weights(LABELS, 0.5) == pytest.approx((40 / 70, 4.0))
    assert class_weights(LABELS, 0.125) == pytest.approx((1.0, 1.0))


def test_steps_draw_different_numbers() -> None:
    assert len({step_seed(seed, step) for seed in range(3) for step in range(100)}) == 300
