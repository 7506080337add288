"""Thumbnails by hand-worked numbers; hashes that tell a copy from another picture of the same scene."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scenes import scene

from plaudit.data.image_hashing import BITS, PerceptualHash, difference, digest, distance, thumbnails


def test_thumbnails_are_means_over_the_cells_of_a_grid() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 64, 96, 3), np.uint8)
    by_hand = pixels.reshape(2, 32, 2, 32, 3, 3).mean((2, 4, 5))
    np.testing.assert_allclose(thumbnails(pixels), by_hand, atol=1e-3)


@pytest.mark.parametrize(("size", "shape"), [((5, 7), (5, 7)), ((33, 100), (32, 32)), ((480, 640), (32, 32))])
def test_thumbnails_of_any_size(size: tuple[int, int], shape: tuple[int, int]) -> None:
    small = thumbnails(np.full((3, *size, 3), 77, np.uint8))
    assert small.shape == (3, *shape)
    np.testing.assert_allclose(small, 77, atol=1e-3)


def test_difference_is_the_largest_one_with_light_and_dark_levelled_out() -> None:
    ours = np.zeros((2, 4, 4), np.float32)
    theirs = ours + 10
    theirs[1, 2, 3] += 16  # The mean rises by 1, so that 15 remain.
    np.testing.assert_allclose(difference(ours, theirs), [0, 15], atol=1e-5)


def test_distance_counts_bits() -> None:
    ours = np.array([[0, 0, 0, 0], [1, 2, 4, 2**63]], np.uint64)
    theirs = np.array([[0, 0, 0, 0], [2**64 - 1, 0, 0, 0], [1, 2, 4, 0]], np.uint64)
    assert distance(ours, theirs).tolist() == [[0, 64, 3], [4, 66, 1]]


def test_a_copy_is_near_and_another_episode_is_far() -> None:
    frames = [scene(number).frames["camera"] for number in range(12)]
    small = [thumbnails(pixels) for pixels in frames]
    hashed = PerceptualHash(np.concatenate(small))
    noise = np.random.default_rng(0).normal(10, 3, frames[0].shape)
    again = hashed(thumbnails(np.clip(frames[0] + noise, 0, 255).astype(np.uint8)))
    copies = np.diag(distance(again, hashed(small[0])))
    others = distance(hashed(small[0][4:]), np.concatenate([hashed(pictures)[4:] for pictures in small[1:]]))
    assert copies.max() < BITS // 8 and np.median(others) > BITS // 3


def test_digest_is_of_pixels_and_cameras_alone() -> None:
    one = scene(0)
    assert digest(dataclasses.replace(one, id="other", labels=one.labels * 0)) == digest(one)
    assert digest(dataclasses.replace(one, frames={"c": one.frames["camera"]})) != digest(one)
    changed = one.frames["camera"].copy()
    changed[3, 4, 5, 0] ^= 1
    assert digest(dataclasses.replace(one, frames={"camera": changed})) != digest(one)
