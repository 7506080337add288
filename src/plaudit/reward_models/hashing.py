"""Fingerprints of data sets, weights and settings: equal only if the content is the same."""

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
    """Hash the membership of a data set: episodes, frames in their order, and labels."""
    ids = [summary.id for summary in dataset.source.summaries()]
    # Episodes are hashed by id, because new episodes may have changed the numbers.
    numbers, positions = np.unique(dataset.episodes, return_inverse=True)
    digest = _hash("\n".join(ids[number] for number in numbers).encode())
    for array in (positions, dataset.rows, dataset.labels):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def of_pictures(dataset: FrameDataset) -> str:
    """Hash the frames: as `of_members`, and the sizes and modification times of their files."""
    digest = _hash(of_members(dataset).encode())
    digest.update(json.dumps({camera: list(size) for camera, size in dataset.sizes.items()}).encode())

    # A store has one file per episode; only those in use count.
    source = dataset.source
    files = [source.path]
    if isinstance(source, EpisodeStore):
        files = [source.file(source.ids[number]) for number in np.unique(dataset.episodes)]
    for file in files:
        stat = file.stat()
        digest.update(f"{stat.st_size} {stat.st_mtime_ns}\n".encode())

    return digest.hexdigest()


def of_weights(module: torch.nn.Module) -> str:
    """Hash all parameters and buffers, sorted by name."""
    digest = _hash(b"")
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        # A scalar has no bytes view, so its text is hashed.
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data if value.dim() else b"")
        digest.update(str(value.item()).encode() if not value.dim() else b"")
    return digest.hexdigest()


def of_values(values: Mapping[str, Any]) -> str:
    """Hash plain values, sorted by key."""
    return _hash(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _hash(start: bytes) -> hashlib.blake2b:
    """Start a 16-byte BLAKE2b hash with some bytes."""
    return hashlib.blake2b(start, digest_size=16)
