"""Whoever serves rewards: a plain class, called in process, that scores, fits and saves a reward model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.config.reward_schema import RewardConfig
from plaudit.envs.base import Reading
from plaudit.errors import CheckpointError, DataError
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.evaluation.scores import score
from plaudit.reward_models.evaluation.validation import Aim, validate
from plaudit.reward_models.inference.frame_validation import AnyFrames
from plaudit.reward_models.model import build_reward_model
from plaudit.reward_models.training.batches import Feed
from plaudit.reward_models.training.trainer import Fit
from plaudit.rewards.reward_function import Bools, Memory, RewardManager, asked


class RewardWorker:
    """Loads a reward model, gives rewards by it, and fits it further.

    Args:
        config: The section `reward`; `checkpoint_path` names the model.
        readings: What guards can be read off, as an env declares it.
        device: Where torch calculates.
        threads: Of ONNX Runtime; 0 for all cores.

    Attributes:
        artifact: The model; `None` before `init_worker`, where the config names none.
    """

    def __init__(
        self,
        config: RewardConfig,
        *,
        readings: Mapping[str, Reading] | None = None,
        device: str | torch.device = "cpu",
        threads: int = 0,
    ) -> None:
        self.config, self.readings, self.device, self.threads = config, readings, torch.device(device), threads
        self.artifact: RewardArtifact | None = None
        self._manager: RewardManager | None = None
        self._memory: Memory | None = None
        self._age: NDArray[np.int64] | None = None

    def init_worker(self) -> None:
        """Loads the model that the config names, if it names one, after seeing that it is as the config says."""
        if self.config.checkpoint_path is not None:
            path = Path(self.config.checkpoint_path).expanduser()
            self.artifact = RewardArtifact.load(path, self.config.model)

    @property
    def manager(self) -> RewardManager:
        """The pipeline around the present model."""
        if self.artifact is None:
            raise CheckpointError(
                "there is no reward model yet: call init_worker() with reward.checkpoint_path, or fit() one."
            )
        if self._manager is None or self._manager.artifact is not self.artifact:
            self._manager = RewardManager(
                self.artifact, self.config, readings=self.readings, device=self.device, threads=self.threads
            )
            self._memory = None
        return self._manager

    def compute_batch_rewards(self, observations: AnyFrames | Mapping[str, Any]) -> torch.Tensor:
        """As `RewardManager.compute_rewards`: float32 (n,) of n frames, in mini-batches."""
        return self.manager.compute_rewards(observations)

    def compute_rewards(
        self, observations: Mapping[str, Any], done: torch.Tensor, env_reward: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Rewards float32 (T, N) of a rollout, which goes on where the last one ended.

        Args:
            observations: By camera (T, N, H, W, 3), of the states that the steps led to; and `state`, (T, N, d), where
                there are guards.
            done: bool (T, N), whether the episode ended with that step.
            env_reward: (T, N), the env's own, where the config combines the two.
        """
        manager, (steps, count) = self.manager, done.shape
        if env_reward is None and self.config.combine_mode != "replace":
            raise DataError(f"reward.combine_mode '{self.config.combine_mode}' needs the env's own reward too.")
        if self._memory is None or len(self._memory.on) != count:
            self._memory = manager.begin(count)
        over = done.cpu().numpy()
        chosen = asked(over, self._ages(over), self.config)
        frames = {camera: observations[camera][torch.from_numpy(chosen)] for camera in manager.artifact.cameras}
        scores = np.full((steps, count, 2), np.nan, np.float32)
        scores[chosen] = manager.score(frames)
        own = np.zeros(over.shape) if env_reward is None else env_reward.cpu().numpy()
        state = observations["state"].cpu().numpy() if manager.guards else None
        judged, self._memory = manager.rewards_from_scores(scores, over, own, state, self._memory)
        return torch.from_numpy(judged.reward)

    def _ages(self, done: Bools) -> NDArray[np.int64]:
        """How many steps the episodes of a rollout had, (T, N)."""
        if self._age is None or len(self._age) != done.shape[1]:
            self._age = np.zeros(done.shape[1], np.int64)
        ages = np.zeros(done.shape, np.int64)
        for t, ended in enumerate(done):
            ages[t] = self._age = self._age + 1
            self._age = np.where(ended, 0, self._age)
        return ages

    def fit(self, train: Feed, val: Feed, *, seed: int = 0) -> RewardArtifact:
        """Fits the present model further, or a new one where there is none, and rewards by it from then on.

        Args:
            train: What it learns from.
            val: What picks the weights, the calibration and the threshold.
            seed: Of all that is random.
        """
        keys = self.config
        model = build_reward_model(keys.model) if self.artifact is None else self.artifact.model()
        aim = Aim(keys.training.target_false_positive_rate, keys.hold or 1, keys.reward_mode)
        Fit(model.to(self.device), train, val, keys.training, aim=aim, seed=seed).run()
        scores = score(model, val)
        weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
        made = RewardArtifact(
            model.config, weights, calibration=validate(scores, aim).calibration, validation=scores
        ).rechoose(aim.target, hold=aim.hold, mode=aim.mode)
        self.artifact = replace(made, label_sources={} if self.artifact is None else self.artifact.label_sources)
        return self.artifact

    def save_checkpoint(self, path: str | Path, step: int) -> Path:
        """Writes the present model as the artifact `<path>/step_<step>`, and returns that."""
        folder = Path(path) / f"step_{step}"
        self.artifact = self.manager.artifact.save(folder)
        return folder
