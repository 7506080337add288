"""Pictures in another size."""

from __future__ import annotations

import numpy as np

from plaudit.utils.images import fit


def test_a_smaller_picture_is_made_of_means() -> None:
    picture = np.zeros((2, 4, 3), np.uint8)
    picture[:, :2] = 100
    picture[0, 2] = 200
    assert fit(picture, (1, 2))[..., 0].tolist() == [[100, 50]]


def test_a_larger_one_has_the_size_that_is_asked_for() -> None:
    assert fit(np.full((2, 3, 3), 7, np.uint8), (5, 4)).tolist() == np.full((5, 4, 3), 7).tolist()


def test_one_of_the_right_size_is_copied() -> None:
    picture = np.zeros((2, 3, 3), np.uint8)
    for size in (None, (2, 3)):
        copy = fit(picture, size)
        copy[:] = 1
        assert not picture.any()
