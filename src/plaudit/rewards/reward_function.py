"""The reward function: score, calibrate, decide, map, combine."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.config.guard_expressions import Guard, check_names, parse_guard
from plaudit.config.reward_schema import RewardConfig
from plaudit.config.structured import to_dict
from plaudit.data.formats.parsing import MAIN_CAMERA
from plaudit.envs.base import Reading
from plaudit.errors import CheckpointError, ConfigError, DataError
from plaudit.reward_models.artifact import RewardArtifact, hash_of
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.prediction_images import DecidedPictures
from plaudit.reward_models.evaluation.success_decision import Decision
from plaudit.reward_models.inference.engine import RewardEngine
from plaudit.reward_models.inference.frame_validation import AnyFrames, take_in

logger = logging.getLogger("plaudit")

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """How probabilities become verdicts while envs run.

    Attributes:
        decision: Threshold, hold, mode and release.
        window: Of so many last frames `decision.hold` have to be over the threshold; `None` for as many as the hold.
    """

    decision: Decision
    window: int | None = None

    @property
    def frames(self) -> int:
        """How many last frames of an episode count."""
        return self.window or self.decision.hold


class Memory(NamedTuple):
    """What `decide` must know of the episodes that go on.

    Attributes:
        over: bool (N, frames - 1), whether the frames before this one were over the threshold, the oldest first.
        on: bool (N,), whether the verdict at the frame before this one was success.
    """

    over: Bools
    on: Bools

    @classmethod
    def fresh(cls, count: int, rule: Rule) -> Memory:
        """Of `count` envs whose episodes have just begun."""
        return cls(np.zeros((count, rule.frames - 1), bool), np.zeros(count, bool))


def calibrate(scores: NDArray[np.floating[Any]], calibration: Calibration, penalty: float = 0.0) -> Floats:
    """Probabilities of success (...,) from logits and their spread, (..., 2); NaN where the scores are.

    Args:
        scores: Logit, and standard deviation over the ensemble's heads.
        calibration: The artifact's.
        penalty: How many of those deviations are taken off the logit, so that only what the heads agree on counts.
    """
    wide = scores.astype(np.float64)
    return calibration.probabilities(wide[..., 0] - penalty * wide[..., 1])


def guard(
    probabilities: Floats, state: NDArray[Any] | None, guards: Sequence[Guard], readings: Mapping[str, Reading]
) -> Floats:
    """The probabilities, but 0 where a guard is not kept; NaN stays, where the model was not asked.

    Args:
        probabilities: (T, N).
        state: (T, N, d), of the same instants; `None` where there are no guards.
        guards: All must be kept.
        readings: Where in `state` their quantities are.
    """
    kept = probabilities
    for one in guards:
        assert state is not None, "whoever has guards gives the state"
        reading = readings[one.name]
        # In the state's own precision, so that a bound that a quantity just reaches is reached.
        values = state[..., reading.index] / np.asarray(reading.scale, state.dtype)
        kept = np.where(one.allows(values) | np.isnan(kept), kept, 0.0)
    return kept


def decide(probabilities: Floats, done: Bools, rule: Rule, memory: Memory) -> tuple[Bools, Memory]:
    """Whether each frame is a success, (T, N), and what the next call must know.

    Args:
        probabilities: (T, N); NaN where the model was not asked, which is no success and counts for no hold.
        done: bool (T, N), whether the episode ended with that step: the next frame is of another one.
        rule: How.
        memory: What the call before gave, or `Memory.fresh`.
    """
    decision = rule.decision
    over = probabilities > decision.threshold
    if rule.frames == 1 and decision.release is None:
        return over, Memory(memory.over, over[-1] & ~done[-1] if len(over) else memory.on)
    verdicts = np.zeros_like(over)
    before, on = memory
    for t, asked in enumerate(~np.isnan(probabilities)):
        counted = np.concatenate([before, over[t][:, None]], axis=1)
        now = counted.sum(1) >= decision.hold
        if decision.release is not None:
            now |= on & (probabilities[t] > decision.release)
        verdicts[t] = now & asked
        on = np.where(asked, now, on) & ~done[t]
        before = np.where(asked[:, None], counted[:, 1:], before) & ~done[t][:, None]
    return verdicts, Memory(before, on)


def map_rewards(probabilities: Floats, verdicts: Bools, settings: RewardConfig) -> Floats:
    """What the model's word is worth, (T, N); 0 where it was not asked."""
    low, high = settings.fail_reward, settings.success_reward
    share = verdicts if settings.reward_type == "binary" else probabilities
    return np.where(np.isnan(probabilities), 0.0, low + share * (high - low))


