"""The files of a reward artifact: what is in them, how they are read, and how it shows that one is damaged.

artifact.json               what the artifact is, in words and numbers
model.safetensors           the weights
validation_scores.npz       what the threshold was picked on, so that another can be
test_scores.npz             what the metrics were measured on
sample.safetensors          a few validation frames, by which other backends are compared with torch
figures/                    for people
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays

import plaudit
from plaudit.config.convert import fill, to_dict
from plaudit.episodes.episode import Frames
from plaudit.errors import CheckpointError, PlauditError
from plaudit.rewards.calibration import Calibration
from plaudit.rewards.classifiers import CameraEncoder
from plaudit.rewards.firing import Decision, RewardMode
from plaudit.rewards.model import RewardModel
from plaudit.rewards.threshold import Choice

SCHEMA = 1
"""Of the files. A reader refuses newer ones."""

DOCUMENT = "artifact.json"
WEIGHTS = "model.safetensors"
VALIDATION = "validation_scores.npz"
TEST = "test_scores.npz"
SAMPLE = "sample.safetensors"
FIGURES = "figures"

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Sample:
    """A few labelled validation frames.

    Attributes:
        frames: Camera to uint8 (n, H, W, 3).
        labels: int8 (n,): 1 or 0.
    """

    frames: Mapping[str, Frames]
    labels: NDArray[np.int8]

    def encode(self) -> bytes:
        """The content of its file."""
        arrays = {f"frames.{camera}": np.ascontiguousarray(pixels) for camera, pixels in self.frames.items()}
        content: bytes = write_arrays({**arrays, "labels": self.labels})
        return content

    @classmethod
    def decode(cls, content: bytes) -> Sample:
        """What `encode` wrote."""
        arrays = read_arrays(content)
        labels = arrays.pop("labels")
        return cls({name.removeprefix("frames."): pixels for name, pixels in arrays.items()}, labels)


@dataclass(frozen=True)
class FileEntry:
    """How long a file is, and the SHA-256 of what is in it."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ThresholdEntry:
    """A `Choice` of threshold, with what follows from it written out for readers."""

    value: float
    hold: int
    mode: RewardMode
    release: float | None
    target: float
    false_positives: int
    episodes: int
    false_positive_rate: float | None
    bounds: tuple[float, float]
    recall: float | None
    supported: bool
    note: str

    @classmethod
    def of(cls, choice: Choice) -> ThresholdEntry:
        """A choice to be written."""
        decision = choice.decision
        return cls(
            value=decision.threshold,
            hold=decision.hold,
            mode=decision.mode,
            release=decision.release,
            target=choice.target,
            false_positives=choice.false_positives,
            episodes=choice.episodes,
            false_positive_rate=_number(choice.false_positive_rate),
            bounds=choice.bounds,
            recall=_number(choice.recall),
            supported=choice.supported,
            note=choice.note,
        )

    def choice(self) -> Choice:
        """The choice that was written."""
        recall = math.nan if self.recall is None else self.recall
        decision = Decision(self.value, self.hold, self.mode, self.release)
        return Choice(decision, self.target, self.false_positives, self.episodes, recall, self.note)


@dataclass(frozen=True)
class Document:
    """`artifact.json`.

    Attributes:
        schema: Version of this layout.
        id: Hash of all that decides what the model says and when it fires.
        model: The block `reward.model`, complete.
        normalisation: What is done to pixels before the network: divided by `scale`, less `mean`, divided by `std`.
        labels: What the labels 1, 0 and -1 stand for, and frames by who gave them.
        calibration: From logits to probabilities.
        threshold: `None` where none was chosen, and it is 0.5.
        measured_on: The split that `metrics` are from; empty where there are none.
        metrics: As `evaluate` gives them; null where a number could not be measured.
        data: What the model was fitted to.
        training: How it went.
        versions: Of the programs that made it.
        files: The other files.
    """

    schema: int
    id: str
    model: dict[str, Any]
    normalisation: dict[str, Any]
    labels: dict[str, Any]
    calibration: Calibration
    threshold: ThresholdEntry | None
    measured_on: str
    metrics: dict[str, Any]
    data: dict[str, Any]
    training: dict[str, Any]
    versions: dict[str, str]
    files: dict[str, FileEntry]

    def true_id(self) -> str:
        """The id that its content has."""
        model_id = hash_of({"model": self.model, "weights": self.files[WEIGHTS].sha256})
        decision = Decision() if self.threshold is None else self.threshold.choice().decision
        return artifact_id(model_id, self.calibration, decision)

    def write(self, folder: Path) -> None:
        """Writes it; what is not a number becomes null, which every reader of JSON understands."""
        text = json.dumps(without_nan(to_dict(self)), indent=2, allow_nan=False)
        (folder / DOCUMENT).write_text(text + "\n", encoding="utf-8")


