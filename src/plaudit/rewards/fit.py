"""The fit: from labelled frames to the weights that tell success from failure best on the validation split."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from plaudit.config.convert import to_dict
from plaudit.config.schema import TrainingConfig
from plaudit.errors import CheckpointError, ConfigError, NonFiniteError
from plaudit.rewards.assess import Aim, Verdict, judge
from plaudit.rewards.checkpoints import load_checkpoint, remove_checkpoints, save_checkpoint, saved_checkpoints
from plaudit.rewards.feeds import Batch, Feed, moved, parts, read_ahead
from plaudit.rewards.listener import Listener
from plaudit.rewards.model import RewardModel
from plaudit.rewards.optim import build_optimizer, lr_factor
from plaudit.rewards.parallel import Alone, Ranks
from plaudit.rewards.parallel_nets import Net
from plaudit.rewards.pretrained import load_weights
from plaudit.rewards.sampling import BatchSampler, class_weights, step_random, step_seed
from plaudit.rewards.scoring import score

logger = logging.getLogger("plaudit")

DEFAULT_STEPS = 1500
"""Steps of a fit that names no other length: a minute or so for the default model on two cores."""

VALIDATIONS = 3
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

    All that is random in a step comes from the seed and the step's number. So a fit that goes on from a checkpoint
    ends with the same weights, bit for bit, as one that was never stopped, given as many threads; only `max_seconds`
    depends on the clock. Several processes take the same steps on the same frames, but for rounding and dropout.

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
        self.device = next(model.parameters()).device
        self.ranks: Ranks = ranks or Alone()
        self.net = self.ranks.hold(model)
        self.optimizer = build_optimizer(self.net.parameters, settings.optim)
        labels = train.dataset.labels
        share = settings.success_share if settings.balance == "sampler" else None
        self.sampler = BatchSampler(labels, settings.global_batch_size, seed, share)
        if self.sampler.batch < self.ranks.size:
            raise ConfigError(
                f"a step has {self.sampler.batch} frames, too few for {self.ranks.size} processes to have one each. "
                "Raise reward.training.global_batch_size, or take fewer processes."
            )
        weights = class_weights(labels, settings.success_share) if settings.balance == "weight" else (1.0, 1.0)
        self.class_weights = torch.tensor(weights, device=self.device)
        epochs, most = settings.num_epochs, settings.max_steps
        steps = DEFAULT_STEPS if epochs is None else epochs * self.sampler.steps_per_epoch
        self.total_steps = most if most is not None and (epochs is None or most < steps) else steps
        often = self.sampler.steps_per_epoch if epochs is not None else math.ceil(self.total_steps / VALIDATIONS)
        self.val_interval = settings.val_check_interval or often
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
        self._leave()
        if not self.interrupted and self.best is not None:
            load_weights(self.model, self.best.weights, "the best step")
        self.model.eval()

    def _leave(self) -> None:
        """Ends what needs the other processes: from here on this one has all that was learned."""
        if self.ranks.size == 1:
            return
        model, state = self.net.whole(), self.net.optimizer_state(self.optimizer)
        self.ranks, self.net = Alone(), Net(model)
        self.optimizer = build_optimizer(self.net.parameters, self.settings.optim)
        self.optimizer.load_state_dict(state)

    def _train(self) -> None:
        before, started = self.seconds, time.perf_counter()
        for batch in self._batches():
            self._learn(moved(batch, self.device))
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
        """One step of the optimizer, on the mean loss of a batch, of which this process has its share, in parts."""
        self._seed()
        if not self.net.learner.training:  # It walks through all modules, which takes as long as a small head does.
            self.net.learner.train()
        self.optimizer.zero_grad(set_to_none=True)
        some = list(parts(batch, self.ranks.cuts(batch.whole, self.settings.micro_batch_size or batch.whole)))
        sums = np.zeros(3)
        for part in some:
            with self.net.summing(last=part is some[-1]):
                sums += self._learn_part(part)
        self._note(self.ranks.gather(sums.tolist()))
        if self.settings.optim.clip_grad:
            self.net.clip(self.settings.optim.clip_grad)
        self._set_lr()
        self.optimizer.step()
        self.net.settle()

    def _learn_part(self, part: Batch) -> tuple[float, float, float]:
        """Adds to the gradients; gives the sum of the losses, the right answers, and the frames."""
        random = torch.Generator().manual_seed(step_seed(self.seed, self.step))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            logits = self.net.logits(self.train, part, random).float()
        loss = self._loss(logits, part.labels) * (len(part.rows) / part.whole)
        self.net.backward(loss)
        right = (logits.detach().mean(1) > 0) == (part.labels > 0.5)
        return float(loss.detach()) * part.whole, float(right.sum()), float(len(part.rows))

    def _seed(self) -> None:
        """The generator that dropout draws from begins anew, in every process with other numbers."""
        seed = step_seed(self.seed, self.step, self.ranks.rank)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:  # Not torch.manual_seed, which also reaches for GPUs that are not there, and takes a millisecond.
            torch.default_generator.manual_seed(seed)

    def _note(self, sums: list[list[float]]) -> None:
        """Adds up what every rank has seen in a step: its losses, which must be numbers, right answers and frames."""
        for rank, (loss, _, _) in enumerate(sums):
            if not math.isfinite(loss):
                raise NonFiniteError(self._broken(loss, rank))
        self.window = [total + sum(new) for total, new in zip(self.window, zip(*sums, strict=True), strict=True)]

    def _broken(self, loss: float, rank: int) -> str:
        """What to say of a loss that is no number. Every rank knows the frames of all, and says the same."""
        dataset, rows = self.train.dataset, self.sampler[self.step]
        numbers = np.unique(dataset.episodes[rows[self.ranks.share_of(rank, len(rows))]])
        names = [dataset.source[int(number)].id for number in numbers[:5]]
        more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
        return (
            f"the loss is {loss} at step {self.step:,}, in a batch of the episodes {', '.join(names)}{more}. Lower "
            "reward.training.optim.lr, or set clip_grad there."
        )

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Binary cross entropy of logits (n, heads), the mean over frames and heads; every head learns for itself."""
        targets = labels[:, None].expand_as(logits)
        return binary_cross_entropy_with_logits(logits, targets, self.class_weights[labels.long()][:, None])

    def _set_lr(self) -> None:
        coming = max(self.progress, (self.step + 1) / self.total_steps)
        rate = self.settings.optim.lr * lr_factor(self.settings.optim, min(1.0, coming), self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate

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
            "train/lr": float(self.optimizer.param_groups[0]["lr"]),
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
        model = self.net.whole()
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
            "model_state_dict": self.net.whole().state_dict(),
            "optimizer_state_dict": self.net.optimizer_state(self.optimizer),
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
        }

    def load(self, path: Path) -> None:
        """Takes up a checkpoint. It must be of the same model and data. Later ones in the folder are removed."""
        content = load_checkpoint(path)
        for split, key, own in (("training", "data", self.data), ("validation", "val_data", self.val_data)):
            if content[key] != own:
                raise CheckpointError(
                    f"the checkpoint '{path}' was fitted to other data: episodes, frames or labels of the {split} "
                    "split have changed since. Put them back, or start anew."
                )
        self.net.load(content["model_state_dict"], path)
        try:
            self.net.load_optimizer(self.optimizer, content["optimizer_state_dict"])
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"the checkpoint '{path}' is of another optimizer or model: {error}") from error
        self.step, self.seconds, self.stale = content["step"], content["seconds"], content["stale"]
        self.train_loss, self.train_acc = content["train_loss"], content["train_acc"]
        self.window, self._logged_at = list(content["window"]), content["seconds"]
        best = content["best"]
        self.best = Best(best["step"], best["score"], best["weights"]) if best else None
        self._saved, self._validated = self.step, content["validated"]
        self._forget_later()
        for listener in self.listeners:
            listener.on_resume(self.step)

    def _forget_later(self) -> None:
        """Removes checkpoints of later steps: what is next to come from here would be taken for older than they are."""
        if self.folder is None or not self.ranks.leads:
            return
        later = saved_checkpoints(self.folder, after=self.step)
        if later:
            logger.info("going on from step %s: %d later checkpoints are removed.", f"{self.step:,}", len(later))
            remove_checkpoints(later)
