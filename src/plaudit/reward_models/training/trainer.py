"""Train a reward model: optimizer, one update, checkpoints, and the loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from plaudit.config.reward_schema import OptimConfig, TrainingConfig
from plaudit.config.structured import to_dict
from plaudit.data.episode import SUCCESS, UNKNOWN
from plaudit.errors import CheckpointError, ConfigError, NonFiniteError, OutputError
from plaudit.reward_models.evaluation.scores import score
from plaudit.reward_models.evaluation.validation import Aim, ValidationResult, validate
from plaudit.reward_models.model import RewardModel
from plaudit.reward_models.training.batches import Feed, FrameBatch, moved, parts, read_ahead
from plaudit.reward_models.training.distributed import Alone, Net, Ranks
from plaudit.reward_models.training.samplers import (
    BatchSampler,
    HardFrames,
    class_weights,
    share_for,
    step_random,
    step_seed,
)
from plaudit.utils.atomic_io import whole_file
from plaudit.vision.pretrained import load_weights, read_checkpoint

logger = logging.getLogger("plaudit")

WARMUP = 0.05
"""Share of a fit in which the step size grows, where the config does not say how many steps."""

DECAY = {"adam": 0.0, "adamw": 1e-2}
"""How much weights are shrunk, where the config does not say. To adam it is a part of the gradient, which it rescales:
what suits adamw would outweigh what is to be learned."""


def build_optimizer(parameters: Sequence[nn.Parameter], config: OptimConfig) -> torch.optim.Optimizer:
    """The optimizer that a config names. The fused form is the quickest, also on a CPU."""
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    decay = DECAY[config.optimizer] if config.weight_decay is None else config.weight_decay
    return kind(parameters, lr=config.lr, weight_decay=decay, fused=True)


def lr_factor(config: OptimConfig, progress: float, total_steps: int) -> float:
    """What the step size is multiplied with.

    Args:
        config: The schedule.
        progress: How much of the fit is done after the coming step, 0 to 1.
        total_steps: Steps in all.
    """
    warmup = WARMUP if config.warmup_steps is None else config.warmup_steps / total_steps
    if progress < warmup:
        return progress / warmup
    left = (1 - progress) / (1 - warmup) if warmup < 1 else 0.0
    if config.lr_schedule == "linear":
        return left
    return 1.0 if config.lr_schedule == "constant" else (1 - math.cos(math.pi * left)) / 2


@dataclass(frozen=True)
class StepResult:
    """What a step has shown of each frame of its batch, whichever process has looked at it; all are (n,).

    Attributes:
        losses: The mean over heads.
        weighted: The same, by the weight of the frame's class: what is learned from.
        right: 1 where the answer was right, else 0.
    """

    losses: torch.Tensor
    weighted: torch.Tensor
    right: torch.Tensor


class ModelUpdater:
    """A model that learns, and its optimizer.

    Args:
        model: It, on its device.
        settings: The settings.
        class_weights: Of failures and successes in the loss.
        seed: Of what is random in a step.
        ranks: The processes that learn together.

    Attributes:
        net: The model as it learns.
        optimizer: Changes it.
    """

    def __init__(
        self, model: RewardModel, settings: TrainingConfig, class_weights: tuple[float, float], seed: int, ranks: Ranks
    ) -> None:
        self.settings, self.seed, self.ranks = settings, seed, ranks
        self.device = next(model.parameters()).device
        self.class_weights = torch.tensor(class_weights, device=self.device)
        self.net = ranks.hold(model)
        self.optimizer = build_optimizer(self.net.parameters, settings.optim)

    @property
    def rate(self) -> float:
        """The step size, as it is now."""
        return float(self.optimizer.param_groups[0]["lr"])

    def look(self, feed: Feed, batch: FrameBatch, step: int) -> StepResult:
        """Finds the gradient of a batch's mean loss; this process has its share of the batch, and takes it in parts."""
        self._seed(step)
        if not self.net.learner.training:  # It walks through all modules, which takes as long as a small head does.
            self.net.learner.train()
        self.optimizer.zero_grad(set_to_none=True)
        some = list(parts(batch, self.ranks.cuts(batch.whole, self.settings.micro_batch_size or batch.whole)))
        seen = torch.zeros(3, batch.whole)
        for part in some:
            with self.net.summing(last=part is some[-1]):
                seen[:, part.start : part.start + len(part.rows)] = self._look_at(feed, part, step).cpu()
        return StepResult(*self.ranks.add_up(seen))  # The others have zeros where this one has its share.

    def _look_at(self, feed: Feed, part: FrameBatch, step: int) -> torch.Tensor:
        """Adds to the gradients; gives what `StepResult` has of these frames, (3, n)."""
        random = torch.Generator().manual_seed(step_seed(self.seed, step))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.precision == "bf16"):
            logits = self.net.logits(feed, part, random).float()
        losses = frame_losses(logits, part.labels)
        weighted = losses * self.class_weights[part.labels.long()]
        self.net.backward(weighted.sum() / part.whole)
        right = (logits.mean(1) > 0) == (part.labels > 0.5)
        return torch.stack([losses, weighted, right]).detach()

    def _seed(self, step: int) -> None:
        """The generator that dropout draws from begins anew, in every process with other numbers."""
        seed = step_seed(self.seed, step, self.ranks.rank)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:  # Not torch.manual_seed, which also reaches for GPUs that are not there, and takes a millisecond.
            torch.default_generator.manual_seed(seed)

    def change(self, progress: float, total_steps: int) -> None:
        """Changes the weights by the gradient.

        Args:
            progress: How much of the fit is done then, 0 to 1.
            total_steps: Steps of the fit.
        """
        optim = self.settings.optim
        if optim.clip_grad:
            self.net.clip(optim.clip_grad)
        rate = optim.lr * lr_factor(optim, progress, total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.net.sync_buffers()

    def leave(self) -> None:
        """Ends what needs the other processes: from here on this one has all that was learned."""
        if self.ranks.size == 1:
            return
        model, state = self.net.whole(), self.net.optimizer_state(self.optimizer)
        self.ranks, self.net = Alone(), Net(model)
        self.optimizer = build_optimizer(self.net.parameters, self.settings.optim)
        self.optimizer.load_state_dict(state)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it, whole. All processes must ask at once."""
        return {
            "model_state_dict": self.net.whole().state_dict(),
            "optimizer_state_dict": self.net.optimizer_state(self.optimizer),
        }

    def load(self, content: Mapping[str, Any], path: Path) -> None:
        """Takes up what a checkpoint holds, which must be of the same model and optimizer."""
        self.net.load(content["model_state_dict"], path)
        try:
            self.net.load_optimizer(self.optimizer, content["optimizer_state_dict"])
        except (ValueError, KeyError) as error:
            raise CheckpointError(f"the checkpoint '{path}' is of another optimizer or model: {error}") from error


def frame_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Binary cross entropy of logits (n, heads), the mean over heads, (n,); every head learns for itself."""
    targets = labels[:, None].expand_as(logits)
    return binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(1)


class FitCallback(Protocol):
    """Is told what happens in a fit."""

    def on_start(self, step: int, total_steps: int) -> None:
        """Training begins, or goes on, at a step."""

    def on_resume(self, step: int) -> None:
        """A checkpoint was loaded."""

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Some steps are over; the names begin with `train/`."""

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """A validation is over; the names begin with `val/`."""

    def close(self) -> None:
        """Training is over."""


NAME = "checkpoint.pt"

KEPT: dict[str, type] = {
    "epoch": int,
    "model_state_dict": dict,
    "optimizer_state_dict": dict,
    "train_loss": float,
    "train_acc": float,
    "reward_model": dict,
    "step": int,
    "seconds": float,
    "window": list,
    "validated": int,
    "best": dict,
    "stale": int,
    "data": str,
    "val_data": str,
}
"""Keys that every checkpoint has, those of RLinf's workflow guide first. `hard`, the losses of frames, is optional."""


def save_checkpoint(folder: Path, step: int, content: Mapping[str, Any], keep: int) -> Path:
    """Writes `folder/step_<step>/checkpoint.pt` as a whole, and deletes all but the `keep` newest; 0 keeps all."""
    path = folder / f"step_{step}" / NAME
    write_whole(path, content)
    if keep:
        remove_checkpoints(old for old in saved_checkpoints(folder)[:-keep] if old != path)
    return path


def remove_checkpoints(paths: Iterable[Path]) -> None:
    """Deletes checkpoints, each with its folder unless something else is in there, which is somebody's own."""
    for path in paths:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()


def remove_later(folder: Path, step: int) -> None:
    """Removes checkpoints of later steps than the one gone on from: what comes next would be taken for older."""
    later = saved_checkpoints(folder, after=step)
    if later:
        logger.info("going on from step %s: %d later checkpoints are removed.", f"{step:,}", len(later))
        remove_checkpoints(later)


def write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Writes a torch file that is there as a whole or not at all."""
    try:
        with whole_file(path) as temporary, temporary.open("wb") as file:
            torch.save(dict(content), file)
    except RuntimeError as error:  # This is how torch reports a full disk.
        raise OutputError(f"cannot write the checkpoint '{path}': {error} Is the disk full?") from error


def saved_checkpoints(folder: Path, after: int = -1) -> list[Path]:
    """All checkpoints in a folder, by their steps, or only those of steps `after` one."""
    found = {path: int(_step(path)) for path in folder.glob(f"step_*/{NAME}") if _step(path).isdigit()}
    return sorted((path for path, step in found.items() if step > after), key=found.__getitem__)


def load_checkpoint(path: Path, data: str, val_data: str) -> dict[str, Any]:
    """Reads a checkpoint that `save_checkpoint` wrote; one that lacks something is a `CheckpointError`.

    Args:
        path: Where it is.
        data: Names what is learned from; a checkpoint of other data is an error too.
        val_data: Names what picks the best weights; likewise.
    """
    content = read_checkpoint(path)
    for key, kind in KEPT.items():
        if not isinstance(content, dict) or not isinstance(content.get(key), kind):
            raise CheckpointError(f"'{path}' is not a checkpoint that a fit can go on from: it lacks '{key}'.")
    for split, key, own in (("training", "data", data), ("validation", "val_data", val_data)):
        if content[key] != own:
            raise CheckpointError(
                f"the checkpoint '{path}' was fitted to other data: episodes, frames or labels of the {split} split "
                "have changed since. Put them back, or start anew."
            )
    checked: dict[str, Any] = content
    return checked


def _step(path: Path) -> str:
    return path.parent.name.removeprefix("step_")


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
        listeners: Sequence[FitCallback] = (),
        stop: Callable[[], bool] = lambda: False,
        ranks: Ranks | None = None,
    ) -> None:
        self.model, self.train, self.val, self.settings = model, train, val, settings
        self.aim, self.seed, self.folder, self.data, self.val_data = aim or Aim(), seed, folder, data, val_data
        self.listeners, self.stop = listeners, stop
        self.ranks: Ranks = ranks or Alone()
        labels = train.dataset.labels
        weights = class_weights(labels, settings.success_share) if settings.balance == "weight" else (1.0, 1.0)
        self.learner = ModelUpdater(model, settings, weights, seed, self.ranks)
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

    def _batches(self) -> Iterator[FrameBatch]:
        """The batches of all steps that are left, each read while the one before it is learned from."""

        def read(step: int) -> FrameBatch:
            rows = self.sampler[step]
            return self.train.read(rows, step_random(self.seed, step), self.ranks.share(len(rows)))

        return read_ahead(read, range(self.step, 0 if self.over else self.total_steps))

    def _learn(self, batch: FrameBatch) -> None:
        """One step of the optimizer, on the mean loss of a batch, of which this process has its share."""
        self._note(self.learner.look(self.train, batch, self.step))
        coming = max(self.progress, (self.step + 1) / self.total_steps)
        self.learner.change(min(1.0, coming), self.total_steps)

    def _note(self, seen: StepResult) -> None:
        """Takes note of what a step has shown of its frames, whose losses must be numbers."""
        loss, right = (float(each.sum(dtype=torch.float64)) for each in (seen.weighted, seen.right))
        if not math.isfinite(loss):
            raise NonFiniteError(self._broken(seen, loss))
        self.window = [total + new for total, new in zip(self.window, (loss, right, len(seen.right)), strict=True)]
        if self.sampler.hard is not None:
            self.sampler.hard.note(self.step, self.sampler[self.step], seen.losses.numpy())

    def _broken(self, seen: StepResult, loss: float) -> str:
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
        verdict = validate(score(model, self.val, self.ranks), self.aim)
        found = self._rank(verdict)
        if self.best is None or found > self.best.score:
            weights = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
            self.best, self.stale = Best(self.step, found, weights), 0
        else:
            self.stale += 1
        metrics = {f"val/{name}": verdict.metrics[name] for name in SHOWN}
        for listener in self.listeners:
            listener.on_eval(self.step, {**metrics, "val/threshold": verdict.choice.decision.threshold})

    def _rank(self, verdict: ValidationResult) -> float:
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
