"""Who gets which core."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from plaudit.utils import memory, realtime, threads


def test_a_fit_has_every_core_unless_told_or_too_small() -> None:
    assert threads.fit_threads() == threads.cores() >= 1
    assert threads.fit_threads(3) == 3
    assert threads.fit_threads(3, head_only=True) == threads.fit_threads(head_only=True) == 1
    assert threads.fit_threads(5, processes=2) == 2 and threads.fit_threads(1, processes=2) == 1


def test_a_policy_has_one_core_unless_it_looks_at_pictures() -> None:
    assert threads.learning_threads() == threads.learning_threads(3) == 1
    assert threads.learning_threads(looks=True) == threads.cores()
    assert threads.learning_threads(3, looks=True) == 3


def test_who_acts_beside_a_learner_leaves_it_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads.apart_threads(3) == (2, 1) and threads.apart_threads(4, looks=True) == (2, 2)
    for cores, acting, looking in ((1, 1, (1, 1)), (2, 1, (1, 1)), (8, 7, (4, 4)), (9, 8, (5, 4))):
        monkeypatch.setattr(threads, "cores", lambda cores=cores: cores)
        assert threads.apart_threads() == (acting, 1) and threads.apart_threads(looks=True) == looking


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3.0),
        ({}, None),
    ],
)
def test_a_containers_share_of_the_cores(
    files: dict[str, str], quota: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert threads._quota(tmp_path) == quota
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(threads, "_quota", lambda: quota)
    assert threads.cores() == {None: 8, 1.5: 2, 3.0: 3}[quota]


def test_torch_gets_its_share() -> None:
    before = torch.get_num_threads()
    try:
        threads.claim_threads(2)
        assert torch.get_num_threads() == 2
        assert threads.kernel_threads() == 2  # They have what torch has, unless somebody says otherwise.
        assert threads.claim_threads(1, 3) == 2
        assert torch.get_num_threads() == 1 and threads.kernel_threads() == 3
        threads.claim_threads(4)
        assert torch.get_num_threads() == 4 and threads.kernel_threads() == 3
        assert threads.claim_threads(of_kernels=0) == 4
        assert torch.get_num_threads() == threads.kernel_threads() == 1
    finally:
        threads.claim_threads(before, 0)


def test_who_steps_back_says_so_of_its_session_too(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from plaudit.utils.realtime import give_way"
    code += "; give_way(Path(sys.argv[1]))"
    words = [sys.executable, "-c", f"{code}; print(os.nice(0))"]
    for group in (tmp_path / "autogroup", tmp_path / "none" / "autogroup"):
        done = subprocess.run([*words, str(group)], capture_output=True, text=True, check=True)
        assert int(done.stdout) == min(19, os.nice(0) + 10)  # 19 is as far as anybody can step back.
    assert (tmp_path / "autogroup").read_text() == "10"


def test_what_the_user_says_of_waiting_threads_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    threads.wait_quietly()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    threads.wait_quietly()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize(("largest", "tried"), [(2**31, [2**30]), (2**25, [2**30, 2**25])])
def test_freed_memory_is_kept_as_glibc_permits(monkeypatch: pytest.MonkeyPatch, largest: int, tried: list[int]) -> None:
    asked: list[tuple[int, int]] = []

    class Glibc:
        @staticmethod
        def mallopt(option: int, value: int) -> int:
            asked.append((option, value))
            return int(option != -3 or value <= largest)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Glibc)
    realtime.keep_freed_memory()
    assert asked == [*((-3, value) for value in tried), (-1, 2**31 - 1)]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    realtime.keep_freed_memory()


def test_no_driver_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not threads.has_gpu()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: None)
    assert threads.has_gpu()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not threads.has_gpu()


def test_memory_that_is_free_is_the_least_that_anybody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "/proc/meminfo": "MemTotal:       24000000 kB\nMemAvailable:    2000000 kB\n",
        "/sys/fs/cgroup/memory.max": "1000000000\n",
        "/sys/fs/cgroup/memory.current": "700000000\n",
        "/sys/fs/cgroup/memory.stat": "anon 5\ninactive_file 100000000\n",
    }

    def read(path: Path) -> str:
        if str(path) not in told:
            raise FileNotFoundError(path)
        return told[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    # The container has a gigabyte, of which 0.7 are used, and 0.1 of those can be had back.
    assert memory.available_memory() == 400_000_000
    told["/sys/fs/cgroup/memory.max"] = "max\n"
    assert memory.available_memory() == 2_048_000_000
    told.clear()
    assert memory.available_memory() is None


def test_an_undisturbed_loop_is_spared_the_search_for_old_garbage() -> None:
    before = gc.get_freeze_count()
    with realtime.undisturbed(False):
        assert gc.get_freeze_count() == before
    with realtime.undisturbed():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0


LINUX = pytest.mark.skipif(not hasattr(os, "SCHED_RESET_ON_FORK"), reason="of Linux")


class Scheduler:
    """Linux's, for a user who may take a priority of 1 and no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: int, limit: int) -> None:
        self.policy, self.priority, self.limit = policy, 0, limit
        monkeypatch.setattr(os, "sched_getscheduler", lambda thread: self.policy)
        monkeypatch.setattr(os, "sched_setscheduler", self.set)

    def set(self, thread: int, policy: int, param: os.sched_param) -> None:
        forgets = self.policy & os.SCHED_RESET_ON_FORK and not policy & os.SCHED_RESET_ON_FORK
        if thread != 0 or param.sched_priority > self.limit or forgets:
            raise PermissionError(1, "Operation not permitted")
        self.policy, self.priority = policy, param.sched_priority


@LINUX
def test_who_is_ahead_has_the_least_priority_for_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    linux = Scheduler(monkeypatch, os.SCHED_OTHER, limit=1)
    with realtime.ahead(False):
        assert linux.policy == os.SCHED_OTHER and not realtime.has_priority()
    for _ in range(2):  # Also once more.
        with pytest.raises(KeyError), realtime.ahead():
            assert (linux.policy, linux.priority) == (os.SCHED_RR | os.SCHED_RESET_ON_FORK, 1)
            assert realtime.has_priority()
            raise KeyError
        assert linux.policy & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER
        assert linux.priority == 0 and not realtime.has_priority()


@LINUX
def test_what_somebody_has_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    linux = Scheduler(monkeypatch, os.SCHED_FIFO, limit=99)
    linux.priority = 50
    with realtime.ahead():
        assert (linux.policy, linux.priority) == (os.SCHED_FIFO, 50) and realtime.has_priority()
    assert (linux.policy, linux.priority) == (os.SCHED_FIFO, 50)


@LINUX
def test_who_may_not_be_ahead_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Scheduler(monkeypatch, os.SCHED_OTHER, limit=0)
    with caplog.at_level("INFO", "plaudit"), realtime.ahead():
        assert not realtime.has_priority()
    assert "no real-time priority (Operation not permitted)" in caplog.text and "rtprio 1" in caplog.text


@LINUX
def test_what_is_begun_ahead_is_not_ahead() -> None:
    found = []
    with realtime.ahead():
        if not realtime.has_priority():
            pytest.skip("not allowed here")
        thread = threading.Thread(target=lambda: found.append(realtime.has_priority()))
        thread.start()
        thread.join()
        ask = "from plaudit.utils.realtime import has_priority; raise SystemExit(has_priority())"
        assert subprocess.run([sys.executable, "-c", ask], check=False).returncode == 0
    assert found == [False] and not realtime.has_priority()
