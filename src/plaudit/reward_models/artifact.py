"""The reward artifact: one folder with everything needed to score a frame the same way everywhere."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors

import plaudit
from plaudit.compat.checkpoints import find_checkpoint, load_foreign
from plaudit.config.structured import fill, to_dict
from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN, Frames
from plaudit.errors import CheckpointError, DataError, NonFiniteError, OutputError, PlauditError
from plaudit.reward_models.classifiers import CameraEncoder
from plaudit.reward_models.config import EncodedConfig, RewardModelConfig
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.metrics import Metrics, evaluate
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.success_decision import Decision, RewardMode
from plaudit.reward_models.evaluation.threshold import TARGET, Choice, pick_threshold
from plaudit.reward_models.model import RewardModel, build_reward_model, model_config
from plaudit.reward_models.training.trainer import write_whole
from plaudit.utils.atomic_io import whole_folder
from plaudit.vision.pretrained import load_weights, read_checkpoint, weights_of

logger = logging.getLogger("plaudit")

SCHEMA = 1
"""Version of the file format. Newer versions are refused."""

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
        """Return the content of the sample's file."""
        arrays = {f"frames.{camera}": np.ascontiguousarray(pixels) for camera, pixels in self.frames.items()}
        content: bytes = write_arrays({**arrays, "labels": self.labels})
        return content

    @classmethod
    def decode(cls, content: bytes) -> Sample:
        """Read the content that `encode` returned."""
        arrays = read_arrays(content)
        labels = arrays.pop("labels")
        return cls({name.removeprefix("frames."): pixels for name, pixels in arrays.items()}, labels)


@dataclass(frozen=True)
class FileEntry:
    """Size of a file in bytes, and the SHA-256 of its content."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class ThresholdEntry:
    """A `Choice` of threshold as stored, with its derived values written out for readers."""

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
        """Create the entry of a choice."""
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
        """Return the choice that the entry was created from."""
        recall = math.nan if self.recall is None else self.recall
        decision = Decision(self.value, self.hold, self.mode, self.release)
        return Choice(decision, self.target, self.false_positives, self.episodes, recall, self.note)


@dataclass(frozen=True)
class Document:
    """`artifact.json`.

    Attributes:
        schema: Version of this layout.
        id: Hash of everything that determines the model's scores and decisions.
        model: The block `reward.model`, complete.
        normalisation: Pixels are divided by `scale`, reduced by `mean` and divided by `std` before the network.
        labels: Meaning of the labels 1, 0 and -1, and number of frames by label source.
        calibration: Maps logits to probabilities.
        threshold: `None` if none was chosen; the threshold is then 0.5.
        measured_on: Split of the `metrics`; empty if there are none.
        metrics: Result of `evaluate`; null if a metric could not be measured.
        data: Description of the training data.
        training: Summary of the training.
        versions: Versions of the programs that created the artifact.
        files: Size and hash of the other files.
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
        """Compute the id from the content."""
        model_id = hash_of({"model": self.model, "weights": self.files[WEIGHTS].sha256})
        decision = Decision() if self.threshold is None else self.threshold.choice().decision
        return artifact_id(model_id, self.calibration, decision)

    def write(self, folder: Path) -> None:
        """Write `artifact.json`; NaN and infinity become null, which every JSON reader understands."""
        text = json.dumps(without_nan(to_dict(self)), indent=2, allow_nan=False)
        (folder / DOCUMENT).write_text(text + "\n", encoding="utf-8")


def artifact_id(model_id: str, calibration: Calibration, decision: Decision) -> str:
    """Hash a model's id with its calibration and decision."""
    return hash_of({"model": model_id, "calibration": to_dict(calibration), "decision": to_dict(decision)})


