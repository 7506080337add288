import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from plaudit.errors import CheckpointError, OutputError
from plaudit.rl import RunFolder, checkpoint
from plaudit.rl import run_dir as run_module
from plaudit.utils.rng import preserved_rng, rng_state, set_rng_state


def test_round_trip_of_tensors_arrays_and_plain_containers(tmp_path: Path) -> None:
    content = {
        "policy": {"w": torch.randn(3)},
        "env": {"q": np.arange(4.0), "ids": np.array([1, 2], np.uint32), "big": 2**100, "none": None},
        "list": [1, (2.5, "x"), {3: True}, np.float32(0.5)],
    }
    checkpoint.save(tmp_path / "a.pt", content)
    back = checkpoint.load(tmp_path / "a.pt")
    assert torch.equal(back["policy"]["w"], content["policy"]["w"])
    assert isinstance(back["env"]["q"], np.ndarray)
    assert back["env"]["q"].tolist() == [0, 1, 2, 3]
    assert back["env"]["ids"].dtype == np.uint32
    assert back["env"]["big"] == 2**100
    assert back["list"] == [1, (2.5, "x"), {3: True}, 0.5]
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_only_plain_things_are_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Path"):
        checkpoint.save(tmp_path / "a.pt", {"policy": {}, "x": tmp_path})
    assert not list(tmp_path.iterdir())


def test_views_are_saved_without_the_storage_they_are_part_of(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.pt", {"policy": {"w": torch.zeros(1_000_000)[:10]}})
    assert (tmp_path / "a.pt").stat().st_size < 10_000


def test_missing_damaged_and_foreign_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "latest.pt"
    with pytest.raises(CheckpointError, match=r"no checkpoint '.*latest\.pt'"):
        checkpoint.load(path)
    checkpoint.save(path, {"policy": {"w": torch.zeros(1000)}})
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:10], b"", b"not a checkpoint at all"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"latest\.pt' is damaged"):
            checkpoint.load(path)
    torch.save({"weights": 1}, path)
    with pytest.raises(CheckpointError, match="holds no policy"):
        checkpoint.load(path)
    torch.save({"policy": {}, "version": 99}, path)
    with pytest.raises(CheckpointError, match="format 99"):
        checkpoint.load(path)


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save({"policy": Evil(), "version": 1}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match=r"evil\.pt"):
        checkpoint.load(tmp_path / "evil.pt")
    assert not (tmp_path / "owned").exists()


def test_a_checkpoint_of_another_policy_names_the_first_difference() -> None:
    here = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with pytest.raises(CheckpointError, match=r"'0\.weight' has shape \(8, 4\) here and \(8, 5\) there"):
        checkpoint.load_policy(here, nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).state_dict(), "a.pt")
    with pytest.raises(CheckpointError, match=r"lacks '2\.weight'"):
        checkpoint.load_policy(here, nn.Sequential(nn.Linear(4, 8)).state_dict(), "a.pt")
    more = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2), nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match=r"has '3\.weight', which is not here"):
        checkpoint.load_policy(here, more.state_dict(), "a.pt")


def test_a_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "latest.pt"
    checkpoint.save(path, {"policy": {"w": torch.ones(2)}})

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"No space left.*previous one is kept"):
        checkpoint.save(path, {"policy": {"w": torch.zeros(2)}})
    monkeypatch.undo()
    assert checkpoint.load(path)["policy"]["w"].tolist() == [1.0, 1.0]
    assert [file.name for file in tmp_path.iterdir()] == ["latest.pt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_torchs_own_report_of_a_full_disk_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def onto_full(path: Path, mode: str = "r") -> object:
        return real(Path("/dev/full"), mode) if mode == "wb" else real(path, mode)

    monkeypatch.setattr(Path, "open", onto_full)
    with pytest.raises(OutputError, match="cannot write the checkpoint"):
        checkpoint.save(tmp_path / "latest.pt", {"policy": {"w": torch.zeros(1_000_000)}})


def test_links_and_pruning(tmp_path: Path) -> None:
    for step in (100, 900, 1000, 2000):
        checkpoint.save(tmp_path / f"step_{step}.pt", {"policy": {"step": step}})
        checkpoint.link(tmp_path / f"step_{step}.pt", tmp_path / "latest.pt")
    checkpoint.prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.pt", "step_1000.pt", "step_2000.pt"]
    assert checkpoint.load(tmp_path / "latest.pt")["policy"]["step"] == 2000
    checkpoint.prune(tmp_path, 0)
    assert len(list(tmp_path.iterdir())) == 3


def test_random_state_goes_through_a_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "a.pt", {"policy": {}, "rng": rng_state()})
    drawn = torch.rand(3).tolist(), np.random.rand(3).tolist()
    set_rng_state(checkpoint.load(tmp_path / "a.pt")["rng"])
    with preserved_rng():
        torch.rand(100), np.random.rand(100)
    assert (torch.rand(3).tolist(), np.random.rand(3).tolist()) == drawn


def test_run_folders_are_made_and_never_shared(tmp_path: Path) -> None:
    first, second = (RunFolder.create(tmp_path / "out", "exp") for _ in range(2))
    assert first.path != second.path
    assert first.path.name.startswith("exp_20")
    for folder in (first.logs, first.checkpoints, first.videos):
        assert folder.is_dir()


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"cannot write.*runtime\.output_dir"):
        RunFolder.create(tmp_path / "file", "exp")


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/sys").exists(), reason="root may write anywhere")
def test_a_system_folder_that_cannot_be_written_is_said() -> None:
    with pytest.raises(OutputError, match="cannot write"):
        RunFolder.create("/proc/sys", "exp")


def test_a_disk_without_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "ROOM", 2**62)
    with pytest.raises(OutputError, match="MB free"):
        RunFolder.create(tmp_path, "exp")


def test_rl_is_imported_lazily() -> None:
    code = "import sys, plaudit.rl; assert 'torch' not in sys.modules; plaudit.rl.PPO; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
