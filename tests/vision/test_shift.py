import torch

from plaudit.vision.random_shift import moved_pixels


def test_by_hand() -> None:
    # Pixels of a picture of 2 x 3: 0 1 2 / 3 4 5.
    shift = torch.tensor([[0, 0], [1, 0], [-1, 0], [0, 1], [2, -5]])
    assert moved_pixels(shift, 2, 3).tolist() == [
        [0, 1, 2, 3, 4, 5],
        [1, 2, 2, 4, 5, 5],  # seen from one pixel farther right, the right edge twice
        [0, 0, 1, 3, 3, 4],
        [3, 4, 5, 3, 4, 5],
        [2, 2, 2, 2, 2, 2],
    ]
