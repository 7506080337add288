"""Two processes: each ends when the other does, and says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from async_helpers import actor_of, make_async
from sac_helpers import make_trainer, sac_of

from plaudit.errors import EnvError, PlauditError
from plaudit.rl import Callback, checkpoint


class At(Callback):
    """Does something at a step."""

    def __init__(self, step: int, what: Any) -> None:
        self.step, self.what = step, what

    def on_metrics(self, step: int, metrics: Any) -> None:
        if step == self.step:
            self.what()


def test_two_processes_train_together_and_go_on_later(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"run": tmp_path, "sac": {"update_ratio": 0.5}, "save_freq": 128}
    trainer = make_async(iterations=10, **keys)
    actor = actor_of(trainer)
    try:
        trainer.train()
        child = actor.process.process
        assert actor.exchange.updates == (320 - 64) // 2
    finally:
        actor.close()
    assert child.returncode == 0
    resumed = make_trainer(seed=5, **keys)  # In this process, to look at.
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    sac = sac_of(resumed)
    assert sac.pace.steps == len(sac.buffer) == 320 and sac.pace.updates == sac.learner.steps == 128
    for name, value in trainer.policy.state_dict().items():
        if not name.startswith("critics"):
            assert torch.equal(value, resumed.policy.state_dict()[name])


@pytest.mark.parametrize("how", ["killed", "failed"])
def test_the_end_of_learning_is_the_end_of_acting(tmp_path: Path, how: str) -> None:
    actor: Any = None

    def spoil() -> None:
        if how == "killed":
            os.kill(actor.process.process.pid, signal.SIGKILL)
        else:
            actor.buffer.columns["reward"].fill_(float("inf"))

    trainer = make_async(run=tmp_path, iterations=10**6, save_freq=96, listeners=[At(192, spoil)])
    actor = actor_of(trainer)
    said = r"was ended by SIGKILL.*--resume" if how == "killed" else r"failed: SAC's critics are lost"
    try:
        with pytest.raises(PlauditError, match=said):
            trainer.train()
        child = actor.process.process
    finally:
        actor.close()
    assert child.returncode == (-signal.SIGKILL if how == "killed" else 0)
    again = make_trainer(run=tmp_path)
    again.load(tmp_path / "checkpoints" / "latest.pt")
    assert again.step >= 96 and all(torch.isfinite(value).all() for value in again.policy.state_dict().values())


SCRIPT = textwrap.dedent(
    """
    import os, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from async_helpers import actor_of, make_async
    from plaudit.rl import Callback

    class Tell(Callback):
        def on_metrics(self, step, metrics):
            if step == 192:
                actor.flush()
                print(actor.process.process.pid, flush=True)
                sys.stdin.readline()  # Killed here.

    trainer = make_async(run=Path(sys.argv[1]), save_freq=96, listeners=[Tell()])
    actor = actor_of(trainer)
    trainer.train()
    """
)


def test_the_end_of_acting_is_the_end_of_learning(tmp_path: Path) -> None:
    words = [sys.executable, "-c", SCRIPT, str(tmp_path), str(Path(__file__).parent.parent)]
    pipe = subprocess.PIPE
    acting = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert acting.stdout is not None and acting.stderr is not None
    learning = int(acting.stdout.readline())
    os.kill(learning, 0)
    acting.kill()
    # The other one holds stderr open for as long as it lives.
    assert "the acting process is gone, and learning ends" in acting.stderr.read()
    assert acting.wait() == -signal.SIGKILL
    resumed = make_trainer(run=tmp_path)
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    assert resumed.step == sac_of(resumed).pace.steps == 96


def test_a_save_that_fails_because_of_an_error_is_told_and_does_not_hide_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def spoil() -> None:
        actor.flush()
        (tmp_path / "checkpoints").rename(tmp_path / "before")
        (tmp_path / "checkpoints").write_text("")  # Nothing can be written there any more.
        trainer.env.step = fail  # type: ignore[method-assign]

    def fail(action: torch.Tensor) -> Any:
        raise EnvError("the arm has stopped.")

    trainer = make_async(run=tmp_path, save_freq=96, listeners=[At(128, spoil)])
    actor = actor_of(trainer)
    with pytest.raises(EnvError, match=r"the arm has stopped"), closing(actor):
        trainer.train()
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 2 and "the learning process failed: cannot write" in said[0]
    assert said[1].startswith("not written, though asked for: latest.pt.")
    assert checkpoint.load(tmp_path / "before" / "latest.pt")["trainer"]["step"] == 96


def test_saves_do_not_pile_up_where_the_disk_is_slow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make_async(run=tmp_path, keep_checkpoints=0)
    actor = actor_of(trainer)
    with closing(actor):
        trainer.train(iterations=1)
        process, folder = actor.process, checkpoint.CheckpointFolder(tmp_path / "checkpoints", 0)
        os.kill(process.process.pid, signal.SIGSTOP)  # A disk on which nothing is written.
        names = ["latest.pt", "step_1.pt", "latest.pt", "step_2.pt", "step_3.pt", "best.pt", "latest.pt", "best.pt"]
        for number, name in enumerate([*names, "latest.pt"]):
            trainer.step = number
            actor.save(folder, name, trainer.state_dict())
        waiting = [(wish.name, wish.content["trainer"]["step"]) for wish in process.unsaved]
        os.kill(process.process.pid, signal.SIGCONT)
    assert waiting == [("latest.pt", 0), ("step_3.pt", 4), ("best.pt", 7), ("latest.pt", 8)]
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "too slow" in line] == [
        "the disk is too slow for so many checkpoints: 'step_1.pt' is not written, as 'step_2.pt' is due, and so it "
        "may be with others. Raise runtime.save_freq."
    ]
    # All that was waiting is written before the end, in its order.
    steps = {path.name: checkpoint.load(path)["trainer"]["step"] for path in folder.path.iterdir()}
    assert steps == {"step_3.pt": 4, "best.pt": 7, "latest.pt": 8}
