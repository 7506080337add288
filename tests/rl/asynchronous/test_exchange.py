"""What passes between who acts and who learns is whole, and newer than what was there before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from plaudit.rl.async_.shared_state import Exchange, Mailbox


class Disturbed(dict[str, torch.Tensor]):
    """Tensors, between the first and the second of which something else happens whenever they are gone through."""

    def __init__(self, content: dict[str, torch.Tensor]) -> None:
        super().__init__(content)
        self.meanwhile: list[Callable[[], Any]] = []

    def items(self) -> Iterator[tuple[str, torch.Tensor]]:  # type: ignore[override]
        for number, pair in enumerate(super().items()):
            if number == 1 and self.meanwhile:
                self.meanwhile.pop()()
            yield pair


def content(value: float) -> dict[str, torch.Tensor]:
    """Both parts say the same."""
    return {"a": torch.full((3,), value), "b": torch.full((2,), value)}


def mailbox() -> tuple[Mailbox, tuple[Disturbed, Disturbed]]:
    places = Disturbed(content(0.0)), Disturbed(content(0.0))
    return Mailbox(places, torch.zeros(2, dtype=torch.int64)), places


def values(taken: tuple[int, dict[str, torch.Tensor]] | None) -> list[float]:
    assert taken is not None
    return [float(part) for part in torch.cat(list(taken[1].values())).unique()]


def test_the_newest_is_taken_and_only_once() -> None:
    box, _ = mailbox()
    assert box.take(0) is None
    box.put(content(1.0))
    box.put(content(2.0))
    taken = box.take(0)
    assert taken is not None and taken[0] == 2 and values(taken) == [2.0]
    assert box.take(2) is None
    box.put(content(3.0))
    assert values(box.take(2)) == [3.0]
    assert values(taken) == [2.0]  # A copy.


def test_what_is_put_in_while_something_is_taken_does_not_mix_with_it() -> None:
    box, places = mailbox()
    box.put(content(1.0))
    # One more goes into the other place: what is being read stays as it is.
    places[1].meanwhile = [lambda: box.put(content(2.0))]
    assert values(box.take(0)) == [1.0]
    # Two more, and the second overwrites what is being read: it is read again.
    places[0].meanwhile = [lambda: (box.put(content(3.0)), box.put(content(4.0)))]
    assert values(box.take(1)) == [4.0]


def test_what_is_half_written_is_not_taken() -> None:
    box, places = mailbox()
    seen = []
    box.put(content(1.0))
    places[0].meanwhile = [lambda: seen.append(values(box.take(0)))]  # While the second is being put in.
    box.put(content(2.0))
    assert seen == [[1.0]]
    # The place that is read is being overwritten: the counts say so before the first number changes.
    halves = []
    places[0].meanwhile = [lambda: halves.append(int(box.counts[0]))]
    places[1].meanwhile = []
    box.put(content(3.0))
    box.put(content(4.0))
    assert halves == [4] and int(box.counts[1]) == 4


def test_both_sides_see_the_same_numbers() -> None:
    tensors: dict[str, torch.Tensor] = {}

    def allocate(name: str, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        return tensors.setdefault(name, torch.zeros(shape, dtype=kind))

    acting, learning = (Exchange(allocate, 2, content(0.0)) for _ in range(2))
    acting.reserve(torch.tensor([5, 7]))
    acting.publish(torch.tensor([3, 4]), 14)
    learning.updates, learning.idle = 9, 1.5
    learning.letters.put(content(2.0))
    assert learning.reserved.tolist() == [5, 7] and learning.heads.tolist() == [3, 4] and learning.steps == 14
    assert acting.updates == 9 and acting.idle == 1.5
    assert values(acting.letters.take(0)) == [2.0]
