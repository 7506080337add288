"""The reward artifact: one folder that is all it takes to score a frame the same way everywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors

from plaudit.config.convert import to_dict
from plaudit.episodes.episode import FAILURE, SUCCESS, UNKNOWN
from plaudit.errors import CheckpointError, DataError, NonFiniteError, OutputError, PlauditError
from plaudit.files import whole_folder
from plaudit.rewards.artifact_files import (
    DOCUMENT,
    FIGURES,
    SAMPLE,
    SCHEMA,
    TEST,
    VALIDATION,
    WEIGHTS,
    Document,
    FileEntry,
    Sample,
    ThresholdEntry,
    artifact_id,
    entry_of,
    hash_of,
    normalisation,
    read_checked,
    read_document,
    versions,
    without_nan,
)
from plaudit.rewards.calibration import Calibration
from plaudit.rewards.config import EncodedConfig, RewardModelConfig
from plaudit.rewards.firing import Decision, RewardMode
from plaudit.rewards.foreign import find_checkpoint, load_foreign
from plaudit.rewards.metrics import Metrics, evaluate
from plaudit.rewards.model import RewardModel, build_reward_model, model_config
from plaudit.rewards.scores import Scores
from plaudit.rewards.single_file import load_single
from plaudit.rewards.threshold import TARGET, Choice, pick_threshold
from plaudit.vision.pretrained import load_weights

logger = logging.getLogger("plaudit")

BEST = "best_model"
"""The artifact in the folder of a fit."""

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
    """A fitted reward model, with all that is needed to score frames and to know how far to trust the scores.

    Attributes:
        config: The model's, complete.
        weights: By the model's names, on the CPU.
        calibration: From its logits to probabilities.
        choice: The threshold and what it was chosen for; `None` where none was chosen, as in models of others.
        validation: Scores of the validation split, which the calibration and the threshold are from.
        test: Scores of the test split.
        sample: A few validation frames, by which other backends are compared with torch.
        label_sources: Frames by who gave their label.
        data: What it was fitted to: counts, settings of the split, a fingerprint. No paths.
        training: How it went: steps, seconds, settings.
        measured_on: The split that the metrics are from, `test` or `validation`; empty where there are none.
        metrics: At the chosen threshold, as `evaluate` gives them.
        versions: Of the programs that made it.
        path: The folder, or for a model of others the file, that it was read from or written to; `None` before that.
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
        """Makes the artifact of a fitted model and writes it. Those arguments that are not explained are attributes.

        The metrics are measured here, on the test scores, or on those of validation where there is no test split.
        `path` is its folder: an artifact that is there is replaced as a whole, and nothing else is. `figures` is called
        with the folder to draw figures into.
        """
        config = model.config
        if isinstance(config, EncodedConfig):  # A path means nothing elsewhere, and the weights are here.
            config = replace(config, pretrained_encoder_path=None)
        made = cls(
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
        return made._measured().save(path, figures)

    @classmethod
    def load(cls, path: str | Path, given: Mapping[str, Any] | None = None) -> RewardArtifact:
        """Reads an artifact, or a reward model that another system trained. Nothing in it can run code.

        Args:
            path: The artifact's folder, the folder of the fit that made it, one of its `.pt` files, or a foreign
                checkpoint or its folder. `X.pt` that is not there may be the artifact `X`.
            given: Keys of `reward.model` that the user wrote, which the model must agree with.

        Raises:
            CheckpointError: Names the file and the field that is missing, damaged, or does not agree.
        """
        path = _meant(Path(path))
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
        own = load_single(find_checkpoint(path))
        if own is not None:
            artifact = cls(**own, path=path)
            artifact.check_against(given or {})
            return artifact
        model, notes = load_foreign(path, given)
        logger.info("%s: is a model of another system. %s", path, " ".join(notes))
        return cls(config=model.config, weights=model.state_dict(), path=path)

    @classmethod
    def _read(cls, folder: Path) -> RewardArtifact:
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
        if normalisation(artifact.model()) != document.normalisation:
            raise CheckpointError(f"{folder / DOCUMENT}: normalisation is not what this Plaudit does; upgrade it.")
        return artifact

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names, in the order in which the model takes them."""
        return self.config.image_keys

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W) of each camera's image."""
        return self.config.image_size[1], self.config.image_size[2]

    @property
    def decision(self) -> Decision:
        """The threshold, and how probabilities become decisions with it."""
        return Decision() if self.choice is None else self.choice.decision

    @cached_property
    def model_id(self) -> str:
        """Hash of config and weights: of all that decides the logits."""
        return hash_of({"model": to_dict(self.config), "weights": entry_of(self._content).sha256})

    @cached_property
    def id(self) -> str:
        """Hash of all that decides what the model says and when it fires; the same wherever it is copied to."""
        return artifact_id(self.model_id, self.calibration, self.decision)

    @cached_property
    def _content(self) -> bytes:
        content: bytes = write_tensors(dict(self.weights))
        return content

    def model(self) -> RewardModel:
        """The torch model with its weights, in evaluation mode; a new one each time."""
        with torch.random.fork_rng(devices=[]):  # Its first weights are random, and nobody's run is to notice.
            model = build_reward_model(self.config, pretrained=False)
        load_weights(model, self.weights, self.path or "the artifact")
        return model.eval()

    def rechoose(
        self, target: float | None = None, *, hold: int | None = None, mode: RewardMode | None = None
    ) -> RewardArtifact:
        """The same model with another threshold, picked on the validation scores that were kept, and measured anew.

        Args:
            target: Rate of episodes with a false positive; what is `None` stays as it is.
            hold: Frames in a row that have to be over the threshold.
            mode: When the model is asked.
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
        """Itself with the metrics of its scores."""
        scores = self.validation if self.test is None else self.test
        if scores is None:
            return replace(self, measured_on="", metrics={})
        measured_on = "validation" if self.test is None else "test"
        return replace(self, measured_on=measured_on, metrics=evaluate(scores, self.calibration, self.decision))

    def check_against(self, given: Mapping[str, Any], cameras: Mapping[str, tuple[int, int]] | None = None) -> None:
        """Raises a `CheckpointError` that names the first thing in which a running config differs.

        Args:
            given: Keys of `reward.model` that the user wrote. Where one differs that only matters to training, such as
                `use_pretrain`, the artifact's is used, with a warning.
            cameras: Cameras that there will be frames of, to their (H, W); there may be more than the model needs.
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
        if cameras is None:
            return
        for camera in self.cameras:
            if camera not in cameras:
                there = ", ".join(cameras) or "none"
                raise CheckpointError(f"image_keys: {name} needs the camera '{camera}', but there is {there}.")
            if tuple(cameras[camera]) != self.image_size:
                here, needed = ("×".join(map(str, size)) for size in (cameras[camera], self.image_size))
                raise CheckpointError(f"image_size: camera '{camera}' has {here} pixels, but {name} takes {needed}.")

    def save(self, path: str | Path, figures: Callable[[Path], object] | None = None) -> RewardArtifact:
        """Writes the folder, whole or not at all, and returns itself with that path; arguments as `create`'s."""
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
            self._document(folder).write(folder)
            if figures is not None:
                figures(folder / FIGURES)
        return replace(self, path=path)

    def _document(self, folder: Path) -> Document:
        """What is said of the files in a folder."""
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


def _meant(path: Path) -> Path:
    """The artifact for a file in it, and for the `.pt` file that other systems would have written in its place."""
    if path.is_file() and (path.parent / DOCUMENT).exists():
        return path.parent
    folder = path.with_suffix("")
    if path.suffix == ".pt" and not path.exists() and (folder / DOCUMENT).exists():
        logger.info("there is no '%s'; the reward artifact '%s' beside it is loaded.", path, folder)
        return folder
    return path
