"""Random single frames and their bytes on disk: our store, against a loader that opens a whole `.npy` for each sample.

Both hold the same frames. A `.npy` file is a trajectory: a pickled dict of float32 (T, C, H, W) pictures and labels, of
which a sample takes one. Everything is in the page cache on both sides, so that no disk is measured.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from measure import Row, main, paired_ratio, say, take_turns
from plaudit.data import Episode, EpisodeStore
from plaudit.data.dataset import FrameDataset
from plaudit.utils.threads import claim_threads

EPISODES, LENGTH, SIZE = 200, 50, 64
CAMERA = "base_camera"
BATCH = 256
PEER = "a whole .npy for each"


def make(folder: Path, episodes: int) -> tuple[Path, Path]:
    """The same episodes as a store and as a folder of `.npy` files."""
    random = np.random.default_rng(0)
    store = EpisodeStore.create(folder / "store")
    peer = folder / "npy"
    peer.mkdir()
    for number in range(episodes):
        pixels = random.integers(0, 256, (LENGTH, SIZE, SIZE, 3), np.uint8)
        labels = (np.arange(LENGTH) > random.integers(LENGTH)).astype(np.int8)
        index = np.arange(1, LENGTH + 1, dtype=np.int32)
        store.add([Episode(f"{number:06d}", {CAMERA: pixels}, labels, index, LENGTH, bool(labels.any()), "simulator")])
        floats = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), np.float32) / 255
        trajectory = {"images": {CAMERA: floats}, "labels": labels.astype(np.float32)}
        np.save(peer / f"{number:06d}.npy", np.array(trajectory, dtype=object), allow_pickle=True)
    return store.path, peer


def size(folder: Path) -> int:
    """Bytes of all files in a folder, whatever they are for."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def seconds(read: Callable[[list[int]], object], picks: NDArray[np.int64], batch: int) -> Callable[[], float]:
    """Seconds a frame, where `read` gets so many of the picked frames at a time."""

    def run() -> float:
        started = time.perf_counter()
        for start in range(0, len(picks), batch):
            read(picks[start : start + batch].tolist())
        return (time.perf_counter() - started) / len(picks)

    return run


def from_npy(files: list[Path]) -> Callable[[list[int]], torch.Tensor]:
    """The peer: opens a whole trajectory for each sample, and stacks the samples."""

    def read(picks: list[int]) -> torch.Tensor:
        trajectories = (np.load(files[pick // LENGTH], allow_pickle=True).item() for pick in picks)
        frames = [
            torch.from_numpy(trajectory["images"][CAMERA][pick % LENGTH])
            for trajectory, pick in zip(trajectories, picks, strict=True)
        ]
        return torch.stack(frames)

    return read


def one_by_one(dataset: FrameDataset) -> Callable[[list[int]], None]:
    """Ours, an item at a time."""

    def read(picks: list[int]) -> None:
        for pick in picks:
            dataset[pick]

    return read


def benchmark(quick: bool) -> list[Row]:
    """Writes both layouts, then reads the same random frames from them in turns."""
    claim_threads()
    episodes, rounds = (50, 3) if quick else (EPISODES, 9)
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        say(f"writing {episodes} episodes of {LENGTH} frames, {SIZE}×{SIZE}, in both layouts")
        store, peer = make(Path(folder), episodes)
        files, dataset = sorted(peer.iterdir()), FrameDataset(EpisodeStore(store))
        picks = np.random.default_rng(1).integers(0, len(dataset), 20 * BATCH)
        whole = from_npy(files)
        ours, theirs = dataset.batch(picks[:8])["frames"][CAMERA], whole(picks[:8].tolist())
        assert torch.equal(ours.permute(0, 3, 1, 2), (theirs * 255).round().byte()), "the layouts hold different frames"
        runs = {
            "plaudit": seconds(dataset.batch, picks, BATCH),
            "npy": seconds(whole, picks[:BATCH], BATCH),
            "one by one": seconds(one_by_one(dataset), picks, BATCH),
        }
        for run in runs.values():  # Once for nothing: fills the page cache.
            run()
        say("seconds a random frame")
        times = take_turns(runs, rounds)
        size_ours, size_theirs = (size(path) / len(dataset) for path in (store, peer))
    return _rows(times, size_ours, size_theirs)


def _rows(times: dict[str, list[float]], size_ours: float, size_theirs: float) -> list[Row]:
    speed = {name: 1 / statistics.median(found) for name, found in times.items()}
    rows = []
    for what, name, target in ((f"batches of {BATCH}", "plaudit", 50.0), ("one by one", "one by one", None)):
        ratio = paired_ratio(times["npy"], times[name])
        note = f"{1e6 / speed[name]:.1f} µs against {1e6 / speed['npy']:.0f} µs a frame; page cache warm on both sides"
        rows.append(
            Row(f"random frames, {what}", speed[name], "frames/s", PEER, speed["npy"], ratio, target, note=note)
        )
    pixels = SIZE * SIZE * 3
    note = "what is read for it; with labels on their side, as they lie between the frames of one pickle"
    rows.append(Row("a frame", pixels, "bytes", PEER, size_theirs, pixels / size_theirs, 0.25, True, note))
    note = "of the whole data set: ours also has headers, instants, checksums, an index and a manifest"
    whole = size_ours / size_theirs
    rows.append(Row("a frame's share of the disk", size_ours, "bytes", PEER, size_theirs, whole, None, True, note))
    return rows


if __name__ == "__main__":
    main(benchmark)
