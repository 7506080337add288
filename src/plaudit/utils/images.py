"""Resize images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fit(pixels: NDArray[np.uint8], size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Return a copy of one image, resized to `size` if its size differs.

    Args:
        pixels: The image, uint8 (H, W, 3).
        size: Height and width of the result; `None` keeps the image's own.
    """
    if size is None or pixels.shape[:2] == size:
        return np.array(pixels)
    from PIL import Image

    # When shrinking, each pixel is the mean of the area that it covers: any sharper filter causes aliasing.
    shrinks = size[0] <= pixels.shape[0] and size[1] <= pixels.shape[1]
    resampling = Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((size[1], size[0]), resampling))
