"""The replay by hand: where each action led, how episodes end, what is forgotten, and what it takes."""

from __future__ import annotations

import pytest
import torch

from plaudit.errors import ConfigError, DataError, EnvError
from plaudit.rl.buffers import replay_buffer as module
from plaudit.rl.buffers.replay_buffer import Batch, ReplayBuffer
from plaudit.rl.buffers.replay_storage import open_replay


class Walk:
    """Envs whose observation says env, episode and instant: 1000 env + 10 episode + instant. Episodes of env e last
    `lengths[e]` steps; those of even envs end by themselves, those of odd ones by the clock. The reward of the step to
    instant t is t.
    """

    def __init__(self, *lengths: int) -> None:
        self.lengths = torch.tensor(lengths)
        self.episode, self.instant = torch.zeros(2, len(lengths), dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def obs(self) -> torch.Tensor:
        return (1000 * torch.arange(len(self)) + 10 * self.episode + self.instant)[:, None].float()

    def step(self, replay: ReplayBuffer) -> torch.Tensor:
        obs = self.obs
        self.instant += 1
        reward, last = self.instant.float(), self.obs
        ended = self.instant == self.lengths
        odd = torch.arange(len(self)) % 2 == 1
        self.episode[ended] += 1
        self.instant[ended] = 0
        final = last[ended] if ended.any() else None
        # The action repeats what it was taken on, so that a transition that is torn apart shows.
        return replay.add(obs, obs / 2, reward, ended & ~odd, ended & odd, self.obs, final)


def everything(replay: ReplayBuffer, n_step: int = 1, gamma: float = 0.5) -> Batch:
    return replay.take(replay.transitions(), n_step, gamma)


def rows(batch: Batch) -> list[tuple[float, ...]]:
    """Observation, reward, discount and next observation of each transition."""
    assert isinstance(batch.obs, torch.Tensor) and isinstance(batch.next_obs, torch.Tensor)
    assert torch.equal(batch.action, batch.obs / 2)
    parts = batch.obs[:, 0], batch.reward, batch.discount, batch.next_obs[:, 0]
    return list(zip(*(part.tolist() for part in parts), strict=True))


def test_an_end_without_its_last_observation_is_refused() -> None:
    replay, one, yes = ReplayBuffer(30, 1, 1, 1), torch.zeros(1, 1), torch.ones(1, dtype=torch.bool)
    with pytest.raises(EnvError, match="no final_obs"):
        replay.add(one, one, torch.zeros(1), ~yes, yes, one, None)


def test_where_actions_led_and_how_episodes_ended() -> None:
    replay, walk = ReplayBuffer(40, 2, 1, 1), Walk(2, 3)
    for _ in range(4):
        walk.step(replay)
    assert len(replay) == 8
    assert rows(everything(replay)) == [
        (0, 1, 0.5, 1),
        (1, 2, 0.0, 2),  # Ended by itself: its last observation, and no value after it.
        (10, 1, 0.5, 11),
        (11, 2, 0.0, 12),
        (1000, 1, 0.5, 1001),
        (1001, 2, 0.5, 1002),
        (1002, 3, 0.5, 1003),  # Ended by the clock: its last observation, not the next episode's first, has a value.
        (1010, 1, 0.5, 1011),
    ]


def test_n_steps_stop_at_ends_and_at_what_is_known() -> None:
    replay, walk = ReplayBuffer(40, 2, 1, 1), Walk(2, 3)
    for _ in range(4):
        walk.step(replay)
    assert rows(everything(replay, n_step=3)) == [
        (0, 1 + 0.5 * 2, 0.0, 2),
        (1, 2, 0.0, 2),
        (10, 1 + 0.5 * 2, 0.0, 12),
        (11, 2, 0.0, 12),
        (1000, 1 + 0.5 * 2 + 0.25 * 3, 0.125, 1003),
        (1001, 2 + 0.5 * 3, 0.25, 1003),
        (1002, 3, 0.5, 1003),
        (1010, 1, 0.5, 1011),  # The newest: what comes after it is not known yet.
    ]


@pytest.mark.parametrize("n_step", [1, 2, 4])
def test_a_full_ring_forgets_the_oldest_and_tears_nothing(n_step: int) -> None:
    replay, endless, walk, whole = (
        ReplayBuffer(21, 3, 1, 1),
        ReplayBuffer(900, 3, 1, 1),
        Walk(2, 3, 100),
        Walk(2, 3, 100),
    )
    for _ in range(40):
        walk.step(replay)
        whole.step(endless)
        kept = rows(everything(replay, n_step))
        assert len(replay) == len(kept)
        for env in range(3):
            ours, theirs = (
                [row for row in some if row[0] // 1000 == env] for some in (kept, rows(everything(endless, n_step)))
            )
            assert ours == theirs[len(theirs) - len(ours) :]
    # Seven slots for each env, of which one waits for the next action; an end takes one more.
    assert [sum(row[0] // 1000 == env for row in kept) for env in range(3)] == [4, 4, 6]


def test_draws_are_even_and_of_transitions_alone() -> None:
    replay, walk = ReplayBuffer(30, 2, 1, 1), Walk(2, 3)
    for _ in range(23):
        walk.step(replay)
    torch.manual_seed(0)
    batch = replay.sample(20_000, 1, 0.5)
    known = {row[0]: 0 for row in rows(everything(replay))}
    for row in rows(batch):
        known[row[0]] += 1
    assert min(known.values()) > 0.85 * 20_000 / len(known)
    assert max(known.values()) < 1.15 * 20_000 / len(known)
    again = replay.sample(20_000, 1, 0.5)
    torch.manual_seed(0)
    assert torch.equal(replay.sample(20_000, 1, 0.5).action, batch.action)
    assert not torch.equal(again.action, batch.action)


def test_few_that_are_left_are_drawn_evenly_and_without_asking_for_much(monkeypatch: pytest.MonkeyPatch) -> None:
    replay, walk = ReplayBuffer(20_000, 2, 1, 1), Walk(2, 3)
    for _ in range(5000):
        walk.step(replay)
    kept = replay.transitions()[[3, 70, 4000]]
    done = torch.zeros(replay.slots, dtype=torch.bool)
    done[kept] = True
    replay.columns["valid"].copy_(done)  # As after a resume without most of its files.
    replay.size = 3
    sizes, randint = [], torch.randint

    def drawn(high: int, size: tuple[int, ...], **more: object) -> torch.Tensor:
        sizes.append(size)
        return randint(high, size, device="cpu")

    monkeypatch.setattr(torch, "randint", drawn)
    torch.manual_seed(0)
    batch = replay.sample(3000, 1, 0.9)
    assert isinstance(batch.obs, torch.Tensor)
    values, counts = batch.obs[:, 0].unique(return_counts=True)
    found = replay.obs(kept)
    assert isinstance(found, torch.Tensor)
    assert values.tolist() == sorted(found[:, 0].tolist())
    assert counts.min() > 900
    assert sizes == [(3000,)]


def test_an_end_that_another_judge_sees_cuts_the_steps_that_are_summed() -> None:
    replay, walk = ReplayBuffer(40, 1, 1, 1), Walk(4)
    for _ in range(4):
        walk.step(replay)
    assert everything(replay, 3).reward.tolist() == [1 + 2 / 2 + 3 / 4, 2 + 3 / 2 + 4 / 4, 3 + 4 / 2, 4]
    replay.columns["terminated"][1] = True  # The episode went on, but the task was over.
    batch = everything(replay, 3)
    assert batch.reward.tolist() == [1 + 2 / 2, 2, 3 + 4 / 2, 4]
    assert batch.discount.tolist() == [0, 0, 0, 0]  # The fourth ended by itself.


def test_an_episode_that_was_broken_off_leads_to_what_it_led_to() -> None:
    replay, walk = ReplayBuffer(40, 2, 1, 1), Walk(9, 2)
    walk.step(replay)
    walk.step(replay)
    walk.episode[:], walk.instant[:] = 5, 0  # Somebody has reset the envs; that of env 1 was over anyway.
    replay.follow(walk.obs)
    walk.step(replay)
    replay.follow(walk.obs)  # Nothing happened in between: nothing changes.
    walk.step(replay)
    assert rows(everything(replay, n_step=2)) == [
        (0, 1 + 0.5 * 2, 0.25, 2),
        (1, 2, 0.5, 2),
        (50, 1 + 0.5 * 2, 0.25, 52),
        (51, 2, 0.5, 52),
        (1000, 1 + 0.5 * 2, 0.25, 1002),
        (1001, 2, 0.5, 1002),
        (1050, 1 + 0.5 * 2, 0.25, 1052),
        (1051, 2, 0.5, 1052),
    ]


def test_whole_episodes() -> None:
    replay = ReplayBuffer(12, 1, 1, 1)
    for start, count in ((0, 3), (10, 2), (20, 4)):
        obs = torch.arange(start, start + count + 1.0)[:, None]
        ended = torch.arange(count) == count - 1
        told = {"reward": torch.ones(count), "terminated": ended & (start == 10), "done": ended}
        replay.add_episode(obs, obs[:-1] / 2, told)
    # Twelve slots: one waits, eight hold the later episodes, and three what is left of the first.
    assert rows(everything(replay)) == [
        (1, 1, 0.5, 2),
        (2, 1, 0.5, 3),
        (10, 1, 0.5, 11),
        (11, 1, 0.0, 12),
        (20, 1, 0.5, 21),
        (21, 1, 0.5, 22),
        (22, 1, 0.5, 23),
        (23, 1, 0.5, 24),
    ]
    with pytest.raises(ValueError, match=r"an episode of 11 steps does not fit 12 slots"):
        replay.add_episode(torch.zeros(12, 1), torch.zeros(11, 1), {})


def test_images_are_stored_once_and_ends_are_exact() -> None:
    shape, length, envs = (16, 16, 3), 50, 4
    replay = ReplayBuffer(2048, envs, {"camera": shape, "state": (3,)}, 2)
    frame = 16 * 16 * 3
    # Everything beside the frame is numbers: state, action, reward and version; number; flags.
    numbers = 4 * (3 + 2 + 1 + 1) + 8 + 3
    assert replay.nbytes == replay.slots * (frame + numbers)
    count = 0
    for step in range(600):
        time = step % length
        obs, next_obs = (
            {"camera": torch.full((envs, *shape), at, dtype=torch.uint8), "state": torch.zeros(envs, 3)}
            for at in (time, (time + 1) % length)
        )
        over = torch.full((envs,), time == length - 1)
        final = {"camera": torch.full((envs, *shape), length, dtype=torch.uint8), "state": torch.zeros(envs, 3)}
        replay.add(
            obs,
            torch.zeros(envs, 2),
            torch.zeros(envs),
            torch.zeros_like(over),
            over,
            next_obs,
            final if over.all() else None,
        )
        count += envs
    # The bytes of all slots, over the transitions that they hold: within 5 % of one frame and its numbers.
    assert replay.nbytes / len(replay) < 1.05 * (frame + numbers)
    batch = everything(replay)
    assert isinstance(batch.obs, dict) and isinstance(batch.next_obs, dict)
    assert torch.equal(batch.next_obs["camera"].int(), batch.obs["camera"].int() + 1)
    assert batch.obs["camera"].dtype == torch.uint8


def test_what_does_not_fit_is_refused() -> None:
    replay = ReplayBuffer(40, 1, {"camera": (4, 4, 3)}, 1)
    nothing = torch.zeros(1, dtype=torch.bool)
    image = {"camera": torch.zeros(1, 4, 4, 3)}
    with pytest.raises(DataError, match=r"'obs/camera' is torch.float32, but the replay has room for torch.uint8"):
        replay.add(image, torch.zeros(1, 1), torch.zeros(1), nothing, nothing, image, None)
    with pytest.raises(DataError, match=r"there is nothing in the replay"):
        replay.sample(4, 1, 0.9)


def test_its_memory_is_told_before_it_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "plaudit")
    # Five numbers observed, two of an action, reward and version, four bytes each; eight for the number, three flags.
    line = "replay: room for 100,000 transitions of 47 bytes, 5 MB of memory."

    def allocate(name: str, shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        assert line in caplog.text
        return torch.zeros(shape, dtype=kind)

    replay, _ = open_replay(100_000, 10, 5, 2, torch.device("cpu"), allocate=allocate)
    assert replay.nbytes == 47 * replay.slots == 4_700_000
    monkeypatch.setattr(module, "available_memory", lambda: 10**9)
    with pytest.raises(
        ConfigError, match=r"capacity: 100,000,000 transitions of 47 bytes take 4.7 GB, but only 1.0 GB"
    ):
        ReplayBuffer(10**8, 10, 5, 2)


def test_batches_go_where_they_are_wanted() -> None:
    replay = ReplayBuffer(40, 1, {"state": (2,), "camera": (4, 4, 3)}, 1, onto="meta")
    obs = {"state": torch.zeros(1, 2), "camera": torch.zeros(1, 4, 4, 3, dtype=torch.uint8)}
    nothing = torch.zeros(1, dtype=torch.bool)
    for _ in range(5):
        replay.add(obs, torch.zeros(1, 1), torch.zeros(1), nothing, nothing, obs, None)
    batch = replay.sample(4, 2, 0.9)
    assert isinstance(batch.obs, dict) and isinstance(batch.next_obs, dict)
    parts = [*batch.obs.values(), *batch.next_obs.values(), batch.action, batch.reward, batch.discount]
    assert {part.device.type for part in parts} == {"meta"}
    assert {part.device.type for part in replay.columns.values()} == {"cpu"}