def hash_of(values: Mapping[str, Any]) -> str:
    """Hash plain values, sorted by key, to 32 characters."""
    text = json.dumps(values, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def entry_of(content: bytes) -> FileEntry:
    """Return the entry of a file with this content."""
    return FileEntry(len(content), hashlib.sha256(content).hexdigest())


def read_document(folder: Path) -> Document:
    """Read `artifact.json`.

    An invalid document raises a `CheckpointError` that names the file and the field.
    """
    file = folder / DOCUMENT
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"the reward artifact '{folder}' is not whole: it lacks {DOCUMENT}.") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: is damaged, or cannot be read: {error}. Restore it, or fit again.") from error

    # The version comes first: the fields of a newer one are unknown.
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int):
        raise CheckpointError(f"{file}: is not of a reward artifact: it has no field 'schema'.")
    if schema > SCHEMA:
        raise CheckpointError(f"{file}: schema is {schema}, and this Plaudit reads up to {SCHEMA}; upgrade it.")

    # The id detects edits made by hand.
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
    """Call `read` and turn its errors into a `CheckpointError` that names the file, not a config."""
    try:
        return read()
    except CheckpointError:
        raise
    except PlauditError as error:
        raise CheckpointError(str(error) if str(error).startswith(str(file)) else f"{file}: {error}") from None


def read_checked(folder: Path, name: str, entry: FileEntry) -> bytes:
    """Return the content of a file after checking its size and SHA-256."""
    file = folder / name
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}). Restore it, or fit again.") from None

    # The size is checked apart, because its message says more than that of a wrong hash.
    if len(content) != entry.bytes:
        raise CheckpointError(
            f"{file}: is damaged: {len(content):,} bytes, but {entry.bytes:,} were written. Restore it, or fit again."
        )
    if entry_of(content) != entry:
        raise CheckpointError(f"{file}: is damaged: sha256 is not the one in {DOCUMENT}. Restore it, or fit again.")
    return content


def normalisation(model: RewardModel) -> dict[str, Any]:
    """Return a model's pixel normalisation; a user-defined model may do more than this."""
    encoder = model.encoder
    if not isinstance(encoder, CameraEncoder) or not encoder.normalize:
        return {"scale": 255.0, "mean": None, "std": None}
    net = encoder.encoders()[0]
    return {"scale": 255.0, "mean": list(net.mean), "std": list(net.std)}


def versions() -> dict[str, str]:
    """Return the versions of the programs that a model's scores depend on."""
    return {
        "plaudit": plaudit.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "safetensors": safetensors.__version__,
    }


def without_nan(value: Any) -> Any:
    """Replace NaN and infinity in plain data by `None`."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(item) for item in value]
    return _number(value) if isinstance(value, float) else value


def _with_nan(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


BEST = "best_model"
"""Name of the artifact's folder within the folder of a fit."""

TRAINING_ONLY = ("use_pretrain", "pretrained_encoder_path", "freeze_encoder", "dropout")
"""Keys of `reward.model` that a finished model no longer depends on."""

LABELS = {
    "success": SUCCESS,
    "failure": FAILURE,
    "unknown": UNKNOWN,
    "meaning": "Whether the frame itself shows success; frame and label are the same instant. Frames labelled unknown "
    "are neither trained on nor scored.",
}


