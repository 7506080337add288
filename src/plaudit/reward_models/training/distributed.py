"""Train on several processes: process groups, DDP and FSDP."""

from __future__ import annotations

import copy
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from plaudit.reward_models.model import RewardModel
from plaudit.vision.pretrained import load_weights

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from plaudit.reward_models.training.batches import Feed, FrameBatch

T = TypeVar("T")

Backend = Literal["ddp", "fsdp"]

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for the others in a step. One that takes longer hangs, and the fit ends with an error."""

PATIENCE = timedelta(days=1)
"""How long the others wait for what rank 0 does alone and first, such as to encode all frames."""


class Ranks(ABC):
    """Some processes, seen from one of them.

    Attributes:
        rank: This one.
        size: How many there are.
        local_size: How many of them are on this machine.
    """

    rank: int
    size: int
    local_size: int

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes, logs and shows."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Which of `count` things are this rank's; the shares differ by one at most."""
        return self.share_of(self.rank, count)

    def share_of(self, rank: int, count: int) -> slice:
        """As `share`, of any rank."""
        return slice(rank * count // self.size, (rank + 1) * count // self.size)

    def cuts(self, count: int, most: int) -> list[slice]:
        """Where to cut this rank's share of `count` things, one each at least, into parts of `most` at most.

        All ranks have as many parts: FSDP puts the weights together in each, for which it needs every rank. No part is
        empty; so where `most` is 1 and the shares differ, some have two.
        """
        share = self.share(count)
        own, least, largest = share.stop - share.start, count // self.size, -(-count // self.size)
        number = min(-(-largest // most), least)
        return [slice(part * own // number, (part + 1) * own // number) for part in range(number)]

    @abstractmethod
    def gpu(self, wanted: int) -> int:
        """The number of this rank's GPU, where `wanted` is what one process alone would take."""

    @abstractmethod
    def hold(self, model: RewardModel) -> Net:
        """A model as it learns in these processes."""

    @abstractmethod
    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """The numbers of every rank, by rank; all give as many."""

    @abstractmethod
    def add_up(self, numbers: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' tensors, which are of one shape and on the CPU."""

    @abstractmethod
    def told(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, for all."""

    @abstractmethod
    def first(self, what: str) -> AbstractContextManager[None]:
        """Lets rank 0 through first, and the others once it is done: they find what it has made.

        Args:
            what: A name for it, used once.
        """


class Alone(Ranks):
    """One process."""

    rank, size, local_size = 0, 1, 1

    def cuts(self, count: int, most: int) -> list[slice]:
        return [slice(start, min(start + most, count)) for start in range(0, count, most)]

    def gpu(self, wanted: int) -> int:
        return wanted

    def hold(self, model: RewardModel) -> Net:
        return Net(model)

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        return [list(numbers)]

    def add_up(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers

    def told(self, make: Callable[[], T]) -> T:
        return make()

    def first(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class Seat:
    """One process's place among those of a fit.

    Attributes:
        meeting: Where they find each other: `file://...`, or `env://` for what torchrun says.
        rank: Which one this is.
        size: How many there are.
        local_rank: Which one of those on this machine.
        local_size: How many are on this machine.
    """

    meeting: str
    rank: int
    size: int
    local_rank: int
    local_size: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Seat | None:
        """The seat that torchrun has given to this process; `None` if it was not started so."""
        needed = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        if not all(environment.get(name) for name in needed):
            return None
        rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local = int(environment.get("LOCAL_RANK", rank)), int(environment.get("LOCAL_WORLD_SIZE", size))
        return cls("env://", rank, size, *local)


class Group(Ranks):
    """Several processes.

    Args:
        seat: This one's.
        backend: How they share a model.
        store: What they tell each other outside of a step.
    """

    def __init__(self, seat: Seat, backend: Backend, store: Store) -> None:
        self.seat, self.backend, self.store = seat, backend, store
        self.rank, self.size, self.local_size = seat.rank, seat.size, seat.local_size

    def gpu(self, wanted: int) -> int:
        return self.seat.local_rank

    def hold(self, model: RewardModel) -> Net:
        for value in (*model.parameters(), *model.buffers()):
            dist.broadcast(value.detach(), 0)  # A model of one's own may not start from the seed alone.
        if self.backend == "ddp":
            return Replicated(model)

        return Sharded(model)

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        table = torch.zeros(self.size, len(numbers), dtype=torch.float64)
        table[self.rank] = torch.tensor(numbers, dtype=torch.float64)
        rows: list[list[float]] = self.add_up(table).tolist()
        return rows

    def add_up(self, numbers: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(numbers)
        return numbers

    def told(self, make: Callable[[], T]) -> T:
        words = [make() if self.leads else None]
        dist.broadcast_object_list(words, 0, device=torch.device("cpu"))
        told = words[0]
        assert told is not None
        return told

    @contextmanager
    def first(self, what: str) -> Iterator[None]:
        if not self.leads:
            self.store.wait([f"plaudit/{what}"], PATIENCE)
        yield
        if self.leads:
            self.store.set(f"plaudit/{what}", "done")


@contextmanager
def join(seat: Seat, backend: Backend, *, cuda: bool) -> Iterator[Ranks]:
    """Meets the other processes, and parts from them in the end, after all have come there.

    Args:
        seat: This one's.
        backend: How they share a model.
        cuda: Whether models are on GPUs.
    """
    if cuda:
        torch.cuda.set_device(seat.local_rank)
    store, rank, size = next(rendezvous(seat.meeting, rank=seat.rank, world_size=seat.size))
    # Numbers that all must know are on the CPU on either.
    kind = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    dist.init_process_group(kind, store=store, rank=rank, world_size=size, timeout=TIMEOUT)
    # Not in a `finally`: after an error the others may be gone, and waiting for them would hide it.
    yield Group(seat, backend, store)
    dist.barrier()
    dist.destroy_process_group()


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

    def logits(self, feed: Feed, batch: FrameBatch, random: torch.Generator) -> torch.Tensor:
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

    def sync_buffers(self) -> None:
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

    def forward(self, feed: Feed, batch: FrameBatch, random: torch.Generator) -> torch.Tensor:
        """A copy: FSDP warns of views, as it could not follow one that is changed in place."""
        return feed.logits(self.model, batch, random).clone()


class Shared(Net):
    """What both kinds have in common.

    They average gradients, which makes a sum of them once the losses are multiplied by the number of processes.
    """

    passes: nn.Module

    def logits(self, feed: Feed, batch: FrameBatch, random: torch.Generator) -> torch.Tensor:
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

    def sync_buffers(self) -> None:
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
