"""A replay that somebody else writes to is read whole, and only what may be read."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from plaudit.errors import DataError
from plaudit.rl.async_.shared_memory import SharedMemory
from plaudit.rl.async_.shared_replay import ReplayReader
from plaudit.rl.async_.shared_state import Exchange
from plaudit.rl.buffers.replay_buffer import Batch, ReplayBuffer

LENGTH = 5
"""Steps of an episode."""


class Writer:
    """Fills a replay with episodes in which every observation says when it was, of which env."""

    def __init__(self, rows: int, num_envs: int = 2, pictures: bool = False) -> None:
        self.num_envs, self.time, self.pictures = num_envs, 0, pictures
        self.memory = SharedMemory()
        self.dims: Any = {"state": (2,), "camera": (2, 2, 3)} if pictures else {"": (2,)}
        self.replay = ReplayBuffer(rows * num_envs, num_envs, self.dims, 1, allocate=self.memory.allocate)
        self.exchange = Exchange(self.memory.allocate, num_envs, {})

    def obs(self, time: int) -> Any:
        """(num_envs, 2): the time, and the env."""
        envs = torch.arange(self.num_envs).float()
        state = torch.stack([torch.full_like(envs, float(time)), envs], -1)
        if not self.pictures:
            return state
        picture = (state[:, :1] % 256).to(torch.uint8)[:, :, None, None].expand(-1, 2, 2, 3).clone()
        return {"state": state, "camera": picture}

    def write(self, steps: int) -> None:
        """So many steps, of which nobody is told."""
        self.exchange.reserve(self.replay.heads + 2 * steps + 2)
        for _ in range(steps):
            time = self.time
            ends = time % LENGTH == LENGTH - 1
            truncated = torch.full((self.num_envs,), ends)
            reward = torch.full((self.num_envs,), float(time))
            nothing = torch.zeros_like(truncated)
            final = self.obs(time + 1) if ends else None
            action = reward[:, None].clone()
            self.replay.add(self.obs(time), action, reward, nothing, truncated, self.obs(time + 1), final)
            self.time += 1

    def publish(self) -> None:
        """Tells of all that was written."""
        self.exchange.publish(self.replay.heads, self.time * self.num_envs)

    def reader(self) -> ReplayReader:
        """Over the same memory."""
        other = SharedMemory(os.dup(self.memory.handle), self.memory.places)
        exchange = Exchange(other.find, self.num_envs, {})
        return ReplayReader(self.replay.slots, self.num_envs, self.dims, 1, {}, other.find, exchange)


def check(batch: Batch, n_step: int = 1) -> None:
    """Every transition leads from its observation to that which its action led to."""
    state, following = (
        side if isinstance(side, torch.Tensor) else side["state"] for side in (batch.obs, batch.next_obs)
    )
    assert torch.equal(state[:, 1], following[:, 1])
    assert torch.equal(state[:, 0], batch.action[:, 0])
    taken = following[:, 0] - state[:, 0]
    assert (taken >= 1).all() and (taken <= n_step).all()
    assert ((state[:, 0] // LENGTH) == ((following[:, 0] - 1) // LENGTH)).all()  # Of one episode.
    expected = sum((state[:, 0] + k) * (0.5**k) * (taken > k) for k in range(n_step))
    torch.testing.assert_close(batch.reward, expected)
    torch.testing.assert_close(batch.discount, 0.5**taken)
    if isinstance(batch.obs, dict):
        assert torch.equal(batch.obs["camera"][:, 0, 0, 0], (state[:, 0] % 256).to(torch.uint8))


def test_only_what_was_told_of_is_there() -> None:
    writer = Writer(rows=40)
    writer.write(3)
    reader = writer.reader()
    assert len(reader) == 0
    with pytest.raises(DataError, match="nothing in the replay"):
        reader.sample(4, 1, 0.5)
    writer.publish()
    assert len(reader) == 0  # It looks when it is told to.
    reader.take_in()
    assert len(reader) == 6 and reader.heads.tolist() == [3, 3]
    check(reader.sample(200, 3, 0.5), 3)
    writer.write(2)  # What the last action told of led to is known; what was done there is not, yet.
    assert reader.sample(200, 3, 0.5).action.max() == 2.0
    check(reader.sample(200, 3, 0.5), 3)
    assert len(reader) == 6
    writer.publish()
    reader.take_in()
    assert len(reader) == 10 and reader.heads.tolist() == [6, 6]  # An episode has ended, which takes a slot more.


@pytest.mark.parametrize("pictures", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_what_is_drawn_is_whole_while_the_ring_goes_round(pictures: bool, n_step: int) -> None:
    writer = Writer(rows=60, num_envs=3, pictures=pictures)
    reader = writer.reader()
    for turn in range(40):
        writer.write(turn % 7 + 1)
        if turn % 3:
            writer.publish()
        if turn % 4 != 1 and writer.exchange.steps:
            reader.take_in()
            check(reader.sample(100, n_step, 0.5), n_step)
        assert len(reader) == int(reader.columns["valid"].sum())
    assert writer.replay.heads.min() > 3 * writer.replay.rows


def test_what_may_be_overwritten_is_not_read() -> None:
    writer = Writer(rows=30, num_envs=1)
    writer.write(12)  # Numbers 0 to 13: two episodes have ended. 26 might have been written to, all of them new.
    writer.publish()
    reader = writer.reader()
    assert sorted(reader.sample(300, 1, 0.5).action[:, 0].unique().tolist()) == list(range(12))
    # Up to 14 + 22 may be written to, so that of the numbers before 36 - 30 nothing is read: times 0 to 4, and an end.
    writer.exchange.reserve(writer.replay.heads + 22)
    reader.reread()
    assert sorted(reader.sample(300, 1, 0.5).action[:, 0].unique().tolist()) == list(range(5, 12))
    assert len(reader) == 7


def test_what_was_overwritten_while_it_was_read_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(rows=24, num_envs=1)
    for _ in range(3):
        writer.write(5)
    writer.publish()
    reader = writer.reader()
    taken = ReplayBuffer.take
    drawn = []

    def disturbed(self: ReplayBuffer, slots: torch.Tensor, n_step: int, gamma: float) -> Batch:
        batch = taken(self, slots, n_step, gamma)
        drawn.append(int(batch.action.min()))
        if len(drawn) == 1:
            writer.write(8)  # Goes over the oldest ones, which were read just before, or just after.
            assert batch.action.min() < 5
            batch = taken(self, slots, n_step, gamma)
        return batch

    monkeypatch.setattr(ReplayReader, "take", disturbed)
    batch = reader.sample(300, 1, 0.5)
    assert len(drawn) == 2
    check(batch)
    assert batch.action.max() == 14.0


def test_a_late_reader_takes_in_what_is_left() -> None:
    writer = Writer(rows=30, num_envs=2)
    for _ in range(12):
        writer.write(10)
        writer.publish()
    reader = writer.reader()
    check(reader.sample(300, 3, 0.5), 3)
    # 120 steps and 24 ends make 144 slots of 30. What the last rollout might have gone over is gone: 22 slots from 132.
    assert reader.heads.tolist() == [144, 144]
    assert len(reader) == int(reader.columns["valid"].sum()) > 0
    assert reader.sample(300, 1, 0.5).action.min() >= 100.0
