"""The processes that fit one model together. One alone is the simplest case of them, so that a fit knows no other.

Each process is a rank. All take the same steps on the same batches, and every rank reads and learns from its share of
each. What is decided (which weights are the best, when to stop) is decided from numbers that all ranks have, so that
all decide alike; rank 0 writes, logs and shows.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from plaudit.rewards.model import RewardModel
from plaudit.rewards.parallel_nets import Net, Replicated

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

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
        from plaudit.rewards.parallel_sharded import Sharded

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