@dataclass(frozen=True, eq=False)
class RewardArtifact:
    """A fitted reward model with everything needed to score frames and assess the scores.

    Attributes:
        config: Complete config of the model.
        weights: Parameter name to tensor, on the CPU.
        calibration: Maps logits to probabilities.
        choice: Threshold and its target; `None` if none was chosen, as for models of other systems.
        validation: Scores of the validation split, used for the calibration and the threshold.
        test: Scores of the test split.
        sample: A few validation frames, used to compare other backends with torch.
        label_sources: Number of frames by label source.
        data: Training data: counts, settings of the split, a fingerprint. No paths.
        training: Training summary: steps, seconds, settings.
        measured_on: Split of the metrics, `test` or `validation`; empty if there are none.
        metrics: Result of `evaluate` at the chosen threshold.
        versions: Versions of the programs that created it.
        path: Folder, or for a model of another system the file, that it was read from or written to; `None` before.
    """

    config: RewardModelConfig
    weights: Mapping[str, torch.Tensor]
    calibration: Calibration = field(default_factory=Calibration)
    choice: Choice | None = None
    validation: Scores | None = None
    test: Scores | None = None
    sample: Sample | None = None
    label_sources: Mapping[str, int] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    measured_on: str = ""
    metrics: Metrics = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: RewardModel,
        *,
        calibration: Calibration | None = None,
        choice: Choice | None = None,
        validation: Scores | None = None,
        test: Scores | None = None,
        sample: Sample | None = None,
        label_sources: Mapping[str, int] | None = None,
        data: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        figures: Callable[[Path], object] | None = None,
    ) -> RewardArtifact:
        """Create the artifact of a fitted model and write it.

        The metrics are measured here, on the test scores, or on the validation scores if there is no test split.
        `path` is the artifact's folder: an existing artifact is replaced as a whole, anything else is not replaced.
        `figures` is called with the folder to draw figures into. The other arguments are the attributes.
        """
        # The path of the pretrained encoder is meaningless on other machines, and the weights are stored here.
        config = model.config
        if isinstance(config, EncodedConfig):
            config = replace(config, pretrained_encoder_path=None)

        artifact = cls(
            config=config,
            weights={name: value.detach().cpu().contiguous().clone() for name, value in model.state_dict().items()},
            calibration=calibration or Calibration(),
            choice=choice,
            validation=validation,
            test=test,
            sample=sample,
            label_sources=dict(label_sources or {}),
            data=without_nan(data or {}),
            training=without_nan(training or {}),
            versions=versions(),
        )
        return artifact._measured().save(path, figures)

    @classmethod
    def load(cls, path: str | Path, given: Mapping[str, Any] | None = None) -> RewardArtifact:
        """Read an artifact, or a reward model of another system, without running code from it.

        Args:
            path: The artifact's folder, the folder of the fit that made it, one of its `.pt` files, or a foreign
                checkpoint or its folder. If `X.pt` does not exist, the artifact `X` is read.
            given: Keys of `reward.model` that the user set; the model must match them.

        Raises:
            CheckpointError: Names the file and the field that is missing, damaged or different.
        """
        # An artifact, or the folder of the fit that created it.
        path = _resolve_artifact(Path(path))
        for folder in (path, path / BEST):
            if (folder / DOCUMENT).exists() or (folder / WEIGHTS).exists():
                artifact = cls._read(folder)
                artifact.check_against(given or {})
                return artifact
        if not path.exists():
            raise CheckpointError(
                f"there is no reward artifact and no checkpoint at '{path}'. Fit one with plaudit fit, or name another "
                "with reward.checkpoint_path."
            )

        # A `.pt` file of Plaudit, otherwise a checkpoint of another system.
        fields = load_single(find_checkpoint(path))
        if fields is not None:
            artifact = cls(**fields, path=path)
            artifact.check_against(given or {})
            return artifact
        model, notes = load_foreign(path, given)
        logger.info("%s: is a model of another system. %s", path, " ".join(notes))
        return cls(config=model.config, weights=model.state_dict(), path=path)

    @classmethod
    def _read(cls, folder: Path) -> RewardArtifact:
        """Read the folder of an artifact and check all of its files."""
        document = read_document(folder)
        contents = {name: read_checked(folder, name, entry) for name, entry in document.files.items()}
        try:
            config = model_config(document.model, "model")
        except PlauditError as error:
            raise CheckpointError(
                f"{folder / DOCUMENT}: {error} If it is a model of your own, import the module that registers it first."
            ) from None

        artifact = cls(
            config=config,
            weights=read_tensors(contents[WEIGHTS]),
            calibration=document.calibration,
            choice=None if document.threshold is None else document.threshold.choice(),
            validation=Scores.load(folder / VALIDATION) if VALIDATION in contents else None,
            test=Scores.load(folder / TEST) if TEST in contents else None,
            sample=Sample.decode(contents[SAMPLE]) if SAMPLE in contents else None,
            label_sources=document.labels.get("sources", {}),
            data=document.data,
            training=document.training,
            measured_on=document.measured_on,
            metrics=document.metrics,
            versions=document.versions,
            path=folder,
        )

        # Another normalisation of the pixels would change the scores silently.
        if normalisation(artifact.model()) != document.normalisation:
            raise CheckpointError(f"{folder / DOCUMENT}: normalisation is not what this Plaudit does; upgrade it.")
        return artifact

    @property
    def cameras(self) -> tuple[str, ...]:
        """Camera names, in the order of the model's inputs."""
        return self.config.image_keys

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) of each camera's image."""
        return self.config.image_size[1], self.config.image_size[2]

    @property
    def decision(self) -> Decision:
        """Rule that turns probabilities into decisions, with the threshold."""
        return Decision() if self.choice is None else self.choice.decision

    @cached_property
    def model_id(self) -> str:
        """Hash of config and weights, which determine the logits."""
        return hash_of({"model": to_dict(self.config), "weights": entry_of(self._content).sha256})

    @cached_property
    def id(self) -> str:
        """Hash of everything that determines scores and decisions; the same for every copy."""
        return artifact_id(self.model_id, self.calibration, self.decision)

    @cached_property
    def _content(self) -> bytes:
        content: bytes = write_tensors(dict(self.weights))
        return content

    def model(self) -> RewardModel:
        """Build a new torch model with the weights, in evaluation mode."""
        # The random initial weights must not advance the caller's random state.
        with torch.random.fork_rng(devices=[]):
            model = build_reward_model(self.config, pretrained=False)
        load_weights(model, self.weights, self.path or "the artifact")
        return model.eval()

    def rechoose(
        self, target: float | None = None, *, hold: int | None = None, mode: RewardMode | None = None
    ) -> RewardArtifact:
        """Pick another threshold on the stored validation scores, and measure the metrics again.

        Arguments that are `None` keep their value.

        Args:
            target: Rate of episodes with a false positive.
            hold: Number of consecutive frames that must be over the threshold.
            mode: Steps at which the model is evaluated.
        """
        if self.validation is None:
            raise DataError(
                f"the reward model '{self.path}' comes without validation scores, by which a threshold could be "
                "chosen; give reward_threshold instead."
            )

        choice = pick_threshold(
            self.validation,
            self.calibration,
            (TARGET if self.choice is None else self.choice.target) if target is None else target,
            hold=self.decision.hold if hold is None else hold,
            mode=mode or self.decision.mode,
        )
        return replace(self, choice=choice)._measured()

    def _measured(self) -> RewardArtifact:
        """Return a copy with the metrics of its test scores, or else of its validation scores."""
        scores = self.validation if self.test is None else self.test
        if scores is None:
            return replace(self, measured_on="", metrics={})
        measured_on = "validation" if self.test is None else "test"
        return replace(self, measured_on=measured_on, metrics=evaluate(scores, self.calibration, self.decision))

    def check_against(self, given: Mapping[str, Any], cameras: Mapping[str, tuple[int, int]] | None = None) -> None:
        """Raise a `CheckpointError` that names the first difference from a running config.

        Args:
            given: Keys of `reward.model` that the user set. If a key differs that matters only to training, such as
                `use_pretrain`, the artifact's value is used, with a warning.
            cameras: Available cameras to their (H, W); there may be more than the model needs.
        """
        name = f"the reward model '{self.path}'"
        own = to_dict(self.config)
        for key, value in to_dict(dict(given)).items():
            if key not in own or own[key] == value:
                continue
            if key not in TRAINING_ONLY:
                raise CheckpointError(
                    f"{key} is {value} in the config, but {own[key]} in {name}. Set it to that, or leave it out."
                )
            logger.warning("%s is %s in the config, but %s in %s, which is used.", key, value, own[key], name)

        # Every camera of the model must be available in the right size.
        if cameras is None:
            return
        for camera in self.cameras:
            if camera not in cameras:
                available = ", ".join(cameras) or "none"
                raise CheckpointError(f"image_keys: {name} needs the camera '{camera}', but there is {available}.")
            if tuple(cameras[camera]) != self.image_size:
                here, needed = ("×".join(map(str, size)) for size in (cameras[camera], self.image_size))
                raise CheckpointError(f"image_size: camera '{camera}' has {here} pixels, but {name} takes {needed}.")

    def save(self, path: str | Path, figures: Callable[[Path], object] | None = None) -> RewardArtifact:
        """Write the folder atomically and return a copy with its path; arguments as in `create`."""
        # Check first: nothing but an artifact or an empty folder is replaced, and no broken weights are written.
        path = Path(path)
        if path.exists() and not (path / DOCUMENT).exists() and not (path.is_dir() and not any(path.iterdir())):
            raise OutputError(f"'{path}' is there and is no reward artifact: it is not replaced. Choose another place.")
        broken = next((name for name, value in self.weights.items() if not bool(torch.isfinite(value).all())), None)
        if broken is not None:
            raise NonFiniteError(f"the weights '{broken}' have a NaN or an infinity in them: the fit has diverged.")

        with whole_folder(path) as folder:
            (folder / WEIGHTS).write_bytes(self._content)
            for name, scores in ((VALIDATION, self.validation), (TEST, self.test)):
                if scores is not None:
                    scores.save(folder / name)
            if self.sample is not None:
                (folder / SAMPLE).write_bytes(self.sample.encode())

            # The document lists the hashes of the files above, so it is written after them.
            self._document(folder).write(folder)
            if figures is not None:
                figures(folder / FIGURES)

        return replace(self, path=path)

    def _document(self, folder: Path) -> Document:
        """Return the document that describes the files in a folder."""
        files: dict[str, FileEntry] = {file.name: entry_of(file.read_bytes()) for file in sorted(folder.iterdir())}
        return Document(
            schema=SCHEMA,
            id=self.id,
            model=to_dict(self.config),
            normalisation=normalisation(self.model()),
            labels={**LABELS, "sources": dict(self.label_sources)},
            calibration=self.calibration,
            threshold=None if self.choice is None else ThresholdEntry.of(self.choice),
            measured_on=self.measured_on,
            metrics=dict(self.metrics),
            data=dict(self.data),
            training=dict(self.training),
            versions=dict(self.versions),
            files=files,
        )


