"""Peak memory of a fit, for a small data set and one of 100,000 frames: it must not grow with the data.

The episodes are synthetic, 50 frames of 64×64 each; what they show does not matter here. The fit is the default one,
cut short: every frame of the validation split is scored all the same, and training frames come from all over the data.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from measure import Row, main, say
from plaudit.data import Episode, EpisodeStore

LENGTH, SIZE = 50, 64
MIB = 2**20
STEPS = 150


def make(place: Path, frames: int) -> None:
    """A store of coarse noise, in which successes have a bright corner."""
    store, random = EpisodeStore.create(place), np.random.default_rng(0)
    for number in range(frames // LENGTH):
        pixels = random.integers(0, 200, (LENGTH, SIZE // 8, SIZE // 8, 3), np.uint8).repeat(8, 1).repeat(8, 2)
        labels = np.zeros(LENGTH, np.int8)
        if number % 2:
            labels[LENGTH // 2 :] = 1
            pixels[LENGTH // 2 :, :16, :16] = 255
        index = np.arange(1, LENGTH + 1, dtype=np.int32)
        store.add([Episode(f"e{number:06d}", {"base_camera": pixels}, labels, index, LENGTH, label_source="rule")])


def peak(folder: Path, frames: int) -> float:
    """Bytes that a fit to so many frames takes at most, in a process of its own."""
    data = folder / f"data_{frames}"
    say(f"{frames:,} frames")
    make(data, frames)
    words = [f"reward.training.{key}" for key in (f"max_steps={STEPS}", "figures=false", f"save_dir={folder / 'out'}")]
    child = (
        "import json, resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
        "print(json.dumps(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))"
    )
    command = [sys.executable, "-m", "plaudit", "fit", str(data), *words, "--quiet", "--json"]
    found = subprocess.run([sys.executable, "-c", child, *command], check=True, stdout=subprocess.PIPE, text=True)
    unit = 1 if sys.platform == "darwin" else 1024
    return float(json.loads(found.stdout)) * unit


def benchmark(quick: bool) -> list[Row]:
    """Both sizes."""
    small, large = 10_000, 20_000 if quick else 100_000
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as name:
        first, second = (peak(Path(name), frames) for frames in (small, large))
    note = f"{first / MIB:,.0f} MiB for {small:,} frames; the kernel's count, with pages of files that it may drop"
    title = f"memory of a fit to {large:,} frames, peak"
    return [Row(title, second / MIB, "MiB", target=2048, lower_is_better=True, note=note)]


if __name__ == "__main__":
    main(benchmark)
