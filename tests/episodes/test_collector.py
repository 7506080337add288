"""The collector around a scripted env: every frame with its own label, in every way that episodes can end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import assert_same
from scripted import Scripted, check_episode

from plaudit.data import Episode, EpisodeStore
from plaudit.data.background_writer import BackgroundWriter
from plaudit.data.recorder import RewardDataCollector
from plaudit.data.recording_env import DataCollectorWrapper
from plaudit.envs.registry import build_env
from plaudit.envs.testing import Make, check_env, check_frames, check_saved_state, check_seeds, check_steps
from plaudit.errors import ConfigError, DataError, EnvError

LENGTHS = [[3, 1, 4], [1, 1, 6], [5], [2, 7]]
WINS: list[list[set[int]]] = [[{2, 3}, set(), {1, 3}], [{1}, set(), {6}], [set()], [{1, 2}, {3, 4}]]


class Made:
    """A wrapped scripted env that writes to a store."""

    def __init__(self, path: Path, env: Scripted | None = None, **changes: Any) -> None:
        self.store = EpisodeStore.create(path / "data")
        self.writer = BackgroundWriter(self.store)
        self.inner = env or Scripted(LENGTHS, WINS)
        self.collector = RewardDataCollector(self.inner.num_envs, self.writer, name="test", **changes)
        self.env = DataCollectorWrapper(self.inner, self.collector)

    def run(self, steps: int, seed: int | None = 0) -> dict[str, Episode]:
        """Steps on, and what is stored then."""
        if seed is not None:
            self.env.reset(seed)
        for _ in range(steps):
            self.env.step(torch.zeros(self.env.num_envs, 2))
        return self.stored()

    def stored(self) -> dict[str, Episode]:
        self.writer.flush()
        self.store.refresh()
        return {episode.id: episode for episode in self.store}


def expected(steps: int) -> dict[str, tuple[int, int, set[int], int]]:
    """Ids of the episodes that are over after some steps: env, number, successes and length of each."""
    result = {}
    for env, (lengths, wins) in enumerate(zip(LENGTHS, WINS, strict=True)):
        left, number = steps, 0
        while (length := lengths[number % len(lengths)]) <= left:
            result[f"test-e{env:04d}-{number:06d}"] = (env, number, wins[number % len(wins)], length)
            left, number = left - length, number + 1
    return result


@pytest.mark.parametrize("snapshots", [False, True])
@pytest.mark.parametrize("frames", [None, 1, 2, 3])
def test_every_frame_has_its_own_label(tmp_path: Path, frames: int | None, snapshots: bool) -> None:
    made = Made(tmp_path, Scripted(LENGTHS, WINS, snapshots=snapshots), frames_per_episode=frames)
    stored = made.run(23)
    wanted = expected(23)
    assert stored.keys() == wanted.keys() and len(wanted) > 20
    for id, (env, number, wins, length) in wanted.items():
        check_episode(stored[id], env, number, wins, length)
        count = length + 1 if frames is None else min(frames, length + 1)
        assert len(stored[id]) == count and stored[id].frame_index[-1] == length


def test_snapshots_keep_the_frames_that_rendering_them_all_keeps(tmp_path: Path) -> None:
    lengths, wins = [[30]], [[{9, 10, 20}]]
    always = Made(tmp_path / "a", Scripted(lengths, wins), frames_per_episode=8)
    late = Made(tmp_path / "b", Scripted(lengths, wins, snapshots=True), frames_per_episode=8)
    (one,), (two,) = always.run(30).values(), late.run(30).values()
    np.testing.assert_array_equal(one.frame_index, two.frame_index)
    np.testing.assert_array_equal(one.frames["base_camera"], two.frames["base_camera"])
    assert {8, 9, 10, 11, 19, 20, 21, 30} == set(one.frame_index.tolist())
    assert always.inner.drawn == 30 + 2 and late.inner.drawn == 8


def test_cameras_and_size_are_those_asked_for(tmp_path: Path) -> None:
    env = Scripted([[3]], [[{2, 3}]], size=(8, 12))
    made = Made(tmp_path, env, cameras=["wrist_camera"], image_size=(4, 3))
    (episode,) = made.run(3).values()
    assert episode.cameras == ("wrist_camera",) and episode.frames["wrist_camera"].shape == (4, 4, 3, 3)
    check_episode(episode, 0, 0, {2, 3}, 3)


def test_a_camera_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no camera 'base_camra'. Did you mean 'base_camera'\?"):
        Made(tmp_path, cameras=["base_camra"])


def test_an_env_without_cameras_cannot_be_collected_from(tmp_path: Path) -> None:
    env = Scripted([[3]])
    env.cameras = ()
    with pytest.raises(EnvError, match="no cameras"):
        Made(tmp_path, env)


def test_each_class_has_its_limit_and_then_it_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    env = Scripted(LENGTHS, WINS, snapshots=True)
    made = Made(tmp_path, env, max_positive_trajectories=4, max_negative_trajectories=2)
    with caplog.at_level(logging.INFO, "plaudit"):
        stored = made.run(40)
    assert sum(episode.positive for episode in stored.values()) == 4 and len(stored) == 6
    assert made.collector.complete
    assert [record.message for record in caplog.records] == [
        "there are 4 positive and 2 negative episodes, as many as wanted: collection is over."
    ]
    assert env.frame_mode == "none"
    before = env.drawn
    made.run(10, seed=None)
    assert env.drawn == before and len(made.stored()) == 6


PACED = [0, 1, 6, 7, 8, 9, 10, 11, 12, 13]
"""Episodes that `paced` keeps."""


def paced(folder: Path, positive: int = 2) -> Made:
    wins: list[set[int]] = [set()] * 6 + [{4}] + [set()] * 3 + [{4}] + [set()] * 9
    limits = {"max_positive_trajectories": positive, "max_negative_trajectories": 8, "early_failures": 0.25}
    return Made(folder, Scripted([[4] * 20], [wins], snapshots=True), **limits)


def test_failures_keep_pace_with_the_successes(tmp_path: Path) -> None:
    made = paced(tmp_path)
    stored = made.run(80)
    kept = sorted(int(id.split("-")[-1]) for id in stored)
    # Two at once, up to five after the first success, and the rest after the second.
    assert kept == PACED and made.collector.complete


def test_failures_keep_pace_after_a_kill_too(tmp_path: Path) -> None:
    broken = paced(tmp_path)
    broken.run(8)
    checkpoint = broken.env.state_dict()
    broken.run(36, seed=None)  # Up to the second success; then it is killed.
    resumed = paced(tmp_path)
    resumed.env.reset(5)
    resumed.env.load_state_dict(checkpoint)
    assert sorted(int(id.split("-")[-1]) for id in resumed.run(72, seed=None)) == PACED


def test_failures_keep_pace_where_a_killed_run_is_begun_anew(tmp_path: Path) -> None:
    paced(tmp_path).run(44)  # Up to the second success; then it is killed, before it had a checkpoint.
    again = paced(tmp_path)
    assert sorted(int(id.split("-")[-1]) for id in again.run(80)) == PACED and again.collector.complete


def test_failures_keep_pace_with_the_successes_of_other_processes_too(tmp_path: Path) -> None:
    one, other = paced(tmp_path, positive=4), paced(tmp_path, positive=4)
    other.collector.name = "other"
    one.run(44)  # Two successes, and as many failures as go with one of the four that are wanted.
    assert (one.store.counts.positive, one.store.counts.negative) == (2, 4)
    other.run(44)
    other.run(12, seed=None)
    assert other.collector.complete and (other.store.counts.positive, other.store.counts.negative) == (4, 8)


def test_what_is_not_wanted_is_not_drawn(tmp_path: Path) -> None:
    env = Scripted([[4]], snapshots=True)
    made = Made(tmp_path, env, max_positive_trajectories=1, max_negative_trajectories=0)
    assert not made.run(40)
    assert env.drawn == 0 and made.collector.idle == 10


def test_limits_count_what_is_there_already(tmp_path: Path) -> None:
    first = Made(tmp_path, max_positive_trajectories=2, max_negative_trajectories=0)
    assert len(first.run(20)) == 2
    again = Made(tmp_path, Scripted(LENGTHS, WINS), max_positive_trajectories=2, max_negative_trajectories=0)
    assert again.collector.complete and again.inner.frame_mode == "none"
    more = Made(tmp_path, Scripted(LENGTHS, WINS), max_positive_trajectories=3, max_negative_trajectories=0)
    more.collector.name = "more"
    assert len(more.run(20)) == 3


def test_frames_are_passed_on_only_as_they_were_asked_for(tmp_path: Path) -> None:
    made = Made(tmp_path, Scripted([[2]], snapshots=True))
    _, info = made.env.reset(0)
    assert info["frames"] is None
    steps = [made.env.step(torch.zeros(1, 2)) for _ in range(2)]
    assert all(step.frames is None and step.final_frames is None for step in steps)
    made.env.request_frames("always")
    step = made.env.step(torch.zeros(1, 2))
    assert step.frames is not None and step.frames["base_camera"][0, 0, 0].tolist() == [0, 1, 1]
    check_episode(made.run(1, seed=None)["test-e0000-000001"], 0, 1, set(), 2)


def test_last_frames_that_somebody_else_wants_are_given_and_kept(tmp_path: Path) -> None:
    made = Made(tmp_path, Scripted([[3]], [[{3}]], snapshots=True), frames_per_episode=2)
    made.env.request_frames("terminal")
    made.env.reset(0)
    steps = [made.env.step(torch.zeros(1, 2)) for _ in range(3)]
    assert [step.final_frames is None for step in steps] == [True, True, False]
    assert all(step.frames is None and step.snapshot is None for step in steps)
    assert steps[-1].final_frames is not None
    assert steps[-1].final_frames["base_camera"][0, 0, 0].tolist() == [0, 0, 3]
    made.writer.flush()
    (episode,) = made.stored().values()
    check_episode(episode, 0, 0, {3}, 3)
    assert made.inner.drawn == 2  # The last one as it happened, the other one later.


def test_the_wrapper_is_an_env_like_any_other(tmp_path: Path) -> None:
    writer = BackgroundWriter(EpisodeStore.create(tmp_path))

    def make(num_envs: int) -> DataCollectorWrapper:
        env = Scripted([[3, 5, 1], [7], [1, 9], [5], [3]][:num_envs], (WINS * 2)[:num_envs], snapshots=True)
        return DataCollectorWrapper(env, RewardDataCollector(num_envs, writer, name="contract"))

    check_env(make)
    writer.close()


@pytest.mark.parametrize("obs_mode", ["state", "rgb"])
@pytest.mark.parametrize("check", [check_frames, check_saved_state, check_steps, check_seeds])
def test_a_wrapped_task_is_an_env_too(tmp_path: Path, check: Callable[[Make], None], obs_mode: str) -> None:
    writer = BackgroundWriter(EpisodeStore.create(tmp_path))

    def make(num_envs: int) -> DataCollectorWrapper:
        env = build_env("PickCube", {"num_envs": num_envs, "episode_length": 5, "obs_mode": obs_mode})
        return DataCollectorWrapper(env, RewardDataCollector(num_envs, writer, frames_per_episode=3))

    check(make)
    writer.close()
    assert writer.counts.episodes and not writer.counts.unknown_frames


@pytest.mark.parametrize("frames", [None, 2])
def test_a_resumed_run_stores_the_same_episodes_once(tmp_path: Path, frames: int | None) -> None:
    def made(name: str) -> Made:
        return Made(tmp_path / name, Scripted(LENGTHS, WINS, snapshots=True), frames_per_episode=frames)

    whole = made("whole").run(30)
    broken = made("broken")
    broken.env.reset(0)
    for _ in range(10):
        broken.env.step(torch.zeros(4, 2))
    checkpoint = broken.env.state_dict()
    assert len(broken.store) == broken.writer.counts.episodes > 0  # Nothing waits that would be lost by a kill now.
    resumed = made("broken")
    resumed.env.reset(5)
    resumed.env.load_state_dict(checkpoint)
    stored = resumed.run(20, seed=None)
    assert stored.keys() == whole.keys() and len(stored) > len(broken.store)
    for id, episode in stored.items():
        assert_same(episode, whole[id])


def test_without_snapshots_nothing_is_stored_twice_and_nothing_without_its_beginning(tmp_path: Path) -> None:
    whole = Made(tmp_path / "whole").run(30)
    broken = Made(tmp_path / "broken")
    broken.run(10)
    checkpoint = broken.env.state_dict()
    broken.run(9, seed=None)  # Then it is killed; 12 steps are done again after the resume, and 8 more.
    resumed = Made(tmp_path / "broken", Scripted(LENGTHS, WINS))
    resumed.env.reset(5)
    resumed.env.load_state_dict(checkpoint)
    stored = resumed.run(20, seed=None)
    # Those that were going on at the checkpoint and had not ended by the kill are missing, and no others.
    missing = whole.keys() - stored.keys()
    assert stored.keys() <= whole.keys() and len(missing) <= 1
    for id, episode in stored.items():
        np.testing.assert_array_equal(episode.frames["base_camera"], whole[id].frames["base_camera"])
        np.testing.assert_array_equal(episode.labels, whole[id].labels)


def test_a_checkpoint_from_before_collecting_can_be_resumed(tmp_path: Path) -> None:
    plain = Scripted([[4]], [[{4}]])
    plain.reset(0)
    for _ in range(2):
        plain.step(torch.zeros(1, 2))
    made = Made(tmp_path, Scripted([[4]], [[{4}]]))
    made.env.load_state_dict(plain.state_dict())
    stored = made.run(10, seed=None)
    assert list(stored) == ["test-e0000-000001", "test-e0000-000002"]
    check_episode(stored["test-e0000-000001"], 0, 1, {4}, 4)
    other = Scripted([[4]])
    other.load_state_dict(made.env.state_dict())  # And the other way round.


def test_an_env_that_tells_no_success_leaves_labels_unknown(tmp_path: Path) -> None:
    (episode,) = Made(tmp_path, Scripted([[3]], tells=False)).run(3).values()
    assert (episode.labels == -1).all() and episode.success is None and episode.label_source == "unknown"


def test_what_only_looks_like_success_is_neither(tmp_path: Path) -> None:
    env = Scripted([[6]], [[{4, 5}]], looks_done={3, 4, 5, 6})
    (episode,) = Made(tmp_path, env, frames_per_episode=4).run(6).values()
    assert dict(zip(episode.frame_index.tolist(), episode.labels.tolist(), strict=True)) == {1: 0, 2: 0, 4: 1, 5: 1}
    env = Scripted([[2]], looks_done={1, 2})
    assert not Made(tmp_path / "negative", env).run(6)  # Nothing in it that anybody could learn from.


def test_what_is_known_of_an_episode_is_written_with_it(tmp_path: Path) -> None:
    made = Made(tmp_path, Scripted([[4]]), about={"env": "Scripted"}, describe=lambda env: {"actor": "expert"})
    (episode,) = made.run(4).values()
    assert episode.meta == {
        "env": "Scripted",
        "actor": "expert",
        "env_index": 0,
        "episode": 0,
        "metrics": {
            "goal_distance": {"min": 0.25, "max": 1.0, "last": 0.25},
            "grasped": {"min": 0.0, "max": 1.0, "last": 0.0},
        },
    }


def pictures(*values: int) -> np.ndarray[Any, Any]:
    """float32 (n, 3, 2, 2) in [0, 1], each of one colour, and one white pixel so that the range is plain."""
    frames = np.zeros((len(values), 3, 2, 2), np.float32)
    frames[:] = np.array(values)[:, None, None, None] / 255
    frames[:, :, 1, 1] = 1.0
    return frames


def collector_of_dicts(tmp_path: Path, **changes: Any) -> tuple[EpisodeStore, RewardDataCollector]:
    store = EpisodeStore.create(tmp_path)
    return store, RewardDataCollector(2, BackgroundWriter(store), name="dict", **changes)


def shown(episode: Episode) -> list[int]:
    return [int(pixels[0, 0, 0]) for pixels in episode.frames["base_camera"]]


def test_dicts_as_other_systems_pass_them(tmp_path: Path) -> None:
    store, collector = collector_of_dicts(tmp_path)
    collector.add_env_output({"obs": {"base_camera": pictures(0, 100), "states": np.zeros((2, 3))}})
    for t in range(1, 4):
        collector.add_env_output(
            {
                "obs": {"base_camera": pictures(t, 100 + t), "states": np.full((2, 3), t)},
                "success_frame": torch.tensor([float(t >= 2), 0.2 if t > 1 else float("nan")]),
                "rewards": torch.ones(2, 1) * t,
                "actions": torch.ones(2, 4) * t,
                "grasp": [True, False],
            },
            {"success_once": [False, True]},
            is_last_step=t == 3,
        )
    collector.writer.close()
    one, two = store
    assert shown(one) == [0, 1, 2, 3] and shown(two) == [100, 101, 102, 103]
    assert one.labels.tolist() == [-1, 0, 1, 1] and two.labels.tolist() == [-1, -1, 0, 0]
    assert one.success and two.success and two.positive
    assert one.flags["grasp"].tolist() == [-1, 1, 1, 1]
    assert one.state is not None and one.state[:, 0].tolist() == [0, 1, 2, 3]
    assert one.rewards is not None and one.rewards.tolist() == [1, 2, 3]
    assert one.actions is not None and one.actions.shape == (3, 4)


def test_dicts_without_resets_start_at_the_first_action(tmp_path: Path) -> None:
    store, collector = collector_of_dicts(tmp_path)
    for t in range(1, 5):
        output = {
            "obs": {"base_camera": pictures(t, 100 + t), "state": np.full((2, 1), t)},
            "success_frame": [0, t == 4],
        }
        collector.add_env_output(output, is_last_step=np.array([t % 2 == 0, t == 4]))
    collector.writer.close()
    assert [shown(episode) for episode in store] == [[1, 2], [3, 4], [101, 102, 103, 104]]
    assert [episode.frame_index.tolist() for episode in store] == [[1, 2], [1, 2], [1, 2, 3, 4]]
    assert [episode.positive for episode in store] == [False, False, True]
    assert store[0].state is not None and store[0].state.shape == (2, 1)


@pytest.mark.parametrize("rows", ["of those that ended", "of all"])
def test_dicts_of_envs_that_reset_themselves(tmp_path: Path, rows: str) -> None:
    store, collector = collector_of_dicts(tmp_path)
    collector.add_env_output({"obs": {"base_camera": pictures(0, 100)}})
    last = pictures(102) if rows == "of those that ended" else pictures(9, 102)
    collector.add_env_output({"obs": {"base_camera": pictures(1, 101)}, "success": [0, 0]})
    output = {"obs": {"base_camera": pictures(2, 200)}, "success": [0, 1], "final_obs": {"base_camera": last}}
    collector.add_env_output(output, is_last_step=[False, True])
    output = {"obs": {"base_camera": pictures(3, 201)}, "success": [0, 0]}
    collector.add_env_output(output, is_last_step=True)
    collector.writer.close()
    assert [shown(episode) for episode in store] == [[0, 1, 2, 3], [100, 101, 102], [200, 201]]
    assert [episode.labels.tolist() for episode in store] == [[-1, 0, 0, 0], [-1, 0, 1], [-1, 0]]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({}, "must have 'obs'"),
        ({"obs": {"state": np.zeros((2, 3))}}, "no picture"),
        ({"obs": {"base_camra": pictures(0, 0)}}, "Did you mean 'base_camra'"),
        ({"obs": {"base_camera": pictures(0, 0)}, "success_frame": [1, 1, 1]}, "3 values where there are 2 envs"),
    ],
)
def test_dicts_that_make_no_sense_are_named(tmp_path: Path, output: dict[str, Any], message: str) -> None:
    _, collector = collector_of_dicts(tmp_path, cameras=["base_camera"])
    with pytest.raises(DataError, match=message):
        collector.add_env_output(output)


def test_saving_ends_an_episode_by_hand(tmp_path: Path) -> None:
    made = Made(tmp_path, Scripted([[9]], [[{2}]]))
    made.env.reset(0)
    assert made.collector.save_trajectory(0) is None  # No action yet, so nothing to tell.
    made.run(2)
    saved = made.collector.save_trajectory(0)
    assert saved is not None and saved.length == 2 and saved.labels.tolist() == [-1, 0, 1]
    assert made.collector.save_trajectory(0) is None
