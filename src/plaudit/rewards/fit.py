"""The fit: from labelled frames to the weights that tell success from failure best on the validation split."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plaudit.config.convert import to_dict
from plaudit.config.rewards import TrainingConfig
from plaudit.episodes.episode import SUCCESS, UNKNOWN
from plaudit.errors import ConfigError, NonFiniteError
from plaudit.rewards.assess import Aim, Verdict, judge
from plaudit.rewards.checkpoints import load_checkpoint, remove_later, save_checkpoint
from plaudit.rewards.feeds import Batch, Feed, moved, read_ahead
from plaudit.rewards.hard import HardFrames, share_for
from plaudit.rewards.learning import Learner, Seen
from plaudit.rewards.listener import Listener
from plaudit.rewards.model import RewardModel
from plaudit.rewards.parallel import Alone, Ranks
from plaudit.rewards.sampling import BatchSampler, class_weights, step_random
from plaudit.rewards.scoring import score
from plaudit.vision.pretrained import load_weights

DEFAULT_STEPS = 2000
"""Steps of a fit that names no other length, divided among its cameras: a minute or so for the default model on two
cores, since a step with two pictures takes twice as long."""

VALIDATIONS = 2
"""How often a fit is validated that says neither how long it is in epochs nor how often: each takes seconds."""

LOWER_IS_BETTER = ("log_loss",)

SHOWN = (
    "log_loss",
    "balanced_accuracy",
    "roc_auc",
    "average_precision",
    "recall",
    "ece",
    "episode_false_positive_rate",
)
"""What is logged of every validation."""


@dataclass(frozen=True)
class Best:
    """The best validation so far, and the weights that had it."""

    step: int
    score: float
    weights: dict[str, torch.Tensor]


class Fit:
    """Fits a model.

    All that is random in a step comes from the seed and the step's number; which frames are hard, from losses that
    checkpoints hold. So a fit that goes on from one ends with the same weights, bit for bit, as one that was never
    stopped, given as many threads; only `max_seconds` depends on the clock. Several processes take the same steps on
    the same frames, but for rounding and dropout.

    Args:
        model: What is fitted, on its device.
        train: What it learns from.
        val: What picks the best weights.
        settings: The settings.
        aim: What the threshold is chosen for.
        seed: Of all that is random.
        folder: For checkpoints; `None` keeps none.
        data: Names what is learned from; a checkpoint of other data is refused.
        val_data: Names what picks the best weights; likewise.
        listeners: Who is told of the numbers.
        stop: Asked after every step; the fit saves and ends once it says so.
        ranks: The processes that fit together. Each has a fit of its own, of equal arguments but for the listeners
            and `stop`.

    Attributes:
        step: Steps done.
        total_steps: Steps in all, at most.
        val_interval: Steps between validations.
        best: The best weights so far.
        interrupted: Whether `stop` ended it.
    """

    def __init__(
        self,
        model: RewardModel,
        train: Feed,
        val: Feed,
        settings: TrainingConfig,
        *,
        aim: Aim | None = None,
        seed: int = 0,
        folder: Path | None = None,
        data: str = "",
        val_data: str = "",
        listeners: Sequence[Listener] = (),
        stop: Callable[[], bool] = lambda: False,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.train, self.val, self.settings = model, train, val, settings
        self.aim, self.seed, self.folder, self.data, self.val_data = aim or Aim(), seed, folder, data, val_data
        self.listeners, self.stop = listeners, stop
        self.ranks: Ranks = ranks or Alone()
        labels = train.dataset.labels
        weights = class_weights(labels, settings.success_share) if settings.balance == "weight" else (1.0, 1.0)
        self.learner = Learner(model, settings, weights, seed, self.ranks)
        hard = share_for(settings.hard_share, train.dataset)
        # Hard frames are drawn from each class, or the class that is harder would be seen more often than is wanted.
        natural = float((labels == SUCCESS).sum() / max(1, (labels != UNKNOWN).sum())) if hard else None
        share = settings.success_share if settings.balance == "sampler" else natural
        self.sampler = BatchSampler(labels, settings.global_batch_size, seed, share)
        if self.sampler.batch < self.ranks.size:
            raise ConfigError(
                f"a step has {self.sampler.batch} frames, too few for {self.ranks.size} processes to have one each. "
                "Raise reward.training.global_batch_size, or take fewer processes."
            )
        epochs, most = settings.num_epochs, settings.max_steps
        plain = DEFAULT_STEPS // max(1, len(model.cameras))
        steps = plain if epochs is None else epochs * self.sampler.steps_per_epoch
        self.total_steps = most if most is not None and (epochs is None or most < steps) else steps
        often = self.sampler.steps_per_epoch if epochs is not None else math.ceil(self.total_steps / VALIDATIONS)
        self.val_interval = settings.val_check_interval or often
        if hard:
            self.sampler.hard = HardFrames(self.sampler.groups, len(labels), hard, seed, self.total_steps)
        self.step, self.seconds, self.interrupted = 0, 0.0, False
        self.best: Best | None = None
        self.stale = 0
        self.window = [0.0, 0.0, 0.0]  # Loss, right answers and frames since the last log, summed up.
        self.train_loss = self.train_acc = math.nan
        self._logged_at, self._validated, self._saved = 0.0, -1, -1

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.step // self.sampler.steps_per_epoch

    @property
    def progress(self) -> float:
        """How much is done, 0 to 1, by steps or by the clock."""
        clock = 0.0 if self.settings.max_seconds is None else self.seconds / self.settings.max_seconds
        return min(1.0, max(self.step / self.total_steps, clock))

    def run(self) -> None:
        """Trains until the end, or until it is stopped; unless it is stopped the model has the best weights then."""
        for listener in self.listeners:
            listener.on_start(self.step, self.total_steps)
        try:
            self._train()
        finally:
            for listener in self.listeners:
                listener.close()
        self.learner.leave()
        self.ranks = self.learner.ranks
        if not self.interrupted and self.best is not None:
            load_weights(self.model, self.best.weights, "the best step")
        self.model.eval()

    def _train(self) -> None:
        before, started = self.seconds, time.perf_counter()
        for batch in self._batches():
            self._learn(moved(batch, self.learner.device))
            self.step += 1
            told = self.ranks.gather([before + time.perf_counter() - started, self.stop()])
            self.seconds, self.interrupted = told[0][0], any(stop for _, stop in told)
            if self._due(self.settings.log_interval):
                self._log()
            if self._due(self.val_interval):
                self._validate()
            if self._due(self.settings.save_interval):
                self._save()
            if self.interrupted or self.over:
                break
        if not self.interrupted:
            self._log()
            self._validate()
        self._save()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do: all steps are done, the time is up, or nothing gets better."""
        patience = self.settings.patience
        return self.progress >= 1 or (0 < patience <= self.stale)

    def _batches(self) -> Iterator[Batch]:
        """The batches of all steps that are left, each read while the one before it is learned from."""

        def read(step: int) -> Batch:
            rows = self.sampler[step]
            return self.train.read(rows, step_random(self.seed, step), self.ranks.share(len(rows)))

        return read_ahead(read, range(self.step, 0 if self.over else self.total_steps))

    def _learn(self, batch: Batch) -> None:
        """One step of the optimizer, on the mean loss of a batch, of which this process has its share."""
        self._note(self.learner.look(self.train, batch, self.step))
        coming = max(self.progress, (self.step + 1) / self.total_steps)
        self.learner.change(min(1.0, coming), self.total_steps)

    def _note(self, seen: Seen) -> None:
        """Takes note of what a step has shown of its frames, whose losses must be numbers."""
        loss, right = (float(each.sum(dtype=torch.float64)) for each in (seen.weighted, seen.right))
        if not math.isfinite(loss):
            raise NonFiniteError(self._broken(seen, loss))
        self.window = [total + new for total, new in zip(self.window, (loss, right, len(seen.right)), strict=True)]
        if self.sampler.hard is not None:
            self.sampler.hard.note(self.step, self.sampler[self.step], seen.losses.numpy())

    def _broken(self, seen: Seen, loss: float) -> str:
        """What to say of a loss that is no number. Every process knows those of all frames, and says the same."""
        dataset, broken = self.train.dataset, ~torch.isfinite(seen.weighted).numpy()
        numbers = np.unique(dataset.episodes[self.sampler[self.step][broken]])
        names = [dataset.source[int(number)].id for number in numbers[:5]]
        more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
        return (
            f"the loss is {loss} at step {self.step:,}, for frames of the episodes {', '.join(names)}{more}. Lower "
            "reward.training.optim.lr, or set clip_grad there."
        )

    def _due(self, interval: int) -> bool:
        return self.step % interval == 0

    def _log(self) -> None:
        loss, right, frames = self.window
        if not frames:
            return
        self.train_loss, self.train_acc = loss / frames, right / frames
        speed = frames / max(self.seconds - self._logged_at, 1e-9)
        self.window, self._logged_at = [0.0, 0.0, 0.0], self.seconds
        metrics = {
            "train/loss": self.train_loss,
            "train/accuracy": self.train_acc,
            "train/lr": self.learner.rate,
            "train/epoch": self.step / self.sampler.steps_per_epoch,
            "train/frames_per_second": speed,
        }
        for listener in self.listeners:
            listener.on_metrics(self.step, metrics)

    def _validate(self) -> None:
        """Scores the validation split, and keeps the weights where they are the best so far."""
        if self._validated == self.step:
            return
        self._validated = self.step
        model = self.learner.net.whole()
        verdict = judge(score(model, self.val, self.ranks), self.aim)
        found = self._rank(verdict)
        if self.best is None or found > self.best.score:
            weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            self.best, self.stale = Best(self.step, found, weights), 0
        else:
            self.stale += 1
        metrics = {f"val/{name}": verdict.metrics[name] for name in SHOWN}
        for listener in self.listeners:
            listener.on_eval(self.step, {**metrics, "val/threshold": verdict.choice.decision.threshold})

    def _rank(self, verdict: Verdict) -> float:
        """The metric that picks the best, as a number of which more is better."""
        name = self.settings.best_metric
        value = verdict.metrics[name]
        return -math.inf if math.isnan(value) else -value if name in LOWER_IS_BETTER else value

    def _save(self) -> None:
        if self.folder is None or self._saved == self.step:
            return
        self._saved = self.step
        state = self.state()
        if self.ranks.leads:
            save_checkpoint(self.folder, self.step, state, self.settings.keep_checkpoints)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds, the same from however many processes; while they are, all must ask at once."""
        best = self.best
        loss, right, frames = self.window
        return {
            "epoch": self.epoch,
            **self.learner.state(),
            "train_loss": loss / frames if frames else self.train_loss,
            "train_acc": right / frames if frames else self.train_acc,
            "reward_model": to_dict(self.model.config),
            "step": self.step,
            "seconds": self.seconds,
            "window": list(self.window),
            "validated": self._validated,
            "best": {} if best is None else {"step": best.step, "score": best.score, "weights": best.weights},
            "stale": self.stale,
            "data": self.data,
            "val_data": self.val_data,
            "hard": {} if self.sampler.hard is None else self.sampler.hard.state(),
        }

    def load(self, path: Path) -> None:
        """Takes up a checkpoint. It must be of the same model and data. Later ones in the folder are removed."""
        content = load_checkpoint(path, self.data, self.val_data)
        self.learner.load(content, path)
        self.step, self.seconds, self.stale = content["step"], content["seconds"], content["stale"]
        self.train_loss, self.train_acc = content["train_loss"], content["train_acc"]
        self.window, self._logged_at = list(content["window"]), content["seconds"]
        best = content["best"]
        self.best = Best(best["step"], best["score"], best["weights"]) if best else None
        self._saved, self._validated = self.step, content["validated"]
        if self.sampler.hard is not None:
            self.sampler.hard.load(content.get("hard", {}), self.step)
        if self.folder is not None and self.ranks.leads:
            remove_later(self.folder, self.step)
        for listener in self.listeners:
            listener.on_resume(self.step)
