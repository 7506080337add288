"""`ddp` and `fsdp` in two processes against `simple`: the same validation metrics, and files that are interchangeable.

All fit the same episodes of PushCube with the same settings and seeds, every process with one thread. What the guides
alone change is the noise that the backends' medians have to agree within. Then the last checkpoint of each is taken up
by every other: the artifact that this ends with must be that of its writer.

    python benchmarks/backends.py [--quick]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from measure import Row, main, say
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.inference.engine import RewardEngine
from plaudit.utils.threads import wait_quietly

BACKENDS = ("simple", "ddp", "fsdp")
METRICS = ("log_loss", "balanced_accuracy", "roc_auc", "average_precision")
TRAINING = "reward.training"
COLLECTION = "reward.data_collection"


def collect(place: Path, each: int) -> None:
    """Episodes of PushCube, as many positive as negative."""
    from plaudit.pipelines import collect, load

    sizes = [f"{COLLECTION}.max_positive_trajectories={each}", f"{COLLECTION}.max_negative_trajectories={each}"]
    collect(load("push_cube", [f"{COLLECTION}.save_dir={place}", *sizes]), quiet=True)


def fit(folder: Path, backend: str, seed: int, steps: int) -> dict[str, Any]:
    """What a fit with one backend and seed ends with."""
    from plaudit.pipelines import fit, load_fit

    words = [
        f"{TRAINING}.training_backend={backend}",
        f"{TRAINING}.max_steps={steps}",
        f"{TRAINING}.num_epochs=1000",
        f"{TRAINING}.global_batch_size=64",
        f"{TRAINING}.val_check_interval=50",
        f"{TRAINING}.save_dir={folder / f'{backend}_{seed}'}",
        f"{TRAINING}.cache_dir={folder / 'cache'}",
        f"{TRAINING}.figures=false",
        f"runtime.seed={seed}",
        "runtime.threads=1",
    ]
    return fit(load_fit(None, words, data=folder / "data"), quiet=True)


def exchange(folder: Path, writer: str, reader: str) -> str:
    """The id of the artifact that one backend makes of another's last checkpoint."""
    from plaudit.pipelines import resume_fit

    place = folder / f"{writer}_read_by_{reader}"
    shutil.copytree(folder / f"{writer}_0", place)
    shutil.rmtree(place / "best_model")
    words = [f"{TRAINING}.training_backend={reader}", f"{TRAINING}.save_dir={place}"]
    return str(resume_fit(place, words, quiet=True)["artifact_id"])


def difference(artifact: RewardArtifact) -> float:
    """By how much the engine's probabilities of an artifact's sample differ from what its model says in torch."""
    sample = artifact.sample
    assert sample is not None
    scored = [
        RewardEngine(artifact, backend=backend).score(sample.frames).probabilities for backend in ("onnx", "torch")
    ]
    return float(abs(scored[0] - scored[1]).max())


def benchmark(quick: bool) -> list[Row]:
    """Collects, fits with every backend and seed, and hands the checkpoints around."""
    each, steps, seeds = (40, 60, 2) if quick else (150, 200, 3)
    wait_quietly()
    with (
        tempfile.TemporaryDirectory(prefix="plaudit-bench-") as name,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        folder = Path(name)
        say(f"collecting {2 * each} episodes")
        collect(folder / "data", each)
        found: dict[str, list[dict[str, Any]]] = {backend: [] for backend in BACKENDS}
        for seed in range(seeds):
            for backend in BACKENDS:
                result = fit(folder, backend, seed, steps)
                found[backend].append(result)
                numbers = ", ".join(f"{metric} {result['validation'][metric]:.4f}" for metric in METRICS)
                say(f"  seed {seed}, {backend}: {numbers}, {result['train_seconds']:.1f} s")
        rows = [row for metric in METRICS for row in _rows(metric, found)]
        return rows + [row for writer in BACKENDS for row in _exchanged(folder, writer, found[writer][0])]


def _rows(metric: str, found: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """Every backend's median beside that of simple, from which it may differ by what the seeds make of it there."""
    values = {backend: [result["validation"][metric] for result in results] for backend, results in found.items()}
    noise = max(values["simple"]) - min(values["simple"])
    middle = statistics.median(values["simple"])
    rows = []
    for backend, seen in values.items():
        gap = abs(statistics.median(seen) - middle)
        note = f"{backend}: median {statistics.median(seen):.4f}, {min(seen):.4f} to {max(seen):.4f} over seeds"
        title = f"{metric}: median of {backend}, away from simple's"
        # Where all seeds agree, a frame in a thousand is nothing.
        rows.append(Row(title, gap, "", target=max(noise, 0.001), lower_is_better=True, note=note))
    return rows


def _exchanged(folder: Path, writer: str, result: dict[str, Any]) -> list[Row]:
    rows = []
    for reader in BACKENDS:
        same = exchange(folder, writer, reader) == result["artifact_id"]
        note = "1: the same weights, calibration and threshold, bit for bit"
        rows.append(Row(f"checkpoint of {writer}, taken up by {reader}", float(same), "", target=1.0, note=note))
        say(f"  {writer} taken up by {reader}: {'the same artifact' if same else 'ANOTHER artifact'}")
    gap = difference(RewardArtifact.load(result["artifact"]))
    note = "largest difference in probability on its sample, ONNX Runtime against torch"
    rows.append(Row(f"artifact of {writer}, scored", gap, "", target=1e-3, lower_is_better=True, note=note))
    return rows


if __name__ == "__main__":
    main(benchmark)
