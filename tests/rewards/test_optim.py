"""Step sizes over time, by hand."""

from __future__ import annotations

import pytest
import torch

from plaudit.config.reward_schema import OptimConfig
from plaudit.reward_models.training.trainer import build_optimizer, lr_factor


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 1, 1, 1]), ("linear", [0.5, 1, 0.5, 0]), ("cosine", [0.5, 1, 0.5, 0])],
)
def test_schedules(schedule: str, expected: list[float]) -> None:
    config = OptimConfig(lr_schedule=schedule, warmup_steps=20)  # type: ignore[arg-type]
    assert [lr_factor(config, done, 100) for done in (0.1, 0.2, 0.6, 1.0)] == pytest.approx(expected, abs=1e-12)


def test_warm_up_is_a_twentieth_unless_said() -> None:
    assert lr_factor(OptimConfig(), 0.025, 1000) == pytest.approx(0.5)
    assert lr_factor(OptimConfig(warmup_steps=0), 0.001, 1000) == pytest.approx(1.0, abs=1e-5)
    assert lr_factor(OptimConfig(warmup_steps=2000), 1.0, 1000) == pytest.approx(0.5)


def test_cosine_is_slow_at_both_ends() -> None:
    config = OptimConfig(warmup_steps=0)
    assert lr_factor(config, 0.25, 10) == pytest.approx((1 + 0.5**0.5) / 2)


@pytest.mark.parametrize(("name", "decay"), [("adam", 0.0), ("adamw", 1e-2)])
def test_adam_does_not_shrink_weights_unless_told_to(name: str, decay: float) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    assert build_optimizer([weight], OptimConfig(optimizer=name)).param_groups[0]["weight_decay"] == decay  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weight_decay"):
        OptimConfig(weight_decay=-1.0)


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_optimizers(name: str, kind: type) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = build_optimizer([weight], OptimConfig(optimizer=name, lr=0.1, weight_decay=0.5))  # type: ignore[arg-type]
    assert type(optimizer) is kind
    weight.grad = torch.zeros(2)
    optimizer.step()
    # Without a gradient AdamW shrinks by lr * decay; to Adam the decay is a gradient, and its first step is lr.
    assert weight.tolist() == pytest.approx([0.95 if name == "adamw" else 0.9] * 2)
