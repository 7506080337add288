"""A whole fit with a frozen encoder: with cached features, and with the encoder run in every epoch as RLinf does it.

Both are the same recipe on the same episodes of PushCube, at the 128×128 pixels of RLinf's real-world guide:
EfficientNet-lite0 with its ImageNet weights, a small convolutional head, 30 epochs, no augmentation. Time is from
opening the data to the written artifact, without figures. The default model, trained end to end, is measured beside
them.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import Row, main, say
from plaudit.utils.threads import wait_quietly

EPOCHS = 30
TRAINING = "reward.training"
FROZEN = [
    "reward.model.model_type=resnet_reward",
    "reward.model.arch=efficientnet_lite0",
    "reward.model.pooling=conv",
    "reward.model.freeze_encoder=true",
    f"{TRAINING}.augment.enabled=false",
    f"{TRAINING}.optim.lr=1e-3",
]


def collect(place: Path, each: int) -> None:
    """Episodes of PushCube, 128×128."""
    from plaudit.pipelines import collect, load

    keys = "reward.data_collection"
    sizes = [f"{keys}.max_positive_trajectories={each}", f"{keys}.max_negative_trajectories={each}"]
    collect(load("push_cube", [f"{keys}.save_dir={place}", f"{keys}.image_size=[3,128,128]", *sizes]), quiet=True)


def fit(folder: Path, name: str, *words: str) -> tuple[float, dict[str, Any]]:
    """Seconds of a whole fit, and its result."""
    from plaudit.pipelines import fit, load_fit

    places = [f"{TRAINING}.save_dir={folder / name}", f"{TRAINING}.cache_dir={folder / 'cache'}"]
    config = load_fit(None, [*words, *places, f"{TRAINING}.figures=false"], data=folder / "data")
    started = time.perf_counter()
    result = fit(config, quiet=True)
    return time.perf_counter() - started, result


def benchmark(quick: bool) -> list[Row]:
    """Collects, then fits four times."""
    each, epochs = (30, 10) if quick else (80, EPOCHS)
    wait_quietly()
    length = f"{TRAINING}.num_epochs={epochs}"
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name)
        say(f"collecting {2 * each} episodes")
        collect(folder / "data", each)
        runs = {}
        for what, words in {
            "cached": [*FROZEN, length],
            "found": [*FROZEN, length],
            "every epoch": [*FROZEN, length, f"{TRAINING}.feature_cache=false"],
            "default": [],
        }.items():
            runs[what] = fit(folder, what.replace(" ", "_"), *words)
            say(f"  {what}: {runs[what][0]:.1f} s")
    return _rows(runs, epochs)


def _rows(runs: dict[str, tuple[float, dict[str, Any]]], epochs: int) -> list[Row]:
    peer, theirs = runs["every epoch"]
    words = {name: _quality(result) for name, (_, result) in runs.items()}
    rows = []
    for what, name, target in (("features kept", "cached", 20.0), ("features found again", "found", None)):
        seconds = runs[name][0]
        note = f"{seconds:.1f} s ({words[name]}) against {peer:.1f} s ({words['every epoch']})"
        aim = target if epochs == EPOCHS else None
        against = "encoder in every epoch"
        title = f"fit, {epochs} epochs, {what}"
        rows.append(Row(title, 3600 / seconds, "fits/h", against, 3600 / peer, peer / seconds, aim, note=note))
    gap = abs(runs["cached"][1]["metrics"]["roc_auc"] - theirs["metrics"]["roc_auc"])
    note = "what keeping features in float16 changes"
    rows.append(Row("difference in area under the ROC curve", gap, "", target=0.005, lower_is_better=True, note=note))
    rows.append(Row("fit, the default model", runs["default"][0], "s", note=words["default"]))
    return rows


def _quality(result: dict[str, Any]) -> str:
    metrics = result["metrics"]
    return f"AUC {metrics['roc_auc']:.4f}, balanced accuracy {metrics['balanced_accuracy']:.1%}"


if __name__ == "__main__":
    main(benchmark)
