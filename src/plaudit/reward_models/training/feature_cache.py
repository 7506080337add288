"""What a frozen encoder says of frames, kept on the disk: it is run once for each frame, and not in every epoch.

    DIR/<key>.npy      float16 (frames, views, ...), memory-mapped

The key is a hash of all that the features depend on. A later fit with the same encoder, pictures and views finds them;
with any other it does not. float16 has three digits; what rounding moves a feature by is a thousandth of what it is.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.config.structured import to_dict
from plaudit.data.dataset import FrameDataset
from plaudit.errors import OutputError
from plaudit.reward_models import hashing as fingerprints
from plaudit.reward_models.model import RewardModel
from plaudit.reward_models.training.augment import Augment
from plaudit.reward_models.training.batches import FrameBatch, FrameFeed, moved, read_ahead
from plaudit.utils.atomic_io import whole_file

logger = logging.getLogger("plaudit")

VERSION = 1
"""Of what the features are and how they are varied."""

BATCH = 64
"""Frames that are encoded together."""

LARGEST = 65504.0
"""The largest float16."""

MOST = 20 * 2**30
"""Bytes of features that are kept; those that were used longest ago go first."""

HEAD_KEYS = (
    "heads",
    "hidden_dim",
    "dropout",
    "pooling",
    "num_spatial_blocks",
    "bottleneck",
    "activation",
    "use_pretrain",
    "pretrained_encoder_path",
)
"""Keys of `reward.model` that the features do not depend on, but by the encoder's weights or the features' shape."""

Track = Callable[[Collection[int]], Iterable[int]]
"""Gives its items one by one, and may show how far it is."""


class FeatureCache:
    """Features on the disk.

    Args:
        folder: Where they are kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def features(
        self,
        model: RewardModel,
        dataset: FrameDataset,
        *,
        views: int = 1,
        augment: Augment | None = None,
        track: Track = iter,
    ) -> NDArray[np.float16]:
        """The features of every frame of a data set, float16 (n, views, ...), memory-mapped; made where there are none.

        Args:
            model: Whose encoder is frozen.
            dataset: The frames.
            views: How many of each frame: itself first, then varied ones.
            augment: Varies them; needed for more than one view.
            track: Shows how far it is.
        """
        shape = (len(dataset), views, *_feature_shape(model))
        path = self.folder / f"{self.key(model, dataset, views, augment, shape)}.npy"
        found = _open(path, shape)
        if found is None:
            self._make_room(int(np.prod(shape)) * 2)
            started = time.perf_counter()
            with whole_file(path) as temporary:
                _write(temporary, shape, model, dataset, augment, track)
            found = _open(path, shape)
            assert found is not None
            logger.info(
                "features of %s frames: encoded in %.1f s, kept in %s (%.0f MB).",
                f"{len(dataset):,}",
                time.perf_counter() - started,
                path,
                found.nbytes / 1e6,
            )
        else:
            logger.info("features of %s frames: found in %s.", f"{len(dataset):,}", path)
            with suppress(FileNotFoundError):  # Another fit has made room; what is mapped stays readable.
                os.utime(path)
        return found

    @staticmethod
    def key(
        model: RewardModel, dataset: FrameDataset, views: int, augment: Augment | None, shape: tuple[int, ...]
    ) -> str:
        """A name for all that the features depend on."""
        config = {key: value for key, value in to_dict(model.config).items() if key not in HEAD_KEYS}
        values = {
            "version": VERSION,
            "class": type(model).__qualname__,
            "encoder": fingerprints.of_weights(model.encoder),
            "config": config,
            "shape": list(shape),
            "data": fingerprints.of_pictures(dataset),
            "augment": asdict(augment.config) if augment is not None and views > 1 else None,
        }
        return fingerprints.of_values(values)

    def _make_room(self, wanted: int) -> None:
        """Deletes what was used longest ago, and refuses what the disk cannot hold."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            kept = wanted
            for file, stat in sorted(_files(self.folder), key=lambda pair: pair[1].st_mtime, reverse=True):
                being_written = file.name.startswith(".")
                kept += 0 if being_written else stat.st_size
                if _is_left_over(file, stat) if being_written else kept > MOST:
                    file.unlink(missing_ok=True)
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise OutputError(f"cannot keep features in '{self.folder}': {error.strerror}.{_WAYS_OUT}") from error
        if free < wanted:
            raise OutputError(
                f"the features take {wanted / 1e6:,.0f} MB, but the disk of '{self.folder}' has {free / 1e6:,.0f} MB "
                f"free.{_WAYS_OUT}"
            )


_WAYS_OUT = " Choose another place with reward.training.cache_dir, or set reward.training.feature_cache to false."


DAY = 24 * 60 * 60
"""In seconds."""


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """What is in a folder of features; other fits may rename and delete there meanwhile."""
    for file in folder.glob("*.npy"):
        with suppress(FileNotFoundError):
            yield file, file.stat()


def _is_left_over(file: Path, stat: os.stat_result) -> bool:
    """Whether a file was being written by a process that is no more; `whole_file` names it after the process.

    On a disk that several machines share it may be a process of another one: no process encodes for a day.
    """
    owner = file.stem.rpartition(".")[2]
    old = time.time() - stat.st_mtime > DAY
    return old and owner.isdigit() and not Path(f"/proc/{owner}").exists()


def _open(path: Path, shape: tuple[int, ...]) -> NDArray[np.float16] | None:
    """The features in a file; `None` where there are none, or the file is damaged."""
    if not path.exists():
        return None
    try:
        found: NDArray[np.float16] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        logger.warning("%s: is damaged (%s); encoding again.", path, error)
        return None
    return found if found.shape == shape and found.dtype == np.float16 else None


def _feature_shape(model: RewardModel) -> tuple[int, ...]:
    """Of what `encode` gives for one frame."""
    height, width = model.image_size
    blank = {camera: torch.zeros(1, 3, height, width, device=_device(model)) for camera in model.cameras}
    with torch.inference_mode():
        return tuple(model.encode(blank).shape[1:])


def _device(model: RewardModel) -> torch.device:
    return next(model.parameters()).device


def _write(
    path: Path,
    shape: tuple[int, ...],
    model: RewardModel,
    dataset: FrameDataset,
    augment: Augment | None,
    track: Track,
) -> None:
    """Encodes all frames, each batch read while the one before it is encoded."""
    target = np.lib.format.open_memmap(path, "w+", np.float16, shape)
    feed = FrameFeed(dataset)

    def read(start: int) -> FrameBatch:
        return feed.read(np.arange(start, min(start + BATCH, len(dataset))))

    model.eval()
    with torch.inference_mode():
        for batch in read_ahead(read, track(range(0, len(dataset), BATCH))):
            assert not isinstance(batch.inputs, torch.Tensor)
            images = model.prepare(moved(batch, _device(model)).inputs)
            for view in range(shape[1]):
                # Not from the fit's seed, so that fits of other seeds find the same views.
                random = torch.Generator().manual_seed(int(batch.rows[0]) * shape[1] + view)
                seen = augment(images, random) if augment is not None and view else images
                features = model.encode(seen).clamp(-LARGEST, LARGEST)
                target[batch.rows, view] = features.to(torch.float16).cpu().numpy()
    target.flush()
