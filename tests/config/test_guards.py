from __future__ import annotations

import pytest

from plaudit.config.guard_expressions import Guard, check_names, parse_guard


@pytest.mark.parametrize(
    ("text", "guard", "values"),
    [
        ("gripper_width > 0.01", Guard("gripper_width", ">", 0.01), [False, False, True]),
        ("x>=1e-2", Guard("x", ">=", 0.01), [False, True, True]),
        (" x < 0.01 ", Guard("x", "<", 0.01), [True, False, False]),
        ("x <= 0.01", Guard("x", "<=", 0.01), [True, True, False]),
    ],
)
def test_guards(text: str, guard: Guard, values: list[bool]) -> None:
    assert parse_guard(text) == guard
    assert [guard.allows(value) for value in (-1, 0.01, 1)] == values


@pytest.mark.parametrize("text", ["", "x", "x > y", "x = 1", "x > 1 < 2", "1 < x", "x > nan", "x > inf", "a b > 1"])
def test_what_is_no_guard(text: str) -> None:
    with pytest.raises(ValueError, match="is not a guard; write a quantity, a sign and a number"):
        parse_guard(text)


def test_names() -> None:
    check_names([parse_guard("a > 1")], ["a", "b"])
    with pytest.raises(ValueError, match=r"measures no 'gripper_with'. Did you mean 'gripper_width'"):
        check_names([parse_guard("gripper_with > 1")], ["gripper_width"])
