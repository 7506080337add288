"""Pictures in another size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fit(pixels: NDArray[np.uint8], size: tuple[int, int] | None) -> NDArray[np.uint8]:
    """A copy of one picture, uint8 (H, W, 3), scaled to (height, width) where it is of another size."""
    if size is None or pixels.shape[:2] == size:
        return np.array(pixels)
    from PIL import Image

    # Where there are fewer pixels, each is the mean of the area that it covers: anything sharper makes patterns.
    smaller = size[0] <= pixels.shape[0] and size[1] <= pixels.shape[1]
    how = Image.Resampling.BOX if smaller else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).resize((size[1], size[0]), how))
