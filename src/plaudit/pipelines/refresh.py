"""Refresh a reward model during training: fit it further on newly labelled episodes."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plaudit.config.reward_schema import TrainingConfig
from plaudit.config.schema import Config, FitConfig
from plaudit.config.structured import to_dict
from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN
from plaudit.data.split import TRAIN, VAL, Rows, Split, SplitSettings
from plaudit.data.store import EpisodeStore, JoinedStore
from plaudit.errors import DataError, PlauditError
from plaudit.pipelines.fit_components import Parts, build_feeds, cache_folder, open_splits
from plaudit.pipelines.fit_results import write_artifact
from plaudit.utils.threads import claim_threads, fit_threads

if TYPE_CHECKING:
    import torch

    from plaudit.reward_models.artifact import RewardArtifact
    from plaudit.reward_models.evaluation.scores import Scores
    from plaudit.reward_models.evaluation.validation import Aim, ValidationResult
    from plaudit.reward_models.training.batches import Feed
    from plaudit.rewards.reward_function import RewardManager

logger = logging.getLogger("plaudit")

HELD_BACK = 4
"""One in so many labelled episodes is not learned from, and helps to choose the threshold."""


def labelled_splits(store: EpisodeStore, ids: Sequence[str]) -> dict[str, Split]:
    """Labelled episodes: those that are learned from, and those that are held back."""
    store.refresh()
    places, summaries = {id: number for number, id in enumerate(store.ids)}, store.summaries()
    made = {}
    for name in (TRAIN, VAL):
        index = np.array(sorted(places[id] for id in ids if is_held_back(id) == (name == VAL)), np.int64)
        some = [summaries[number] for number in index]
        rows: list[Rows] = [np.flatnonzero(one.labels != UNKNOWN).astype(np.int32) for one in some]
        made[name] = Split(name, store, index, some, rows, SplitSettings())
    return made


def is_held_back(id: str) -> bool:
    """By its name, so that an episode that was learned from once is not taken for a new one later."""
    return zlib.crc32(id.encode()) % HELD_BACK == 0


@dataclass(frozen=True)
class Agreement:
    """What a model makes of labelled episodes.

    Attributes:
        episodes: How many.
        agreement: Share of them about which it is neither fooled nor blind.
        failures: Episodes without success among them.
        fooled: Of those, how many it calls a success at some frame that was kept.
    """

    episodes: int
    agreement: float
    failures: int
    fooled: int

    def to_dict(self) -> dict[str, Any]:
        """For a file."""
        return {**vars(self), "agreement": None if math.isnan(self.agreement) else self.agreement}


def agreement(manager: RewardManager, store: EpisodeStore, ids: Sequence[str], *, held_back: bool) -> Agreement:
    """What a model makes of labelled episodes, frame by frame: of all of them, or of those that no refresh learns from.

    Args:
        manager: The model and its threshold.
        store: Where they are.
        ids: Which.
        held_back: Only those.
    """
    from plaudit.data.dataset import FrameDataset
    from plaudit.reward_models.evaluation.scores import score
    from plaudit.reward_models.evaluation.success_decision import asked, fires
    from plaudit.reward_models.training.batches import FrameFeed

    chosen = [id for id in ids if not held_back or is_held_back(id)]
    if not chosen:
        return Agreement(0, math.nan, 0, 0)
    both = labelled_splits(store, chosen)
    found = []
    for split in (one for one in both.values() if len(one)):
        scores = score(manager.artifact.model(), FrameFeed(FrameDataset(split, manager.artifact.cameras)))
        # Few frames of an episode are kept, so that each is judged by itself.
        decision = replace(manager.rule.decision, hold=1, release=None)
        fired = fires(manager.artifact.calibration.probabilities(scores.logits), scores, decision)
        counted = asked(scores, decision.mode)
        success, failure = counted & (scores.labels == SUCCESS), counted & (scores.labels == FAILURE)
        failed = scores.per_episode(success) == 0
        fooled = failed & (scores.per_episode(fired & failure) > 0)
        missed = ~failed & (scores.per_episode(fired & success) == 0)
        found.append(np.stack([failed, fooled, fooled | missed]))
    failed, fooled, wrong = np.concatenate(found, axis=1)
    return Agreement(len(wrong), float(1 - wrong.mean()), int(failed.sum()), int(fooled.sum()))


SHARE = 0.3
"""Of what a refresh learns from, of either class, so much is newly labelled."""

MOST_COPIES = 100
"""How often a newly labelled frame may count, where there are few of them: more would be learning by heart."""

STILL_FOOLED = 0.1
"""Share of the labelled failures, of those held back, that the threshold may let through. All of them are hard, and
most fooled the model before: to allow no more of them than of other episodes would leave hardly a success."""

SLOWER = 1 / 3
"""Step size of a refresh, relative to that of the fit: the model is nearly right already."""


class Refresher:
    """Fits a reward model further, on the data that it was fitted to and on labelled episodes of the run.

    The data is opened at once: that a run cannot refresh its model must be known before it begins.

    Args:
        config: The run's.
        artifact: The model.
        device: Where to.
    """

    def __init__(self, config: Config, artifact: RewardArtifact, device: torch.device) -> None:
        from plaudit.data.dataset import FrameDataset
        from plaudit.reward_models.hashing import of_members

        self.device, self.steps, self.threads = device, config.reward.audit.refresh_steps, config.runtime.threads
        reward = replace(config.reward, training=_gentle(config.reward.training, self.steps))
        self.config = FitConfig(config.runtime, reward)
        try:
            self.splits = open_splits(self.config, cache_folder(self.config), quiet=True)
            if VAL not in self.splits:
                raise DataError("it has no split 'val'.")
            self.members = of_members(FrameDataset(self.splits[TRAIN], artifact.cameras))
        except PlauditError as error:
            raise type(error)(
                f"reward.audit.on_alarm is refresh, which needs the data that the reward model was fitted to: {error} "
                "Set reward.training.data.path to that data set."
            ) from error
        if artifact.data.get("train_fingerprint") not in (None, self.members):
            logger.warning(
                "a refresh will use the episodes of '%s', which are not those that the reward model '%s' was fitted "
                "to. If that is not meant, set reward.training.data.path.",
                self.splits[TRAIN].source.path,
                artifact.path,
            )

    def fit(self, artifact: RewardArtifact, store: EpisodeStore, ids: Sequence[str], path: Path) -> RewardArtifact:
        """A new artifact at `path`, begun from the weights of the present one.

        Args:
            artifact: The present model.
            store: Where the labelled episodes are.
            ids: Which of them count.
            path: For the new one, whose name is `reward_v<version>`.
        """
        from plaudit.data.dataset import FrameDataset
        from plaudit.reward_models.training.trainer import Fit

        labelled = labelled_splits(store, ids)
        joined = {name: self._joined(name, labelled[name]) for name in (TRAIN, VAL)}
        with self._every_core():
            model = artifact.model().to(self.device)
            reward = replace(self.config.reward, model=to_dict(artifact.config))
            parts = Parts(
                replace(self.config, reward=reward),
                model,
                {name: FrameDataset(split, model.cameras) for name, (split, _) in joined.items()},
                self.splits[TRAIN].settings,
                cache_folder(self.config),
            )
            feeds = self._feeds(parts, labelled, {name: copies for name, (_, copies) in joined.items()})
            seed = self.config.runtime.seed + len(ids)
            work = Fit(model, feeds[TRAIN], feeds[VAL], reward.training, aim=parts.aim, seed=seed)
            work.run()
            frames = sum(len(rows) for split in labelled.values() for rows in split.rows)
            about = {
                "version": _version(path),
                "parent": artifact.id,
                "labelled_episodes": len(ids),
                "labelled_frames": frames,
            }
            made, _ = write_artifact(
                parts,
                work,
                feeds,
                path,
                judged=partial(_judged, first=len(self.splits[VAL].source)),
                about={"train_fingerprint": self.members, "refresh": about},
            )
            return made

    @contextmanager
    def _every_core(self) -> Iterator[None]:
        """Torch has every core meanwhile, since no simulator runs."""
        before = claim_threads(fit_threads(self.threads))
        try:
            yield
        finally:
            claim_threads(before)

    def _joined(self, name: str, new: Split) -> tuple[Split, NDArray[np.int64]]:
        """A split of the data with labelled episodes behind it, and which of their frames stands at each place there:
        in training every one of them stands there several times.
        """
        old = self.splits[name]
        times = _copies(old, new) if name == TRAIN else {SUCCESS: 1, FAILURE: 1}
        counts = [
            np.array([times[label] for label in summary.labels[rows].tolist()], np.int64)
            for summary, rows in zip(new.summaries, new.rows, strict=True)
        ]
        rows = [np.repeat(some, count) for some, count in zip(new.rows, counts, strict=True)]
        every = np.concatenate([np.zeros(0, np.int64), *counts])
        source = JoinedStore([_store(old), _store(new)])
        split = replace(
            old,
            source=source,
            index=np.concatenate([old.index, new.index + len(old.source)]),
            summaries=[*old.summaries, *new.summaries],
            rows=[*old.rows, *rows],
        )
        return split, np.repeat(np.arange(len(every)), every)

    def _feeds(self, parts: Parts, labelled: dict[str, Split], copies: dict[str, NDArray[np.int64]]) -> dict[str, Feed]:
        """What the fit reads. Features of a frozen encoder that the first fit has kept are found, not made again."""
        from plaudit.data.dataset import FrameDataset
        from plaudit.reward_models.training.augment import Augment
        from plaudit.reward_models.training.batches import FeatureFeed
        from plaudit.reward_models.training.feature_cache import FeatureCache

        keys, model = parts.config.reward.training, parts.model
        if not (keys.feature_cache and model.config.freeze_encoder):
            return build_feeds(parts, quiet=True)
        cache, feeds = FeatureCache(parts.cache / "features"), {}
        for name, views in ((TRAIN, keys.cache_views), (VAL, 1)):
            both = [
                cache.features(model, FrameDataset(split, model.cameras), views=views, augment=Augment(keys.augment))
                for split in (self.splits[name], labelled[name])
                if len(split)
            ]
            features = np.concatenate([both[0], *(new[copies[name]] for new in both[1:])])
            feeds[name] = FeatureFeed(parts.data[name], features)
        return {**feeds}


def _judged(scores: Scores, aim: Aim, first: int) -> ValidationResult:
    """Calibration by all validation scores, and the higher one of two thresholds: that of the data, as in any fit, and
    one that lets few of the labelled failures through.

    Args:
        scores: Of the data's validation split, and of labelled episodes.
        aim: What the threshold of the data is chosen for.
        first: The labelled episodes have this number and those after it.
    """
    from plaudit.reward_models.evaluation.metrics import evaluate
    from plaudit.reward_models.evaluation.threshold import pick_threshold
    from plaudit.reward_models.evaluation.validation import ValidationResult, validate

    verdict, new = validate(scores, aim), scores.episode >= first
    if not (new & (scores.labels == FAILURE)).any():
        return verdict
    allowed = max(aim.target, STILL_FOOLED)
    # Of labelled episodes few frames were kept, so that none can be held. Successes of all say what is worth it.
    hard = pick_threshold(
        scores.part(new | (scores.labels == SUCCESS)), verdict.calibration, allowed, hold=1, mode=aim.mode
    )
    choice = pick_threshold(scores.part(~new), verdict.calibration, aim.target, hold=aim.hold, mode=aim.mode)
    if hard.decision.threshold > choice.decision.threshold:
        note = f"Raised so that it fires in at most {allowed:.0%} of the episodes that were labelled since and failed."
        choice = replace(choice, decision=replace(choice.decision, threshold=hard.decision.threshold), note=note)
    return ValidationResult(verdict.calibration, choice, evaluate(scores, verdict.calibration, choice.decision))


def _gentle(keys: TrainingConfig, steps: int) -> TrainingConfig:
    """The settings of the fit, for a few more steps in this process."""
    return replace(
        keys,
        max_steps=steps,
        val_check_interval=steps,
        num_epochs=None,
        max_seconds=None,
        patience=0,
        training_backend="simple",
        training_processes=None,
        precision="f32",
        figures=False,
        optim=replace(keys.optim, lr=SLOWER * keys.optim.lr, warmup_steps=None),
    )


def _copies(old: Split, new: Split) -> dict[int, int]:
    """How often newly labelled frames of either class stand in the training data, for their share of it."""
    counts = {}
    for label in (FAILURE, SUCCESS):
        there, here = (
            sum(int((one.labels[rows] == label).sum()) for one, rows in zip(split.summaries, split.rows, strict=True))
            for split in (old, new)
        )
        wanted = SHARE / (1 - SHARE) * there / max(1, here)
        counts[label] = max(1, min(MOST_COPIES, round(wanted)))
    return counts


def _store(split: Split) -> EpisodeStore:
    assert isinstance(split.source, EpisodeStore), "open_splits gives stores"
    return split.source


def _version(path: Path) -> int:
    return int(path.name.rpartition("v")[2])
