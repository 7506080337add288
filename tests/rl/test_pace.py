"""The ratio of gradient steps to env steps is what the config says, exactly."""

from __future__ import annotations

import pytest

from plaudit.rl.algorithms.update_ratio import Pace


@pytest.mark.parametrize(("ratio", "each"), [(0.25, 16), (0.1, 3), (0.29, 1), (1.0, 7), (4.0, 5), (2.5, 1), (0.3, 2)])
def test_steps_are_due_as_asked_for_at_any_time(ratio: float, each: int) -> None:
    pace = Pace(ratio, starts=100)
    for turn in range(1, 401):
        pace.steps += each
        assert pace.owed >= 0
        pace.updates += pace.owed
        due = ratio * max(0, turn * each - 100)
        assert due - 1 < pace.updates <= due + 1e-9
    assert pace.owed == 0


def test_a_tenth_is_a_tenth() -> None:
    pace = Pace(0.29, starts=0)  # 0.29 * 100 is 28.999999999999996 in binary.
    pace.steps = 100
    assert pace.owed == 29


def test_counts_go_on_after_a_resume_and_another_ratio_holds_from_there() -> None:
    pace = Pace(0.25, starts=10)
    pace.steps = 33
    pace.updates = pace.owed
    assert pace.updates == 5
    same, faster = Pace(0.25, starts=10), Pace(2.0, starts=10)
    for other in (same, faster):
        other.load_state_dict(pace.state_dict())
        assert other.owed == 0
        other.steps += 5
    assert same.owed == 2  # 28 / 4 = 7: what was left over counts.
    assert faster.owed == 10
    early, changed = Pace(0.25, starts=10), Pace(1.0, starts=10)
    early.steps = 4
    changed.load_state_dict(early.state_dict())
    changed.steps = 12
    assert changed.owed == 2


def test_where_learning_has_not_begun_it_begins_when_the_config_says_now() -> None:
    pace, sooner = Pace(0.5, starts=1000), Pace(0.5, starts=200)
    pace.steps = 300
    sooner.load_state_dict(pace.state_dict())
    assert sooner.owed == 50
    sooner.updates = 50
    later = Pace(0.5, starts=1000)
    later.load_state_dict(sooner.state_dict())  # It has begun, and goes on.
    later.steps += 2
    assert later.owed == 1