def artifact_id(model_id: str, calibration: Calibration, decision: Decision) -> str:
    """Of a model with its calibration and decision."""
    return hash_of({"model": model_id, "calibration": to_dict(calibration), "decision": to_dict(decision)})


def hash_of(values: Mapping[str, Any]) -> str:
    """Of plain values, by their names; 32 characters."""
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def entry_of(content: bytes) -> FileEntry:
    """The entry of a file with this content."""
    return FileEntry(len(content), hashlib.sha256(content).hexdigest())


def read_document(folder: Path) -> Document:
    """Reads `artifact.json`; what is wrong with it is a `CheckpointError` that names the file and the field."""
    file = folder / DOCUMENT
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"the reward artifact '{folder}' is not whole: it lacks {DOCUMENT}.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: is damaged, or cannot be read: {error}. Restore it, or fit again.") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int):
        raise CheckpointError(f"{file}: is not of a reward artifact: it has no field 'schema'.")
    if schema > SCHEMA:
        raise CheckpointError(f"{file}: schema is {schema}, and this Plaudit reads up to {SCHEMA}; upgrade it.")
    document = _explained(lambda: fill(Document, data, "", str(file)), file)
    if WEIGHTS not in document.files:
        raise CheckpointError(f"{file}: files: lacks '{WEIGHTS}'.")
    if document.id != _explained(document.true_id, file):
        raise CheckpointError(
            f"{file}: id does not match the rest: model, calibration, threshold or files were changed after it was "
            "written. Restore it; for another threshold use reward_threshold, or RewardArtifact.rechoose."
        )
    return replace(document, metrics=_with_nan(document.metrics))


def _explained(read: Callable[[], T], file: Path) -> T:
    """What is wrong with the content is an error of the file, not of a config."""
    try:
        return read()
    except CheckpointError:
        raise
    except PlauditError as error:
        raise CheckpointError(str(error) if str(error).startswith(str(file)) else f"{file}: {error}") from None


def read_checked(folder: Path, name: str, entry: FileEntry) -> bytes:
    """What is in a file, if it is what was written."""
    file = folder / name
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}). Restore it, or fit again.") from None
    if len(content) != entry.bytes:
        raise CheckpointError(
            f"{file}: is damaged: {len(content):,} bytes, but {entry.bytes:,} were written. Restore it, or fit again."
        )
    if entry_of(content) != entry:
        raise CheckpointError(f"{file}: is damaged: sha256 is not the one in {DOCUMENT}. Restore it, or fit again.")
    return content


def normalisation(model: RewardModel) -> dict[str, Any]:
    """What a model does to pixels before its network; a model of the user's own may do more."""
    encoder = model.encoder
    if not isinstance(encoder, CameraEncoder) or not encoder.normalize:
        return {"scale": 255.0, "mean": None, "std": None}
    net = encoder.encoders()[0]
    return {"scale": 255.0, "mean": list(net.mean), "std": list(net.std)}


def versions() -> dict[str, str]:
    """Of the programs that a model's scores depend on."""
    return {
        "plaudit": plaudit.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
    }


def without_nan(value: Any) -> Any:
    """Plain data with null for what is not a number."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return _number(value) if isinstance(value, float) else value


def _with_nan(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