def combine(worth: Floats, env_reward: NDArray[np.floating[Any]], settings: RewardConfig) -> NDArray[np.float32]:
    """The rewards to learn from, (T, N), of the model's and the env's own."""
    own = settings.reward_weight * worth
    if settings.combine_mode == "add":
        own = env_reward + own
    if settings.combine_mode == "weighted":
        own = settings.env_reward_weight * env_reward + own
    return own.astype(np.float32)


def asked(done: Bools, age: NDArray[np.int64], settings: RewardConfig) -> Bools:
    """Of which steps the model is asked: an episode's last, and with per_step every `reward_interval`-th.

    Args:
        done: bool, whether the episode ended with that step.
        age: How many steps it had then, of the same shape.
        settings: Say when.
    """
    if settings.reward_mode == "terminal":
        return done
    due: Bools = done | (age % settings.reward_interval == 0)
    return due


DEBUG_FOLDER = "DEBUG_IMAGE_SAVE_DIR"
"""Environment variable that stands in for `reward.debug_save_dir`."""

STATES = ("state", "states")

WORTH = (
    "reward_mode",
    "reward_interval",
    "reward_type",
    "success_reward",
    "fail_reward",
    "guards",
    "uncertainty_penalty",
    "combine_mode",
    "reward_weight",
    "env_reward_weight",
    "terminate_on_success",
)
"""Keys of `reward` that decide what a model's word is worth, beside those that its `Rule` is made of."""


@dataclass(frozen=True, eq=False)
class RewardBatch:
    """What the pipeline makes of T steps of N envs; (T, N) each.

    Attributes:
        reward: float32, what is learned from.
        model_reward: float64, the model's part before it is weighed and combined.
        verdict: bool, whether it is a success to the model.
        probability: float64, calibrated; 0 where a guard is not kept, NaN where the model was not asked.
        threshold: That was in use, one number.
    """

    reward: NDArray[np.float32]
    model_reward: Floats
    verdict: Bools
    probability: Floats
    threshold: float


