"""What passes between who acts and who learns, through memory that both see. Neither ever waits for the other here.

Each number has one writer, and is written in one piece. What belongs together is guarded by counts: whoever writes says
first that it begins and last that it is done, whoever reads looks at the counts before and after. That relies on writes
becoming visible in their order, as they do on x86; elsewhere the interpreter's work between two of them, which is
thousands of instructions, has to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch

from plaudit.rl.buffers.replay_buffer import Allocate

Content: TypeAlias = Mapping[str, torch.Tensor]

_BEGUN, _READY = 0, 1


class Mailbox:
    """One process puts tensors in, another takes the newest out: whole, and without anybody waiting.

    They are put into two places in turn. What lies in one stays untouched until the next but one is begun, so that a
    reader sees by the counts whether what it has copied is whole.

    Args:
        places: Two sets of tensors.
        counts: int64 (2,), zeros at first: how often something was begun to be put in, and how often it was.
    """

    def __init__(self, places: Sequence[Content], counts: torch.Tensor) -> None:
        self.places, self.counts = places, counts

    def put(self, content: Content) -> None:
        """Puts something in, in the place of what is older."""
        number = int(self.counts[_READY]) + 1
        self.counts[_BEGUN] = number
        for name, place in self.places[number % 2].items():
            place.copy_(content[name])
        self.counts[_READY] = number

    def take(self, seen: int) -> tuple[int, dict[str, torch.Tensor]] | None:
        """A copy of the newest content and its number, from 1 on; `None` where that is not beyond `seen`."""
        while (number := int(self.counts[_READY])) > seen:
            content = {name: place.clone() for name, place in self.places[number % 2].items()}
            if int(self.counts[_BEGUN]) < number + 2:
                return number, content
        return None


class Exchange:
    """The shared numbers of one run. Each side makes its own, over the same memory.

    Args:
        allocate: Gives the tensors: new ones on one side, and the same on the other.
        num_envs: Envs that step together.
        letter: Name to a tensor like what is put into the mailbox.

    Attributes:
        heads: int64 (num_envs,), up to which slot of each env's ring everything is there. Who acts writes it.
        reserved: int64 (num_envs,), up to which slot there may be writing. Likewise.
        letters: What was learned: who learns puts it in.
    """

    def __init__(self, allocate: Allocate, num_envs: int, letter: Content) -> None:
        def numbers(name: str, count: int, kind: torch.dtype = torch.int64) -> torch.Tensor:
            return allocate(f"exchange/{name}", (count,), kind)

        self.heads, self.reserved = numbers("heads", num_envs), numbers("reserved", num_envs)
        self._steps, self._updates = numbers("steps", 1), numbers("updates", 1)
        self._idle, self._resting = numbers("idle", 1, torch.float64), numbers("resting", 1)
        places = [
            {name: allocate(f"letter/{turn}/{name}", tuple(like.shape), like.dtype) for name, like in letter.items()}
            for turn in range(2)
        ]
        self.letters = Mailbox(places, numbers("letters", 2))

    def reserve(self, heads: torch.Tensor) -> None:
        """Says, before anything is written, up to which slots it may be: nobody reads what was there any more."""
        self.reserved.copy_(heads)

    def publish(self, heads: torch.Tensor, steps: int) -> None:
        """Says that all is there up to some slots, and how many env steps that is."""
        self.heads.copy_(heads)
        self._steps[0] = steps

    @property
    def steps(self) -> int:
        """Env steps that are there."""
        return int(self._steps)

    @property
    def updates(self) -> int:
        """Gradient steps so far. Who learns sets it."""
        return int(self._updates)

    @updates.setter
    def updates(self, count: int) -> None:
        self._updates[0] = count

    @property
    def idle(self) -> float:
        """Seconds in which no gradient step was owed, since learning began. Who learns sets it."""
        return float(self._idle)

    @idle.setter
    def idle(self, seconds: float) -> None:
        self._idle[0] = seconds

    @property
    def resting(self) -> bool:
        """Whether no gradient step is to be taken, even if some are owed. Who acts sets it."""
        return bool(self._resting)

    @resting.setter
    def resting(self, wanted: bool) -> None:
        self._resting[0] = wanted
