"""Short names for what something was made from: equal only where it is the same again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from plaudit.data.dataset import FrameDataset
from plaudit.data.store import EpisodeStore


def of_members(dataset: FrameDataset) -> str:
    """Of which frames of which episodes there are, in their order, and their labels."""
    ids = [summary.id for summary in dataset.source.summaries()]
    used, places = np.unique(dataset.episodes, return_inverse=True)  # New episodes may have moved the numbers.
    whole = _hash("\n".join(ids[number] for number in used).encode())
    for array in (places, dataset.rows, dataset.labels):
        whole.update(np.ascontiguousarray(array).data)
    return whole.hexdigest()


def of_pictures(dataset: FrameDataset) -> str:
    """Of the frames themselves: as `of_members`, and of the files that they are in, by their sizes and times."""
    whole = _hash(of_members(dataset).encode())
    whole.update(json.dumps({camera: list(size) for camera, size in dataset.sizes.items()}).encode())
    source = dataset.source
    files = [source.path]
    if isinstance(source, EpisodeStore):
        files = [source.file(source.ids[number]) for number in np.unique(dataset.episodes)]
    for file in files:
        stat = file.stat()
        whole.update(f"{stat.st_size} {stat.st_mtime_ns}\n".encode())
    return whole.hexdigest()


def of_weights(module: torch.nn.Module) -> str:
    """Of all parameters and buffers, by their names."""
    whole = _hash(b"")
    for name, value in sorted(module.state_dict().items()):
        whole.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        whole.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data if value.dim() else b"")
        whole.update(str(value.item()).encode() if not value.dim() else b"")
    return whole.hexdigest()


def of_values(values: Mapping[str, Any]) -> str:
    """Of plain values."""
    return _hash(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _hash(start: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(start, digest_size=16)
