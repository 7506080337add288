"""Picture files: read whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from plaudit.episodes.episode import Frames
from plaudit.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg")


def is_picture_file(path: Path) -> bool:
    """Whether a file has the name of a picture, and not of one that is being written."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def read_pictures(files: list[Path]) -> Frames:
    """uint8 (n, H, W, 3); a `DataError` names a file that is damaged or of another size than the first."""
    pictures = [_read(file) for file in files]
    for file, picture in zip(files, pictures, strict=True):
        if picture.shape != pictures[0].shape:
            (height, width), (first_height, first_width) = picture.shape[:2], pictures[0].shape[:2]
            raise DataError(
                f"{file}: is {width} x {height} pixels, but {files[0].name} of the same episode and camera is "
                f"{first_width} x {first_height}."
            )
    return np.stack(pictures)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG of (H, W, 3)."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def _read(file: Path) -> NDArray[np.uint8]:
    try:
        content = file.read_bytes()
        with Image.open(io.BytesIO(content)) as picture:
            picture.verify()  # Every checksum up to the last chunk; reading the pixels alone would not miss the end.
        with Image.open(io.BytesIO(content)) as picture:
            return np.asarray(picture.convert("RGB"))
    except UnidentifiedImageError:
        raise DataError(f"{file}: is not a picture. Delete it, or restore it.") from None
    except Exception as error:
        # Decoders report damage in many ways: OSError, SyntaxError, ValueError, struct.error, zlib.error …
        raise DataError(f"{file}: is damaged ({error}). Delete it, or restore it.") from None