def _resolve_artifact(path: Path) -> Path:
    """Return the artifact's folder for a file in it, or for a missing `.pt` file of the same name."""
    if path.is_file() and (path.parent / DOCUMENT).exists():
        return path.parent
    folder = path.with_suffix("")
    if path.suffix == ".pt" and not path.exists() and (folder / DOCUMENT).exists():
        logger.info("there is no '%s'; the reward artifact '%s' beside it is loaded.", path, folder)
        return folder
    return path


MARK = "reward_model"
"""Key of the model's config in a `.pt` file; files of other systems do not have it."""


def save_single(path: Path, state: Mapping[str, Any], calibration: Calibration, choice: Choice) -> None:
    """Write a model with its calibration and threshold to a single `.pt` file.

    Args:
        path: Output file.
        state: The keys of RLinf's workflow guide, and the model's config under `MARK`.
        calibration: Calibration of the model.
        choice: Threshold of the model.
    """
    extra = {"calibration": to_dict(calibration), "threshold": to_dict(ThresholdEntry.of(choice))}
    write_whole(path, {**state, **extra})


def load_single(path: Path) -> dict[str, Any] | None:
    """Read `config`, `weights`, `calibration` and `choice` from a single `.pt` file.

    Returns `None` if the file is from another system. Logs a warning if the file was written before the fit was over.
    """
    content = read_checkpoint(path)
    if not isinstance(content, dict) or not isinstance(content.get(MARK), dict):
        return None

    try:
        threshold = content.get("threshold")
        fields = {
            "config": model_config(content[MARK], MARK),
            "weights": weights_of(content, path, bare=False),
            "calibration": fill(Calibration, content.get("calibration", {}), "calibration"),
            "choice": None if threshold is None else fill(ThresholdEntry, threshold, "threshold").choice(),
        }
    except CheckpointError:
        raise
    except PlauditError as error:
        raise CheckpointError(f"the checkpoint '{path}': {error}") from None

    # The threshold is written at the end of a fit.
    if threshold is None:
        logger.warning(
            "'%s' was written before its fit was over: it has no calibration, and its threshold is 0.5 unless "
            "reward_threshold is given. Take the fit's best_model, or go on with: plaudit fit --resume %s",
            path,
            path.parent.parent,
        )

    return fields
