"""Where a run's numbers go: `metrics.jsonl`, TensorBoard, Weights & Biases, or a listener of one's own."""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plaudit.config.schema import RuntimeConfig
from plaudit.errors import MissingDependencyError, OutputError
from plaudit.rl.run_dir import RunFolder
from plaudit.utils.atomic_io import whole_file

DELAY = 0.006
"""Seconds that `Aside` waits before it tells others: whoever told it is about to act, which takes some milliseconds."""


class Callback:
    """Is told what happens in a run. Every method does nothing until a subclass says otherwise."""

    def on_start(self, step: int, total_steps: int) -> None:
        """Training begins (or goes on) at `step` of `total_steps` env steps."""

    def on_prolonged(self, total_steps: int) -> None:
        """Training will take `total_steps`, more than `on_start` said."""

    def on_resume(self, step: int) -> None:
        """A checkpoint of `step` was loaded: what was logged after it will be logged again."""

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """An iteration is over."""

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation is over; the names begin with `eval/`."""

    def close(self) -> None:
        """The run is over."""

    def state_dict(self) -> dict[str, Any] | None:
        """What a checkpoint is to keep of it; `None` for nothing."""
        return None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave, before the envs go on."""


class Aside(Callback):
    """Has others told in a thread of their own: a control loop must not wait for a disk, a network or a terminal.

    They are told a moment later, by when a loop of some 10 Hz has acted, as a rule, and sleeps until its next tick: who
    writes has Python's lock at times. What goes wrong there is raised when the next thing is told, or at the end.
    Nothing of them is kept in checkpoints.

    Args:
        listeners: The others.
    """

    def __init__(self, listeners: Sequence[Callback]) -> None:
        self.listeners = listeners
        self._news: queue.SimpleQueue[tuple[float, Callable[[Callback], None]] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def on_start(self, step: int, total_steps: int) -> None:  # The loop has not begun: what takes long belongs here.
        for listener in self.listeners:
            listener.on_start(step, total_steps)

    def on_prolonged(self, total_steps: int) -> None:
        self._tell(lambda listener: listener.on_prolonged(total_steps))

    def on_resume(self, step: int) -> None:
        for listener in self.listeners:
            listener.on_resume(step)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tell(lambda listener: listener.on_metrics(step, metrics))

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tell(lambda listener: listener.on_eval(step, metrics))

    def close(self) -> None:
        self._news.put(None)
        self._thread.join()
        for listener in self.listeners:
            listener.close()
        self._raise()

    def _tell(self, news: Callable[[Callback], None]) -> None:
        self._raise()
        self._news.put((time.monotonic() + DELAY, news))

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _pass_on(self) -> None:
        while (found := self._news.get()) is not None:
            due, news = found
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                for listener in self.listeners:
                    news(listener)
            except Exception as error:
                self._error = self._error or error


class JsonlLogger(Callback):
    """One JSON object a line: `step` and the metrics. Numbers that are not finite become null.

    Args:
        path: The file, made on the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_resume(self, step: int) -> None:
        if not self.path.exists():
            return
        kept = [line for line in self.path.read_text().splitlines() if _step_of(line) <= step]
        with whole_file(self.path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept))

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        try:
            with self.path.open("a") as file:
                file.write(json.dumps({"step": step, **values}) + "\n")
        except OSError as error:
            raise OutputError(f"cannot write '{self.path}': {error.strerror or error}.") from error

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        self.on_metrics(step, metrics)


def _step_of(line: str) -> float:
    """The step of a line; a line cut short by a kill counts as too late."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


class TensorBoardLogger(Callback):
    """Scalars for TensorBoard.

    Args:
        folder: Where the event files go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._purge_step: int | None = None
        self._writer: Any = None

    def on_resume(self, step: int) -> None:
        self._purge_step = step + 1

    def on_start(self, step: int, total_steps: int) -> None:
        self._open()

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._open()
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        self.on_metrics(step, metrics)

    def _open(self) -> None:
        if self._writer is not None:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingDependencyError("TensorBoard is not installed: pip install tensorboard") from error
        self._writer = SummaryWriter(str(self.folder), purge_step=self._purge_step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandbLogger(Callback):
    """Scalars for Weights & Biases.

    Args:
        project: Its project.
        run: The run's folder; its name is the run's name and id, so that a resumed run goes on in the same one.
        config: What to show as the run's config.
    """

    def __init__(self, project: str, run: RunFolder, config: Mapping[str, Any] | None = None) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingDependencyError(
                "runtime.use_wandb needs Weights & Biases: pip install wandb (or set runtime.use_wandb=false)"
            ) from error
        name = run.path.name
        self._run: Any = wandb.init(
            project=project, name=name, id=name, dir=str(run.logs), resume="allow", config=dict(config or {})
        )

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        self.on_metrics(step, metrics)

    def close(self) -> None:
        self._run.finish()


def default_listeners(
    run: RunFolder, settings: RuntimeConfig, config: Mapping[str, Any] | None = None
) -> list[Callback]:
    """The loggers that a run has: `metrics.jsonl`, TensorBoard, and Weights & Biases if asked for."""
    listeners: list[Callback] = [JsonlLogger(run.logs / "metrics.jsonl"), TensorBoardLogger(run.logs)]
    if settings.use_wandb:
        listeners.append(WandbLogger(settings.wandb_project_name, run, config))
    return listeners
