"""Images/s that are scored, from bytes to probabilities: our engine against the same model in eager torch, f32.

The peer is torch as it comes, with images as torch lays them out, (n, 3, H, W) contiguous; beside it torch with the
channels innermost, which is how our own models run and quicker. Both sides have every core, and torch also a turn with
one thread, which is its better one on a busy machine; its better one counts. The weights are random, so that
probabilities are near a half, where they differ the most.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from measure import Row, main, paired_ratio, say, take_turns
from plaudit.reward_models.artifact import Sample
from plaudit.reward_models.classifiers import CameraEncoder
from plaudit.rewards import RewardArtifact, RewardEngine, build_reward_model
from plaudit.utils.threads import cores

MODELS: dict[str, tuple[dict[str, Any], float | None]] = {
    "ResNet-10 at 64×64": ({"freeze_encoder": False}, 2.0),
    "ResNet-18 at 128×128": ({"model_type": "resnet_reward"}, 2.0),
    "default model at 64×64": ({"width": 16, "stem": "5x5", "pooling": "conv", "freeze_encoder": False}, None),
}
"""Name to `reward.model`, and the target at the largest batch."""

BATCHES = (1, 64, 256)
PEER = "eager torch"


def pictures(count: int, size: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Noise of a coarse grain."""
    coarse = np.random.default_rng(0).integers(0, 256, (count, size[0] // 8, size[1] // 8, 3), np.uint8)
    return coarse.repeat(8, 1).repeat(8, 2)


def speed(score: Callable[[Any], Any], frames: Any, seconds: float, threads: int) -> Callable[[], float]:
    """Images/s over a stretch of time, with so many threads of torch."""

    def run() -> float:
        torch.set_num_threads(threads)
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds or not done:
            score(frames)
            done += len(frames)
        return done / (time.perf_counter() - started)

    return run


def eager(artifact: RewardArtifact, layout: torch.memory_format) -> Callable[[torch.Tensor], torch.Tensor]:
    """The peer: from the same bytes to the same probabilities."""
    model, calibration = artifact.model(), artifact.calibration
    for module in model.modules():
        if isinstance(module, CameraEncoder):
            module.layout = layout

    def score(frames: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits = model(frames).mean(1)
            return torch.sigmoid(logits / calibration.temperature + calibration.bias)

    return score


def measure(name: str, block: Mapping[str, Any], target: float | None, quick: bool) -> list[Row]:
    """The rows of one model."""
    torch.manual_seed(0)
    model = build_reward_model(block, pretrained=False).eval()
    rounds, seconds = (3, 0.5) if quick else (9, 1.0)
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        sample = Sample({model.cameras[0]: pictures(16, model.image_size)}, np.zeros(16, np.int8))
        artifact = RewardArtifact.create(Path(folder) / "artifact", model, sample=sample)
        engine = RewardEngine(artifact)
        assert engine.backend == "onnx"
        peer, innermost = eager(artifact, torch.contiguous_format), eager(artifact, torch.channels_last)
        every = pictures(max(BATCHES), model.image_size)
        exact = peer(torch.from_numpy(every)).numpy()
        difference = float(np.abs(engine.score(every).probabilities - exact).max())
        rows = []
        for batch in BATCHES:
            say(f"{name}, batch {batch}: images/s")
            frames = every[:batch]
            tensor = torch.from_numpy(frames)
            runs = {
                "plaudit": speed(engine.score, frames, seconds, 1),
                "torch": speed(peer, tensor, seconds, cores()),
                "torch, one thread": speed(peer, tensor, seconds, 1),
                "torch, channels innermost": speed(innermost, tensor, seconds, cores()),
            }
            for run in runs.values():  # Once for nothing: memory is asked for, and kernels are picked.
                run()
            found = take_turns(runs, rounds)
            middle = {who: statistics.median(values) for who, values in found.items()}
            best = max(("torch", "torch, one thread"), key=lambda who: middle[who])
            goal = target if batch == max(BATCHES) else None
            ratio = paired_ratio(found["plaudit"], found[best])
            note = f"{engine.threads} threads; torch with {'1' if 'one' in best else cores()}"
            what = f"{name}, batch {batch}"
            rows.append(Row(what, middle["plaudit"], "images/s", PEER, middle[best], ratio, goal, note=note))
            also = "torch, channels innermost"
            ratio = paired_ratio(found["plaudit"], found[also])
            rows.append(Row(what, middle["plaudit"], "images/s", also, middle[also], ratio))
    limit = "largest difference in probability"
    return [*rows, Row(f"{name}, {limit}", difference, "", target=1e-3, lower_is_better=True)]


def benchmark(quick: bool) -> list[Row]:
    """Each model in turn."""
    return [row for name, (block, target) in MODELS.items() for row in measure(name, block, target, quick)]


if __name__ == "__main__":
    main(benchmark)
