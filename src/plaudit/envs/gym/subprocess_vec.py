"""Gymnasium's envs in processes of their own, watched: one that dies or hangs stops the run with its traceback."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import AsyncState

from plaudit.errors import EnvError
from plaudit.utils.subprocesses import how_it_ended

LAST_WORDS = 2.0
"""Seconds in which a process that hangs must write down where it is, and one that dies must be gone."""


class Workers(AsyncVectorEnv):
    """An `AsyncVectorEnv` whose troubles are `EnvError`s. It does not reset itself.

    Args:
        env_id: What messages call the env.
        makers: Make one env each.
        timeout: Seconds after which a process that does not answer counts as hanging.
    """

    def __init__(self, env_id: str, makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]], timeout: float) -> None:
        self.env_id, self.timeout, self._broken = env_id, timeout, False
        self._folder = tempfile.TemporaryDirectory(prefix="plaudit-workers-")
        self._stacks = [Path(self._folder.name) / str(index) for index in range(len(makers))]
        pairs = zip(makers, self._stacks, strict=True)
        started = [partial(_start, make, str(stack), os.getpid()) for make, stack in pairs]
        try:
            with self._watched("start"):
                super().__init__(started, copy=False, autoreset_mode=AutoresetMode.DISABLED)
        except BaseException:
            if hasattr(self, "_state"):  # All processes have been started.
                self.close()
            raise

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        with self._watched("reset"):
            self.reset_async(seed=seed, options=options)
            return self.reset_wait(self.timeout)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        with self._watched("step"):
            self.step_async(actions)
            return self.step_wait(self.timeout)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        with self._watched(name):
            self.call_async(name, *args, **kwargs)
            return self.call_wait(self.timeout)

    def _check_spaces(self) -> None:
        # Gymnasium's own waits for ever for envs that never get made. Any question will do: they answer when they are.
        self.call_async("render_mode")
        self.call_wait(self.timeout)
        super()._check_spaces()  # type: ignore[no-untyped-call]  # Gymnasium has it so.

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        if self._broken:
            # What still runs need not answer any more, not even to a polite signal.
            for process in self.processes:
                process.kill()
            self._state = AsyncState.DEFAULT
            terminate = True
        super().close_extras(timeout, terminate)
        self._folder.cleanup()

    @contextlib.contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        """Turns what goes wrong with the processes into our errors."""
        level = gymnasium.logger.min_level
        gymnasium.logger.min_level = gymnasium.logger.ERROR + 1  # What it would print is in our error.
        try:
            yield
        except multiprocessing.TimeoutError:
            self._broken = True
            raise EnvError(self._hangs(what)) from None
        except (EOFError, OSError) as error:
            self._broken = True
            raise EnvError(self._dead(what)) from error
        except BaseException:  # Ctrl-C among them: nobody waits for the answer any more.
            self._broken = True
            raise
        finally:
            gymnasium.logger.min_level = level

    def _hangs(self, what: str) -> str:
        """Who does not answer, and where it is."""
        silent = [index for index, pipe in enumerate(self.parent_pipes) if not pipe.poll()]
        if not silent:
            return f"gym:{self.env_id}: {what} took more than {self.timeout:g} s (env.cfg.worker_timeout)."
        if hasattr(signal, "SIGUSR1"):
            for index in silent:
                os.kill(int(self.processes[index].pid or 0), signal.SIGUSR1)
        return (
            f"gym:{self.env_id}: the process of env {silent[0]} has not answered to {what} for {self.timeout:g} s "
            f"(env.cfg.worker_timeout).{self._last_words(silent[0])}"
        )

    def _dead(self, what: str) -> str:
        """Who died, and of what."""
        gone = wait([process.sentinel for process in self.processes], timeout=LAST_WORDS)
        dead = [index for index, process in enumerate(self.processes) if process.sentinel in gone]
        if not dead:
            return f"gym:{self.env_id}: the connection to a process of an env broke in {what}."
        process = self.processes[dead[0]]
        process.join(LAST_WORDS)
        code = process.exitcode or 0
        words = self._last_words(dead[0]) if code in (-6, -7, -8, -11) else ""
        return f"gym:{self.env_id}: the process of env {dead[0]} {how_it_ended(code)}, in {what}.{words}"

    def _last_words(self, index: int) -> str:
        """The stack that a process wrote down, once it has."""
        until, stack = time.monotonic() + LAST_WORDS, self._stacks[index]
        while time.monotonic() < until and not (stack.exists() and stack.stat().st_size):
            time.sleep(0.02)
        text = stack.read_text(encoding="utf-8", errors="replace").strip() if stack.exists() else ""
        return f" It is here:\n{text}" if text else " It does not say where it is."


def _start(make: Callable[[], gymnasium.Env[Any, Any]], stack: str, owner: int) -> gymnasium.Env[Any, Any]:
    """Makes one env; in a process of its own, after that has been told whom signals are for."""
    if os.getpid() != owner:
        # Ctrl-C goes to all processes, but it is for the main one, which ends the others when it is ready.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        file = open(stack, "w", encoding="utf-8")  # noqa: SIM115 - open for as long as the process lives
        faulthandler.enable(file, all_threads=False)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, file, all_threads=False)
    return make()
