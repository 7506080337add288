"""A model as it learns: in one process, as a replica in each of several (DDP), or (`parallel_sharded`) in shards.

Losses are shares of the whole batch's mean, so the gradients of all processes are added up. Weights and the optimizer's
state leave here whole, as those of one process alone: what one kind has written, any other can go on with.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from plaudit.rewards.model import RewardModel
from plaudit.vision.pretrained import load_weights

if TYPE_CHECKING:
    from plaudit.rewards.feeds import Batch, Feed


class Net:
    """A model that learns in this process alone.

    Args:
        model: It; what is learned ends up there.

    Attributes:
        learner: The model that has the gradients.
        parameters: What the optimizer changes.
    """

    def __init__(self, model: RewardModel) -> None:
        self.model = self.learner = model
        self.parameters = model.trainable()

    def logits(self, feed: Feed, batch: Batch, random: torch.Generator) -> torch.Tensor:
        """What a feed's `logits` gives for the model that learns."""
        return feed.logits(self.learner, batch, random)

    @contextmanager
    def summing(self, last: bool) -> Iterator[None]:
        """Around the passes of one part of a batch. After the `last` the gradients are those of all processes."""
        yield

    def backward(self, loss: torch.Tensor) -> None:
        """Adds to the gradients."""
        loss.backward()  # type: ignore[no-untyped-call]

    def clip(self, most: float) -> None:
        """Shortens the gradient, that of all parameters in all processes, to `most`."""
        nn.utils.clip_grad_norm_(self.parameters, most)

    def settle(self) -> None:
        """After a step: makes what else has changed in it the same in all processes."""

    def whole(self) -> RewardModel:
        """The model with all that is learned so far, to score with or to save. All processes must ask at once."""
        return self.model

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """An optimizer's state, whole. All processes must ask at once."""
        return optimizer.state_dict()

    def load(self, weights: Mapping[str, torch.Tensor], path: str | Path) -> None:
        """Takes up whole weights; `path` is for messages."""
        load_weights(self.learner, weights, path)

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        """Gives an optimizer a whole state."""
        optimizer.load_state_dict(state)


class Forward(nn.Module):
    """A model whose forward pass is what a feed takes it through: DDP and FSDP follow that pass and no other."""

    def __init__(self, model: RewardModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, feed: Feed, batch: Batch, random: torch.Generator) -> torch.Tensor:
        """A copy: FSDP warns of views, as it could not follow one that is changed in place."""
        return feed.logits(self.model, batch, random).clone()


class Shared(Net):
    """What both kinds have in common.

    They average gradients, which makes a sum of them once the losses are multiplied by the number of processes.
    """

    passes: nn.Module

    def logits(self, feed: Feed, batch: Batch, random: torch.Generator) -> torch.Tensor:
        logits: torch.Tensor = self.passes(feed, batch, random)
        return logits

    def backward(self, loss: torch.Tensor) -> None:
        super().backward(loss * dist.get_world_size())

    @cached_property
    def running(self) -> list[torch.Tensor]:
        """BatchNorm's running statistics, and what else is saved and may change in a pass without being learned."""
        saved = self.learner.state_dict().keys()
        return [
            buffer
            for prefix, module in self.learner.named_modules()
            if module.training  # A frozen encoder is not.
            for name, buffer in module.named_buffers(prefix, recurse=False)
            if name in saved and buffer.is_floating_point()
        ]

    def settle(self) -> None:
        """Averages running statistics: every process has updated them with its own share."""
        if not self.running:
            return
        # In float64 the mean of equal numbers is that number, so that constants do not drift.
        total = torch.cat([buffer.flatten().double() for buffer in self.running])
        dist.all_reduce(total)
        means = torch.split(total / dist.get_world_size(), [buffer.numel() for buffer in self.running])
        for buffer, mean in zip(self.running, means, strict=True):
            buffer.copy_(mean.view_as(buffer))


class Replicated(Shared):
    """A model that every process has a whole copy of: `DistributedDataParallel`."""

    def __init__(self, model: RewardModel) -> None:
        super().__init__(model)
        # It says so of weights of a single channel, whose gradient has another layout in memory, and copies them.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        self.ddp = self.passes = DistributedDataParallel(Forward(model))
        self.ddp.broadcast_buffers = False  # `settle` does better.

    @contextmanager
    def summing(self, last: bool) -> Iterator[None]:
        if last:
            yield
        else:
            with self.ddp.no_sync():
                yield