class RewardManager:
    """Scores frames, and turns the scores into rewards: score, calibrate, decide, map, combine.

    It remembers nothing of episodes, so that one manager serves any number of envs: what `judge` must know of the steps
    before, it is given.

    Args:
        artifact: The model, or where it is.
        settings: What its word is worth, and when. What does not fit the model is a `ConfigError`.
        readings: What guards can be read off, as an env declares it.
        device: Where torch calculates, if it does.
        threads: Of ONNX Runtime; 0 for all cores.

    Attributes:
        rule: How probabilities become verdicts, with the threshold in use.
        scored: Frames scored so far.
    """

    def __init__(
        self,
        artifact: RewardArtifact | str | Path,
        settings: RewardConfig,
        *,
        readings: Mapping[str, Reading] | None = None,
        device: str | torch.device = "cpu",
        threads: int = 0,
    ) -> None:
        self.artifact = artifact if isinstance(artifact, RewardArtifact) else RewardArtifact.load(artifact)
        self.settings, self.readings, self.threads = settings, dict(readings or {}), threads
        self.guards = [parse_guard(text) for text in settings.guards]
        try:
            check_names(self.guards, self.readings)
        except ValueError as error:
            raise ConfigError(f"reward.guards: {error}") from None
        if settings.uncertainty_penalty and self.artifact.config.heads == 1:
            raise ConfigError(
                f"reward.uncertainty_penalty: the reward model '{self.artifact.path}' has one head, so nothing that "
                "could disagree. Fit one with reward.model.heads=5, or leave the key out."
            )
        self.rule = rule_of(self.artifact, settings)
        self.scored = 0
        folder = settings.debug_save_dir or os.environ.get(DEBUG_FOLDER)
        self.pictures = DecidedPictures(Path(folder), settings.debug_images) if folder else None
        self.to_device(device)

    @cached_property
    def identity(self) -> str:
        """Hash of all that decides a reward: the model, its rule, and what its word is worth."""
        keys = to_dict(self.settings)
        worth = {name: keys[name] for name in WORTH}
        return hash_of({"artifact": self.artifact.id, "rule": to_dict(self.rule), "worth": worth})

    def to_device(self, device: str | torch.device) -> RewardManager:
        """Scores on another device from now on."""
        keys = self.settings
        self.engine = RewardEngine(
            self.artifact, keys.backend, device=device, threads=self.threads, precision=keys.precision
        )
        return self

    def score(self, frames: AnyFrames) -> NDArray[np.float32]:
        """Logits of n frames and how much the heads disagree, (n, 2); frames as `intake.take_in` takes them."""
        batch = take_in(frames, self.artifact.cameras, self.artifact.image_size)
        count, size = len(next(iter(batch.values()))), self.settings.batch_size
        parts = []
        for start in range(0, count, size):
            some = {camera: pixels[start : start + size] for camera, pixels in batch.items()}
            found = self.engine.score(some)
            parts.append(np.stack([found.logits, found.spread], axis=1))
            if self.pictures is not None:
                self.pictures.write(self.scored + start, some, found.probabilities, self.rule.decision.threshold)
        self.scored += count
        return np.concatenate(parts) if parts else np.zeros((0, 2), np.float32)

    def begin(self, count: int) -> Memory:
        """What `judge` must know of `count` envs whose episodes have just begun."""
        return Memory.fresh(count, self.rule)

    def rewards_from_scores(
        self,
        scores: NDArray[np.float32],
        done: Bools,
        env_reward: NDArray[np.floating[Any]],
        state: NDArray[Any] | None,
        memory: Memory,
    ) -> tuple[RewardBatch, Memory]:
        """Rewards of T steps of N envs, and what the next call must know.

        Args:
            scores: (T, N, 2), of the states that the steps led to; NaN where the model was not asked.
            done: bool (T, N), whether the episode ended with that step.
            env_reward: (T, N), the env's own, which only `combine_mode` add and weighted read.
            state: (T, N, d) of the same instants, for guards; `None` where there are none.
            memory: What the call before gave, or `begin`.
        """
        keys = self.settings
        p = self._probabilities(scores, state)
        verdict, memory = decide(p, done, self.rule, memory)
        worth = map_rewards(p, verdict, keys)
        rewards = combine(worth, env_reward, keys)
        return RewardBatch(rewards, worth, verdict, p, self.rule.decision.threshold), memory

    def compute_rewards(self, observations: AnyFrames | Mapping[str, Any]) -> torch.Tensor:
        """The model's rewards, float32 (n,), of n frames, each by itself: without the env's part, and without a hold.

        Args:
            observations: Frames by camera (with one camera `main_images` will do), and `state` where there are guards;
                or the frames of the only camera.
        """
        frames, state = observations, None
        if isinstance(observations, Mapping):
            state = next((observations[name] for name in STATES if observations.get(name) is not None), None)
            frames = {name: value for name, value in observations.items() if name not in STATES}
            if MAIN_CAMERA in frames and MAIN_CAMERA not in self.artifact.cameras:
                frames.setdefault(self.artifact.cameras[0], frames.pop(MAIN_CAMERA))
        if self.guards and state is None:
            raise DataError(f"reward.guards need 'state' beside the frames; there is {', '.join(frames)}.")
        p = self._probabilities(self.score(frames), None if state is None else np.asarray(state))
        worth = map_rewards(p, p > self.rule.decision.threshold, self.settings)
        return torch.from_numpy((self.settings.reward_weight * worth).astype(np.float32))

    def _probabilities(self, scores: NDArray[np.float32], state: NDArray[Any] | None) -> Floats:
        """Of success; 0 where a guard is not kept."""
        p = calibrate(scores, self.artifact.calibration, self.settings.uncertainty_penalty)
        return guard(p, state, self.guards, self.readings)


def rule_of(artifact: RewardArtifact, settings: RewardConfig) -> Rule:
    """How probabilities become verdicts, of what the model was fitted for and what the settings say otherwise."""
    own, mode = artifact.decision, settings.reward_mode
    hold = settings.hold or (own.hold if mode == "per_step" else 1)
    chosen = own.threshold
    if (hold, mode) != (own.hold, own.mode) and artifact.validation is not None:
        chosen = artifact.rechoose(hold=hold, mode=mode).decision.threshold
        logger.info(
            "the threshold of '%s' is %.3f for reward_mode %s and hold %d; for %s and %d it is %.3f, by the same "
            "validation scores.",
            artifact.path,
            own.threshold,
            own.mode,
            own.hold,
            mode,
            hold,
            chosen,
        )
    threshold = chosen if settings.reward_threshold is None else settings.reward_threshold
    if settings.reward_threshold is not None:
        logger.info("reward.reward_threshold is %.3f; the model's own is %.3f.", threshold, chosen)
    if threshold >= 1 and settings.reward_type == "binary":
        note = "" if artifact.choice is None else f" {artifact.choice.note}"
        raise CheckpointError(
            f"the reward model '{artifact.path}' has the threshold 1, which is never reached, so its reward would "
            f"never change.{note} Give reward.reward_threshold, use reward.reward_type=continuous, or fit it with more "
            "data."
        )
    release = settings.hysteresis if settings.hysteresis is not None or mode == "terminal" else own.release
    if release is not None and release > threshold:
        raise ConfigError(f"reward.hysteresis must not be above the threshold, {threshold:.3f}; it is {release:g}.")
    return Rule(Decision(threshold, hold, mode, release), settings.hold_window)
