"""Worker processes as one simulation, with simulations that need no ManiSkill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

from plaudit.envs.maniskill.process_pool import WorkerPool
from plaudit.envs.maniskill.worker import Shapes, SharedArrays
from plaudit.errors import ConfigError, EnvError

torch.set_num_threads(1)

HERE = str(Path(__file__).parent)

Make = Callable[..., WorkerPool]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setenv("PYTHONPATH", HERE)
    with ExitStack() as stack:

        def build(kind: str = "Counter", num_envs: int = 3, workers: int = 2, draws: bool = False) -> WorkerPool:
            pool = WorkerPool(f"fake_sims:{kind}", {}, num_envs, workers, draws, (8, 8), patience=60.0)
            stack.callback(pool.close)
            return pool

        yield build


def processes(pool: WorkerPool) -> list[subprocess.Popen[bytes]]:
    return [worker.process for worker in pool._workers]


def test_steps_pictures_and_replays_of_all_workers(make: Make) -> None:
    pool = make()
    pool.start([0, 1, 2], [10, 11, 12])
    assert pool.state.tolist() == [[10, 0], [11, 0], [12, 0]]
    pool.advance(torch.tensor([[1.0], [2.0], [4.0]]))
    assert pool.state[:, 1].tolist() == [1, 2, 4] and pool.reward.tolist() == [1, 2, 4]
    assert pool.metrics.tolist() == [[2, 4, 8]]
    assert pool.success.tolist() == pool.terminated.tolist() == [False, False, True]
    frames = pool.render([2, 0])["front"]
    assert frames.shape == (2, 8, 8, 3) and frames[:, 0, 0, 0].tolist() == [4, 1]
    portraits = pool.portrait([2, 1])
    assert portraits is not None and portraits[:, 0, 0, 0].tolist() == [12, 11]
    assert pool.expert(torch.tensor([[0.5, 0, 0], [0, 0, 0], [1, 0, 0]])).tolist() == [[10.5], [11], [13]]
    pool.start([1], [99])
    assert pool.state.tolist() == [[10, 1], [99, 0], [12, 4]]
    kept = pool.snapshot()
    pool.advance(torch.ones(3, 1))
    drawn = pool.draw(torch.cat([kept, kept]))["front"]  # More than there are envs.
    assert pool.frames["front"][[2, 0], 0, 0, 0].tolist() == [4, 1]  # As `render` left them.
    assert drawn[:, 0, 0, 0].tolist() == [1, 0, 4, 1, 0, 4]
    assert pool.state[:, 1].tolist() == [2, 1, 5]  # Those that play were left alone.
    pool.replay([7, 8, 9], [np.ones((2, 1), np.float32), np.ones((0, 1), np.float32), np.ones((1, 1), np.float32)])
    assert pool.state.tolist() == [[7, 2], [8, 0], [9, 1]]


def test_pictures_are_drawn_with_each_step_where_they_are_observations(make: Make) -> None:
    pool = make(num_envs=1, draws=True)
    assert len(processes(pool)) == 1  # Not more than envs.
    pool.start([0], [1])
    pool.advance(torch.tensor([[3.0]]))
    assert pool.frames["front"][0, 0, 0].tolist() == [3, 3, 3]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Failing", ["worker 1 of 1, with envs 0 to 1, failed in 'advance'", "ZeroDivisionError: in the simulator"]),
        ("Dying", ["was ended by SIGKILL, perhaps for want of memory, in 'advance'"]),
        ("Crashing", ["was ended by SIGSEGV", "about to break", "in advance"]),
        ("Hanging", ["has not answered 'advance' for 0.5 s (env.cfg.worker_timeout)", "in advance"]),
    ],
)
def test_a_worker_that_goes_wrong_is_told_with_its_traceback(make: Make, kind: str, words: list[str]) -> None:
    pool = make(kind, num_envs=2, workers=1)
    if kind == "Hanging":
        pool.patience = 0.5
    with pytest.raises(EnvError) as caught:
        pool.advance(torch.zeros(2, 1))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert all(process.returncode is not None for process in processes(pool))
    with pytest.raises(EnvError, match="after it had failed"):
        pool.advance(torch.zeros(2, 1))


def test_our_own_errors_come_through_as_they_are(make: Make) -> None:
    with pytest.raises(ConfigError, match="unknown camera 'x'; there are front"):
        make("Unbuildable")


def test_an_answer_that_was_given_up_is_not_taken_for_the_next(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make(num_envs=1)
    pool.start([0], [5])

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("plaudit.envs.maniskill.process_pool.connection.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.advance(torch.ones(1, 1))
    portraits = pool.portrait([0])
    assert portraits is not None and portraits[0, 0, 0, 0] == 5


def test_close_ends_the_processes_and_may_come_twice(make: Make) -> None:
    pool = make(num_envs=1)
    pool.close()
    pool.close()
    assert [process.returncode for process in processes(pool)] == [0]


def test_workers_end_with_their_parent_however_it_ends(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"  # Without `if __name__ == "__main__"`, as people write it.
    script.write_text(
        "from plaudit.envs.maniskill.process_pool import WorkerPool\n"
        "pool = WorkerPool('fake_sims:Counter', {}, 1, 1, False, (8, 8), 60.0)\n"
        "print(pool._workers[0].process.pid, flush=True)\n"
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environ = {**os.environ, "PYTHONPATH": HERE}
    done = subprocess.run([sys.executable, str(script)], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    status = Path(f"/proc/{int(done.stdout)}")
    for _ in range(100):
        if not status.exists():
            break
        subprocess.run([sys.executable, "-c", ""], check=True)  # Gives it the time of a process' start.
    assert not status.exists() or "Z" in (status / "stat").read_text().split()[2]


def test_shared_arrays_do_not_overlap() -> None:
    shapes: Shapes = {"a": ("float32", (3, 2)), "none": ("float32", (0, 4)), "b": ("uint8", (5,)), "c": ("bool", (2,))}
    handle = os.memfd_create("test")
    os.ftruncate(handle, SharedArrays.size(shapes))
    one, other = SharedArrays(handle, shapes), SharedArrays(handle, shapes)
    os.close(handle)
    one["a"][:], one["b"][:], one["c"][:] = 7, 5, True
    assert (other["a"] == 7).all() and (other["b"] == 5).all() and other["c"].all()
    assert other["none"].shape == (0, 4) and SharedArrays.size(shapes) == 64 + 0 + 64 + 64
