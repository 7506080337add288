"""Processes that a fit starts by itself: what they leave behind, and how they end when one of them cannot go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fit_samples import square_store

from plaudit.cli import main
from plaudit.config.schema import FitConfig
from plaudit.errors import DataError, PlauditError
from plaudit.pipelines import fit_workers
from plaudit.pipelines.fit import FitJob
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.training.distributed import Seat
from plaudit.utils.interrupts import GracefulInterrupt

KEYS = "reward.training"
SMALL = [
    "runtime.threads=1",
    "runtime.cuda=false",
    f"{KEYS}.num_epochs=4",
    f"{KEYS}.global_batch_size=32",
    f"{KEYS}.optim.lr=0.01",
    f"{KEYS}.augment.shift=1",
    f"{KEYS}.save_dir=mine",
    f"{KEYS}.save_interval=4",
    f"{KEYS}.figures=false",
    "reward.model.width=8",
    "reward.model.encoder_stages=2",
    "reward.model.hidden_dim=16",
]
FRAIL = """
import os, signal
import torch.distributed
from plaudit.reward_models.classifiers import BinaryRewardClassifier
from plaudit.reward_models.config import BinaryClassifierConfig
from plaudit.reward_models.model import register_reward_model

@register_reward_model("frail")
class Frail(BinaryRewardClassifier):
    config: BinaryClassifierConfig

    def decide(self, features):
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decide(features)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a cache of its own, and squares to learn from."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    square_store(tmp_path / "data", 24)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[fit_workers.FitProcess]:
    """All workers that a test starts."""
    workers: list[fit_workers.FitProcess] = []
    before = fit_workers.FitProcess.__init__

    def init(worker: fit_workers.FitProcess, *args: Any) -> None:
        workers.append(worker)
        before(worker, *args)

    monkeypatch.setattr(fit_workers.FitProcess, "__init__", init)
    return workers


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object, and what people see."""
    code = main([*words, "--json", "--quiet"])
    out, err = capfd.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


def test_shards_end_in_an_artifact_that_one_process_goes_on_from(
    here: Path, capfd: pytest.CaptureFixture[str], started: list[fit_workers.FitProcess]
) -> None:
    code, result, shown = run(
        capfd, "fit", "data", *SMALL, f"{KEYS}.training_backend=fsdp", f"{KEYS}.output_checkpoint=one.pt"
    )
    assert code == 0 and result["metrics"]["roc_auc"] > 0.9 and shown.count("run folder: mine") == 1
    assert len(started) == 2 and all(worker.process.returncode == 0 for worker in started)
    artifact = RewardArtifact.load("mine")
    weights = torch.load("one.pt", weights_only=True)["model_state_dict"]
    assert all(type(weights[name]) is torch.Tensor for name in weights)
    assert all(torch.equal(value, weights[name]) for name, value in artifact.model().state_dict().items())
    words = ["fit", "--resume", "mine/step_8/checkpoint.pt", f"{KEYS}.training_backend=simple"]
    code, again, _ = run(capfd, *words)
    assert code == 0 and again["steps"] == result["steps"] and len(started) == 2
    assert again["validation"]["log_loss"] == pytest.approx(result["validation"]["log_loss"], abs=0.02)


def test_all_end_when_one_dies_and_its_reason_is_told_once(
    here: Path, capfd: pytest.CaptureFixture[str], started: list[fit_workers.FitProcess]
) -> None:
    (here / "frail.py").write_text(FRAIL)
    words = ["runtime.imports=[frail]", "reward.model.model_type=frail", f"{KEYS}.training_backend=ddp"]
    code, result, shown = run(capfd, "fit", "data", *SMALL, *words)
    message = "process 1 of a fit in 2 processes was ended by SIGKILL"
    assert code == 1 and message in result["error"] and shown.count(message) == 1
    assert "Connection closed" not in shown and all(worker.process.poll() is not None for worker in started)


# Stand-ins for workers, which take a moment and not seconds to start.
MEET = "from multiprocessing.connection import Connection; pipe = Connection({}); pipe.recv_bytes(); "
OURS = "import time; from plaudit.errors import DataError; from plaudit.pipelines import fit_workers as w; "
WAITS = MEET + "import time; time.sleep(100)"
ENDS = MEET + OURS + "pipe.send(w.Done(dict(steps=3)))"
DIES = MEET + "import os; os._exit(7)"
COMPLAINS = MEET + OURS + "pipe.send(w.WorkerFailure(DataError('no data')))"
LOSES_TOUCH = MEET + OURS + "pipe.send(w.WorkerFailure(RuntimeError('lost touch'), 'a trace', 2, 5.0)); time.sleep(100)"
BREAKS = (
    MEET + OURS + "pipe.send(w.WorkerFailure(RuntimeError('KeyError: 1'), 'another trace', 2, 4.0)); time.sleep(100)"
)
OBEYS = (
    MEET
    + OURS
    + "import signal; signal.signal(signal.SIGINT, lambda *_: pipe.send(w.WorkerFailure(KeyboardInterrupt()))); "
    "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT]); "
    "pipe.send(__import__('logging').makeLogRecord(dict(msg='ready', levelno=30))); time.sleep(100)"
)


def watch(monkeypatch: pytest.MonkeyPatch, *codes: str, asked: bool = False) -> dict[str, Any]:
    """Watches stand-ins, and sees that none is left."""
    workers = []
    for rank, code in enumerate(codes):
        monkeypatch.setattr(fit_workers, "CODE", code)
        workers.append(fit_workers.FitProcess(FitJob(FitConfig(), True), Seat("", rank, len(codes), rank, len(codes))))
    interrupt = GracefulInterrupt()
    if asked:
        workers[0].listen()  # It is ready to be interrupted.
        interrupt.requested = True
    try:
        return fit_workers._watch(workers, interrupt)
    finally:
        fit_workers._end(workers)
        assert all(worker.process.returncode is not None for worker in workers)


def test_the_first_has_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watch(monkeypatch, ENDS, ENDS) == {"steps": 3}


def test_of_several_failures_the_cause_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fit_workers, "GRACE", 1.5)
    with pytest.raises(PlauditError, match="process 1 of a fit in 2 processes ended with code 7"):
        watch(monkeypatch, LOSES_TOUCH, DIES)
    with pytest.raises(DataError, match="no data"):
        watch(monkeypatch, WAITS, COMPLAINS)
    with pytest.raises(PlauditError, match="process 1 of a fit in 2 processes failed: KeyError: 1"):
        watch(monkeypatch, LOSES_TOUCH, BREAKS)
    assert "another trace" in caplog.text and "a trace" not in caplog.messages


def test_the_first_is_told_of_ctrl_c(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt):
        watch(monkeypatch, OBEYS, WAITS, asked=True)
    assert caplog.messages == ["ready"]


def test_a_worker_ends_with_its_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_workers, "CODE", MEET + OURS + "w._follow(pipe)")
    worker = fit_workers.FitProcess(FitJob(FitConfig(), True), Seat("", 0, 1, 0, 1))
    worker.pipe.close()
    assert worker.process.wait(60) == 1


def test_what_cannot_work_is_said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, result, _ = run(capfd, "fit", "data", f"{KEYS}.training_processes=2")
    assert code == 2 and "training_processes: is for training_backend ddp and fsdp" in result["error"]
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    code, result, _ = run(capfd, "fit", "data")
    assert (
        code == 2
        and "torchrun has started 2 processes, but reward.training.training_backend is simple" in result["error"]
    )
    words = [f"{KEYS}.training_backend=ddp", f"{KEYS}.training_processes=3"]
    code, result, _ = run(capfd, "fit", "data", *words)
    assert code == 2 and "2 processes, but reward.training.training_processes is 3" in result["error"]
