"""How a model learns from a batch: losses, gradients, and one step of the optimizer, in however many processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from plaudit.config.rewards import TrainingConfig
from plaudit.errors import CheckpointError
from plaudit.rewards.feeds import Batch, Feed, parts
from plaudit.rewards.model import RewardModel
from plaudit.rewards.optim import build_optimizer, lr_factor
from plaudit.rewards.parallel import Alone, Ranks
from plaudit.rewards.parallel_nets import Net
from plaudit.rewards.sampling import step_seed


@dataclass(frozen=True)
class Seen:
    """What a step has shown of each frame of its batch, whichever process has looked at it; all are (n,).

    Attributes:
        losses: The mean over heads.
        weighted: The same, by the weight of the frame's class: what is learned from.
        right: 1 where the answer was right, else 0.
    """

    losses: torch.Tensor
    weighted: torch.Tensor
    right: torch.Tensor


class Learner:
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

    def look(self, feed: Feed, batch: Batch, step: int) -> Seen:
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
        return Seen(*self.ranks.add_up(seen))  # The others have zeros where this one has its share.

    def _look_at(self, feed: Feed, part: Batch, step: int) -> torch.Tensor:
        """Adds to the gradients; gives what `Seen` has of these frames, (3, n)."""
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
        self.net.settle()

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
