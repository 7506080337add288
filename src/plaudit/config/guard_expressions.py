"""Guards: what the robot itself must measure where a learned reward says success, such as `gripper_width > 0.01`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from plaudit.errors import nearest

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}

_PATTERN = re.compile(r"\s*([A-Za-z_]\w*)\s*(>=|<=|>|<)\s*(\S+)\s*")


@dataclass(frozen=True)
class Guard:
    """A quantity, and the bound that it must keep.

    Attributes:
        name: Of the quantity, as the env calls it.
        sign: One of `OPERATORS`.
        bound: In the quantity's own unit.
    """

    name: str
    sign: str
    bound: float

    def allows(self, values: Any) -> Any:
        """Whether values of the quantity, an array, keep the bound; an array of bool."""
        return OPERATORS[self.sign](values, self.bound)


def parse_guard(text: str) -> Guard:
    """Reads `name > number`, also with >=, < or <=; a `ValueError` says what a text that is no guard should be."""
    match = _PATTERN.fullmatch(text)
    try:
        bound = float(match[3]) if match else math.nan
    except ValueError:
        bound = math.nan
    if match is None or not math.isfinite(bound):
        raise ValueError(
            f"'{text}' is not a guard; write a quantity, a sign and a number, such as gripper_width > 0.01"
        )
    return Guard(match[1], match[2], bound)


def check_names(guards: Iterable[Guard], known: Iterable[str]) -> None:
    """A `ValueError` names the first guard whose quantity the env does not measure."""
    names = sorted(known)
    for guard in guards:
        if guard.name not in names:
            hint = nearest(guard.name, names) if names else " It declares none."
            raise ValueError(f"the env measures no '{guard.name}'.{hint}")
