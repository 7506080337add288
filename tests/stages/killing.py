"""Runs the command line in a process of its own, which is killed in the midst of a stage."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from typing import Any

from plaudit.cli import main
from plaudit.pipelines.stage_record import FOLDERS


def killed_at(stage: str, words: list[str]) -> None:
    """Runs the command line in this process, until it is killed in the midst of a stage."""
    from plaudit.pipelines import compare
    from plaudit.rl.loggers import JsonlLogger

    logged = JsonlLogger.on_metrics

    def on_metrics(self: JsonlLogger, step: int, metrics: Any) -> None:
        logged(self, step, metrics)
        if self.path.parts[-3] == FOLDERS.get(stage) and self.path.read_text().count("\n") == 7:
            os.kill(os.getpid(), signal.SIGKILL)

    def test(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    JsonlLogger.on_metrics = on_metrics  # type: ignore[method-assign]
    if stage == "compare":
        compare._test = test
    sys.exit(main([*words, "--quiet"]))


def in_a_process(stage: str, *words: str) -> int | None:
    """The exit code of `killed_at` in a process of its own, which starts quickly: it is forked from one with torch."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["plaudit.pipelines", "plaudit.rl", "plaudit.reward_models.training.trainer", "plaudit.envs.mujoco"]
    )
    process = context.Process(target=killed_at, args=(stage, list(words)))
    process.start()
    process.join()
    return process.exitcode
