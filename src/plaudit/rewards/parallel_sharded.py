"""A model that learns in shards over several processes, with PyTorch's FSDP2.

A module of its own because what it imports takes longer to import than a small fit's start.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from plaudit.rewards.model import RewardModel
from plaudit.rewards.parallel_nets import Forward, Shared


class Sharded(Shared):
    """A model of whose weights, gradients and optimizer state every process keeps a part: `fully_shard`.

    It is one unit, whatever is called within it. Frozen weights, which have neither gradients nor state, stay whole.
    """

    def __init__(self, model: RewardModel) -> None:
        super().__init__(model)
        self.learner = copy.deepcopy(model)
        frozen = {parameter for parameter in self.learner.parameters() if not parameter.requires_grad}
        mesh = init_device_mesh(next(model.parameters()).device.type, (dist.get_world_size(),))
        self.passes = Forward(self.learner)
        self.fsdp = fully_shard(self.passes, mesh=mesh, ignored_params=frozen)
        self.parameters = self.learner.trainable()

    @contextmanager
    def summing(self, last: bool) -> Iterator[None]:
        self.fsdp.set_requires_gradient_sync(last)
        yield

    def whole(self) -> RewardModel:
        self.model.load_state_dict({name: _whole(value) for name, value in self.learner.state_dict().items()})
        return self.model

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        state = optimizer.state_dict()
        each = {number: {key: _whole(value) for key, value in kept.items()} for number, kept in state["state"].items()}
        return {**state, "state": each}

    def load(self, weights: Mapping[str, torch.Tensor], path: str | Path) -> None:
        own = self.learner.state_dict()
        super().load({name: _shard(value, own.get(name)) for name, value in weights.items()}, path)
        self.whole()

    def load_optimizer(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        own = dict(enumerate(self.parameters))
        each = {
            number: {key: _shard(value, own.get(number)) for key, value in kept.items()}
            for number, kept in state["state"].items()
        }
        super().load_optimizer(optimizer, {**state, "state": each})


def _whole(value: torch.Tensor) -> torch.Tensor:
    """All of a tensor that may be in shards."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def _shard(value: torch.Tensor, like: torch.Tensor | None) -> torch.Tensor:
    """The part that this process has of a tensor, divided as another of the same shape is."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    there = value.to(like.device, like.dtype)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)
