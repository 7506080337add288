"""A replay on the disk: what is new is written, what is old goes, and what is torn is told of."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_replay import Walk, everything, rows

from plaudit.errors import CheckpointError, ConfigError, OutputError
from plaudit.rl.buffers import replay_storage as module
from plaudit.rl.buffers.replay_buffer import ReplayBuffer
from plaudit.rl.buffers.replay_storage import ReplayLog, open_replay

CPU = torch.device("cpu")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def again(folder: Path, state: dict[str, object], capacity: int = 30) -> ReplayBuffer:
    """A new replay, as the files have it."""
    replay = ReplayBuffer(capacity, 2, 1, 1)
    ReplayLog(replay, folder).load(state)
    return replay


def test_what_is_new_is_written_and_all_comes_back(tmp_path: Path) -> None:
    replay, walk = ReplayBuffer(30, 2, 1, 1), Walk(2, 3)
    log = ReplayLog(replay, tmp_path)
    for count in (3, 0, 4, 1, 25):
        for _ in range(count):
            walk.step(replay)
        log.save()
        other = again(tmp_path, log.state_dict())
        assert len(other) == len(replay)
        assert rows(everything(other, 3)) == rows(everything(replay, 3))
        torch.manual_seed(0)
        drawn = replay.sample(50, 2, 0.9)
        torch.manual_seed(0)
        for ours, theirs in zip(drawn, other.sample(50, 2, 0.9), strict=True):
            assert torch.equal(ours, theirs)
    # Nothing new was no file. All of the first files is overwritten, but a run that is killed now goes on from the
    # checkpoint before, which needs them; then they go.
    assert files(tmp_path) == [f"{number:06d}.safetensors" for number in (1, 2, 3, 4)]
    sizes = {(tmp_path / "000004.safetensors").stat().st_size}
    walk.step(replay)
    log.save()
    assert files(tmp_path) == ["000004.safetensors", "000005.safetensors"]
    assert (tmp_path / "000005.safetensors").stat().st_size < min(sizes) / 2


def test_what_a_kill_left_half_written_is_not_read_and_goes(tmp_path: Path) -> None:
    replay, walk = ReplayBuffer(30, 2, 1, 1), Walk(2, 3)
    log = ReplayLog(replay, tmp_path)
    walk.step(replay)
    log.save()
    (tmp_path / ".000002.4711.safetensors").write_bytes(b"half")
    other = ReplayBuffer(30, 2, 1, 1)
    later = ReplayLog(other, tmp_path)
    later.load(log.state_dict())
    assert rows(everything(other, 3)) == rows(everything(replay, 3))
    walk.step(other)
    later.save()
    assert files(tmp_path) == ["000001.safetensors", "000002.safetensors"]


def test_what_was_overwritten_while_it_was_read_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay, walk = ReplayBuffer(30, 2, 1, 1), Walk(2, 50)
    log = ReplayLog(replay, tmp_path)
    for _ in range(4):
        walk.step(replay)
    log.save()
    known, there = replay.columns["reward"].clone(), replay.transitions()
    replay.columns["reward"][:] = 7.0
    log.changed("reward")
    gone = replay.slot(torch.tensor([0]), torch.tensor([1]))
    monkeypatch.setattr(replay, "reread", lambda: replay.columns["valid"].index_fill_(0, gone, 0))
    log.save()
    rewards = again(tmp_path, log.state_dict()).columns["reward"]
    assert rewards[gone] == known[gone] != 7.0
    assert (rewards[there] == 7.0).sum() == len(there) - 1


def test_a_loaded_replay_goes_on_where_the_other_would(tmp_path: Path) -> None:
    replay, walk = ReplayBuffer(30, 2, 1, 1), Walk(2, 3)
    log = ReplayLog(replay, tmp_path)
    for _ in range(8):
        walk.step(replay)
    log.save()
    state = log.state_dict()
    for _ in range(3):  # Lived through, saved, and taken back: the checkpoint knows nothing of it.
        walk.step(replay)
    log.save()
    other, twin = ReplayBuffer(30, 2, 1, 1), Walk(2, 3)
    second = ReplayLog(other, tmp_path)
    newest = log.state_dict()
    second.load(state)
    assert rows(everything(again(tmp_path, newest))) == rows(everything(replay))  # Looking back took nothing from it.
    for _ in range(8):
        twin.step(ReplayBuffer(30, 2, 1, 1))
    other.follow(twin.obs)
    for _ in range(3):
        twin.step(other)
    assert rows(everything(other)) == rows(everything(replay))
    second.save()
    assert rows(everything(again(tmp_path, second.state_dict()))) == rows(everything(replay))


def test_columns_that_changed_everywhere_are_written_again(tmp_path: Path) -> None:
    replay, walk = ReplayBuffer(30, 2, 1, 1), Walk(2, 3)
    log = ReplayLog(replay, tmp_path)
    for _ in range(5):
        walk.step(replay)
    log.save()
    replay.columns["reward"].mul_(-1)
    walk.step(replay)
    log.changed("reward")
    log.save()
    assert rows(everything(again(tmp_path, log.state_dict()))) == rows(everything(replay))
    log.save()
    assert files(tmp_path) == ["000001.safetensors", "000002.safetensors", "000003.safetensors"]


def test_a_damaged_file_is_named_and_may_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    replay, walk = ReplayBuffer(60, 2, 1, 1), Walk(2, 3)
    log = ReplayLog(replay, tmp_path)
    for _ in range(3):
        for _ in range(4):
            walk.step(replay)
        log.save()
    state, path = log.state_dict(), tmp_path / "000002.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"the replay '.*000002.safetensors' is damaged"):
        again(tmp_path, state, 60)
    path.unlink()
    caplog.clear()
    kept = rows(everything(again(tmp_path, state, 60)))
    assert f"of the 24 transitions that the checkpoint was saved with, '{tmp_path}' holds {len(kept)}" in caplog.text
    whole = rows(everything(replay))
    assert set(kept) < set(whole)
    # Of 12 steps 4 are missing; the newest before them leads to a slot that is missing too, where it did not end.
    assert 2 * 12 - 2 * 4 - 2 <= len(kept) <= 2 * 12 - 2 * 4


def test_what_changed_later_does_not_stand_in_for_a_file_that_is_gone(tmp_path: Path) -> None:
    replay, walk = ReplayBuffer(30, 2, 1, 1), Walk(2, 3)
    log = ReplayLog(replay, tmp_path)
    for _ in range(2):  # The second file overwrites half of the ring.
        for _ in range(8):
            walk.step(replay)
        log.save()
    replay.columns["reward"].mul_(-1)
    log.changed("reward")
    log.save()
    whole = rows(everything(replay))
    assert rows(everything(again(tmp_path, log.state_dict()))) == whole
    (tmp_path / "000002.safetensors").unlink()
    kept = rows(everything(again(tmp_path, log.state_dict())))
    assert set(kept) < set(whole)  # No old action has got a new reward.


def test_a_replay_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    replay, walk = ReplayBuffer(30, 2, 1, 1), Walk(2, 3)
    log = ReplayLog(replay, tmp_path)
    log.save()
    assert len(again(tmp_path, log.state_dict())) == 0  # There was nothing.
    walk.step(replay)
    log.save()
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match=r"nothing is left of the 2 transitions .* Put its files back"):
        again(tmp_path, log.state_dict())


@pytest.mark.parametrize("steps", [8, 40])
def test_a_replay_in_files_is_there_again_without_being_read(tmp_path: Path, steps: int) -> None:
    def opened() -> tuple[ReplayBuffer, module.Keeper]:
        replay, keeper = open_replay(60, 2, 1, 1, CPU, storage="disk", folder=tmp_path)
        assert keeper is not None
        return replay, keeper

    (replay, keeper), walk = opened(), Walk(2, 3)
    for _ in range(steps):
        walk.step(replay)
    keeper.save()
    state, then = keeper.state_dict(), rows(everything(replay))
    other, second = opened()
    second.load(state)
    assert rows(everything(other)) == then
    assert len(other) == len(then)
    for _ in range(3):  # Not in the checkpoint. Where the ring is full, the oldest are overwritten by it.
        walk.step(replay)
    other, second = opened()
    second.load(state)
    kept = rows(everything(other))
    assert kept == (then if steps == 8 else [row for row in then if row in kept])
    assert len(kept) >= len(then) - 2 * 5
    assert "obs..bin" in files(tmp_path) and "reward.bin" in files(tmp_path)


def test_a_size_that_is_refused_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    def opened(capacity: int) -> tuple[ReplayBuffer, module.Keeper]:
        replay, keeper = open_replay(capacity, 2, 1, 1, CPU, storage="disk", folder=tmp_path)
        assert keeper is not None
        return replay, keeper

    (replay, keeper), walk = opened(60), Walk(2, 3)
    for _ in range(8):
        walk.step(replay)
    keeper.save()
    state, then = keeper.state_dict(), rows(everything(replay))
    with pytest.raises(CheckpointError, match=r"has 240 bytes, but this run's would have 320. Keep algorithm.cfg.cap"):
        opened(80)
    other, second = opened(60)
    second.load(state)
    assert rows(everything(other)) == then


def test_files_have_their_room_on_the_disk_and_are_sent_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, keeper = open_replay(100_000, 1, 1, 1, CPU, storage="disk", folder=tmp_path)
    assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) * 512 >= replay.nbytes
    assert len(pickle.dumps(keeper)) < 1000  # To a process that learns, and has maps of its own.

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OutputError, match=r"cannot write the replay .*No space left"):
        open_replay(100_000, 1, 1, 1, CPU, storage="disk", folder=tmp_path / "other")
    assert not list((tmp_path / "other").iterdir())


def test_what_cannot_be_kept_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"storage is 'disk', but this run has no folder"):
        open_replay(30, 2, 1, 1, CPU, storage="disk")
    with pytest.raises(OutputError, match=r"needs 40000000.0 GB, but the disk has"):
        open_replay(10**16, 1, 1, 1, CPU, storage="disk", folder=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write the replay"):
        open_replay(30, 1, 1, 1, CPU, storage="disk", folder=tmp_path / "file")
    replay = ReplayBuffer(30, 2, 1, 1)
    Walk(2, 3).step(replay)
    with pytest.raises(OutputError, match=r"cannot write"):
        ReplayLog(replay, tmp_path / "file").save()


def test_a_replay_for_what_was_kept(tmp_path: Path) -> None:
    layout = {"asked": ((), torch.bool), "frame/a": ((4, 4, 3), torch.uint8)}
    replay = ReplayBuffer(31, 2, 3, 1, extras=layout)
    state = ReplayLog(replay, tmp_path).state_dict()
    other = module.replay_for(state, 3, 1)
    assert (other.rows, other.num_envs, other.extras) == (16, 2, layout)
    assert {name: part.shape for name, part in other.columns.items()} == {
        name: part.shape for name, part in replay.columns.items()
    }
    with pytest.raises(CheckpointError, match=r"that of the checkpoint and this run's differ in 'frame/a'"):
        ReplayLog(ReplayBuffer(31, 2, 3, 1, extras={**layout, "frame/a": ((8, 4, 3), torch.uint8)}), tmp_path).load(
            state
        )


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("part", module.PARTS)
def test_a_checkpoint_that_lacks_something_says_what(tmp_path: Path, storage: Any, part: str) -> None:
    _, keeper = open_replay(30, 2, 1, 1, CPU, storage=storage, folder=tmp_path)
    assert keeper is not None and set(keeper.state_dict()) - {module.LAST} == set(module.PARTS)
    state = {name: value for name, value in keeper.state_dict().items() if name != part}
    said = rf"the checkpoint does not say '{part}' of the replay: an older Plaudit wrote it. .* runtime.resume"
    with pytest.raises(CheckpointError, match=said):
        keeper.load(state)
    with pytest.raises(CheckpointError, match=said):
        module.replay_for(state, 1, 1)


def test_a_replay_that_was_kept_in_another_way_is_refused(tmp_path: Path) -> None:
    ways: tuple[Literal["memory", "disk"], ...] = ("memory", "disk")
    keepers = [open_replay(30, 2, 1, 1, CPU, storage=way, folder=tmp_path)[1] for way in ways]
    memory, disk = (keeper for keeper in keepers if keeper is not None)
    with pytest.raises(CheckpointError, match=r"kept with algorithm.cfg.storage=disk, but here it is memory"):
        memory.load(disk.state_dict())
    with pytest.raises(CheckpointError, match=r"kept with algorithm.cfg.storage=memory, but here it is disk"):
        disk.load(memory.state_dict())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward_id": None}, r"has no column 'reward_id'"),
        ({"env": None}, r"has no column 'env'"),
        ({"number": None}, r"has no column 'number'"),
        ({"valid": None, "number": None}, r"has no column 'number'"),
        ({"mood": torch.zeros(3)}, r"has a column 'mood'"),
    ],
)
def test_a_file_of_another_version_says_what_differs(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    replay, walk = ReplayBuffer(30, 2, 1, 1), Walk(2, 3)
    log = ReplayLog(replay, tmp_path)
    walk.step(replay)
    log.save()
    content = {**load_file(tmp_path / "000001.safetensors"), **change}
    save_file({name: value for name, value in content.items() if value is not None}, tmp_path / "000001.safetensors")
    with pytest.raises(CheckpointError, match=rf"000001.safetensors' {said}.* another version wrote it"):
        again(tmp_path, log.state_dict())
