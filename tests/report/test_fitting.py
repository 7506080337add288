"""What is shown of a fit, with a clock of our own."""

from __future__ import annotations

import io
import math

from plaudit.reporting.progress import FitDisplay

TRAIN = {
    "train/epoch": 1.25,
    "train/loss": 0.51234,
    "train/accuracy": 0.876,
    "train/frames_per_second": 1234.0,
    "train/lr": 0.001,
}


def validation(loss: float) -> dict[str, float]:
    return {
        "val/log_loss": loss,
        "val/balanced_accuracy": 0.951,
        "val/recall": math.nan,
        "val/episode_false_positive_rate": 0.0123,
    }


def test_lines_have_loss_speed_and_the_time_left() -> None:
    now = [0.0]
    out = io.StringIO()
    display = FitDisplay(stream=out, clock=lambda: now[0])
    display.on_start(0, 100)
    now[0] = 10.0
    display.on_metrics(25, TRAIN)
    line = out.getvalue().strip()
    assert line == "step 25/100 (25%)  epoch 1.2  loss 0.5123  accuracy 87.6%  1.23k frames/s  0:30 left"


def test_validations_have_a_line_each_but_not_all_at_once() -> None:
    now = [0.0]
    out = io.StringIO()
    display = FitDisplay(stream=out, clock=lambda: now[0])
    display.on_start(0, 100)
    display.on_eval(10, validation(0.3))
    now[0] = 1.0
    display.on_eval(20, validation(0.25))
    display.on_eval(30, validation(0.2))
    display.close()
    assert out.getvalue().splitlines() == [
        "step 10  validation:  log loss 0.3000  balanced accuracy 95.1%  false positives per episode 1.2%",
        "step 30  validation:  log loss 0.2000  balanced accuracy 95.1%  false positives per episode 1.2%",
    ]
