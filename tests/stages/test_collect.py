"""Collecting from end to end, on small numbers."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from gymnasium.envs.registration import EnvSpec

from plaudit.cli import main
from plaudit.data import EpisodeStore
from plaudit.data import serialization as tensors
from plaudit.data.formats import load_episodes
from plaudit.envs.mujoco.arm_task import ArmTask
from plaudit.errors import ConfigError, EnvError

KEYS = "reward.data_collection"
SMALL = [
    f"{KEYS}.num_envs=8",
    f"{KEYS}.max_positive_trajectories=6",
    f"{KEYS}.max_negative_trajectories=5",
    f"{KEYS}.whole_episodes=0",
]
TRAIN = [
    "env.cfg.num_envs=8",
    "env.cfg.episode_length=10",
    "runtime.rollout_steps=8",
    "algorithm.cfg.batch_size=32",
    "algorithm.cfg.lr_schedule=constant",  # Else a run depends on how long it is meant to be.
    "runtime.eval_episodes=8",
    "runtime.eval_freq=0",
    "runtime.save_freq=64",
    "runtime.video_episodes=0",
    "runtime.cuda=false",
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object, and what people see."""
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


def test_all_frames_of_a_share_of_the_episodes_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", "push_cube", *SMALL, f"{KEYS}.save_dir={tmp_path / 'data'}", f"{KEYS}.whole_episodes=0.5"]
    assert run(capsys, *words)[0] == 0
    sizes = {(summary.whole, len(summary.labels)) for summary in EpisodeStore(tmp_path / "data").summaries()}
    assert sizes == {(True, 51), (False, 12)}


def test_collect_then_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "data"
    words = ["collect", "push_cube", *SMALL, f"{KEYS}.save_dir={place}"]
    code, result, shown = run(capsys, *words)
    assert code == 0 and result["complete"] and result["data"] == str(place)
    assert (result["positive"], result["negative"], result["new_episodes"]) == (6, 5, 11)
    assert result["frames"] == 11 * 12 and result["unknown_frames"] == 0
    assert Path(result["contact_sheet"]).stat().st_size > 0 and str(place) in shown
    store = EpisodeStore(place)
    assert store.counts.positive == 6 and len(store) == 11
    episode = store[0]
    assert episode.cameras == ("base_camera",) and episode.frames["base_camera"].shape == (12, 64, 64, 3)
    assert episode.id.startswith("PushCube-s0-w000-e00") and episode.label_source == "simulator"
    assert episode.meta["env"] == "PushCube" and episode.meta["actor"] in ("expert", "random")
    assert episode.meta["env_cfg"]["num_envs"] == 8 and episode.meta["fps"] == 20

    code, again, shown = run(capsys, *words, "--quiet")
    assert code == 0 and again["new_episodes"] == 0 and "is complete: 6 positive and 5 negative" in shown
    assert list(EpisodeStore(place).ids) == list(store.ids)

    store.file(store.ids[0]).write_bytes(b"damaged")  # Which is for the doctor, and stops nobody.
    saved = str(place / "config.yaml")
    code, more, _ = run(capsys, "collect", saved, f"{KEYS}.max_positive_trajectories=8", "--quiet")
    assert code == 0 and (more["positive"], more["negative"], more["new_episodes"]) == (8, 5, 2)
    store.file(store.ids[0]).unlink()
    states = {tuple(episode.state[0]) for episode in EpisodeStore(place) if episode.state is not None}
    assert len(states) == 12  # All of them are different episodes.


def test_the_default_folder_is_named_after_the_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, result, _ = run(capsys, "collect", "pick_cube", *SMALL, "--quiet", f"{KEYS}.image_size=[3,32,48]")
    assert result["data"] == "data/pick_cube"
    episode = EpisodeStore("data/pick_cube")[0]
    assert {name: pixels.shape for name, pixels in episode.frames.items()} == {
        "base_camera": (12, 32, 48, 3),
        "wrist_camera": (12, 32, 48, 3),
    }
    assert "grasp" in episode.flags
    code, wrong, _ = run(capsys, "collect", "pick_cube", *SMALL, f"{KEYS}.max_positive_trajectories=9", "--quiet")
    assert code == 1 and "holds pictures base_camera 32x48" in wrong["error"] and "64x64" in wrong["error"]


def test_the_layouts_of_other_systems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    positive, negative = tmp_path / "npy" / "positive", tmp_path / "npy" / "negative"
    words = ["collect", "push_cube", *SMALL, f"{KEYS}.positive_dir={positive}", f"{KEYS}.negative_dir={negative}"]
    code, result, _ = run(capsys, *words, f"{KEYS}.max_positive_trajectories=3", "--quiet")
    assert code == 0 and Path(result["contact_sheet"]) == tmp_path / "npy" / "contact_sheet.png"
    code, result, _ = run(capsys, *words, "--quiet")
    assert code == 0 and result["new_episodes"] == 3
    assert sorted(path.name for path in positive.glob("*.npy")) == [f"{i:06d}.npy" for i in range(6)]
    assert len(list(negative.glob("*.npy"))) == 5

    config = tmp_path / "resnet_guide.yaml"
    config.write_text(
        f"""
        defaults: [push_cube, _self_]
        env: {{train: {{reward_render_mode: always}}}}
        reward_data_collection: {{enabled: True, save_dir: "{tmp_path / "pkl"}", target_success: 4, target_failure: 4}}
        """
    )
    for _ in range(2):
        code, result, _ = run(capsys, "collect", str(config), f"{KEYS}.num_envs=8", "--quiet")
        assert code == 0 and (result["positive"], result["negative"]) == (4, 4)
    assert len(list((tmp_path / "pkl" / "success").glob("episode_*.pkl"))) == 4
    assert len(load_episodes(tmp_path / "pkl")) == 8
    assert not list((tmp_path / "pkl").glob("*.png")) and (tmp_path / "pkl_contact_sheet.png").exists()


def wait_for_episodes(place: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Returns once a run has written so many episodes."""
    for _ in range(6000):
        if len(list(place.glob("episodes/*.safetensors"))) >= count:
            return
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.01)
    raise AssertionError("nothing was collected")


def test_killed_at_any_moment_it_loses_nothing_that_was_there(tmp_path: Path) -> None:
    place = tmp_path / "data"
    words = [sys.executable, "-m", "plaudit", "collect", "push_cube", "--quiet", f"{KEYS}.save_dir={place}"]
    words += [f"{KEYS}.num_envs=16", f"{KEYS}.max_positive_trajectories=null", f"{KEYS}.frames_per_episode=3"]
    seen: set[str] = set()
    for kill in range(2):
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        wait_for_episodes(place, len(seen) + 1, process)
        time.sleep(random.Random(kill).random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        store = EpisodeStore(place)
        assert seen < set(store.ids) and len(set(store.ids)) == len(store)
        seen = set(store.ids)
        for id in store.ids:
            assert tensors.verify(store.file(id)).id == id
    writers = {id.split("-")[2] for id in seen}
    assert writers == {"w000", "w001"}
    first = [store[i].state for i in range(len(store))]
    assert len({state[0].tobytes() for state in first if state is not None}) == len(store)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_keeps_what_there_is_and_says_how_to_go_on(how: signal.Signals, tmp_path: Path) -> None:
    place = tmp_path / "data"
    words = ["collect", "push_cube", f"{KEYS}.save_dir={place}", f"{KEYS}.max_positive_trajectories=null", "--json"]
    command = [sys.executable, "-m", "plaudit", *words, f"{KEYS}.num_envs=16"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ})
    wait_for_episodes(place, 1, process)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    result = json.loads(out.splitlines()[-1])
    assert result["interrupted"] and len(EpisodeStore(place)) == result["positive"] + result["negative"] > 0
    assert "the same command goes on" in err.decode() and b"Traceback" not in err


def test_training_with_collection_learns_the_same_and_resumes_exactly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    easy = "env.cfg.success_threshold=0.2"  # Some episodes start as good as done.
    words = ["train", "push_cube", *TRAIN, easy, "--quiet"]
    plain = run(capsys, *words, f"runtime.output_dir={tmp_path / 'plain'}", "runtime.iterations=8")[1]
    words += ["reward.collect_data=True"]
    whole = run(capsys, *words, f"runtime.output_dir={tmp_path / 'whole'}", "runtime.iterations=8")[1]
    half = run(capsys, *words, f"runtime.output_dir={tmp_path / 'half'}", "runtime.iterations=4")[1]
    resumed = run(capsys, "train", "--resume", half["run"], "runtime.iterations=8", "--quiet")[1]
    assert whole["eval"] == plain["eval"] == resumed["eval"] and resumed["exact_resume"]
    first, second = (EpisodeStore(Path(result["run"]) / "data") for result in (whole, resumed))
    assert whole["data"]["negative"] == first.counts.negative > 20 and not whole["data"]["complete"]
    assert first.ids == second.ids and len(second) > half["data"]["positive"] + half["data"]["negative"]
    for id in first.ids:
        one, two = (tensors.read(store.file(id)) for store in (first, second))
        np.testing.assert_array_equal(one.frames["base_camera"], two.frames["base_camera"])
        np.testing.assert_array_equal(one.labels, two.labels)
    last = tensors.read(first.file(max(first.ids, key=lambda id: id[-6:])))
    assert last.meta["actor"] == "training" and last.meta["policy_step"] > 0


def test_the_same_training_again_adds_no_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "push_cube", *TRAIN, "reward.collect_data=True", f"{KEYS}.save_dir={tmp_path / 'data'}"]
    words += [f"runtime.output_dir={tmp_path / 'out'}", "runtime.iterations=4", "--quiet"]
    first = run(capsys, *words)[1]["data"]
    again, shown = run(capsys, *words)[1:]
    assert again["data"]["negative"] == first["negative"] > 0 and "were there already" in shown
    other = run(capsys, *words, "runtime.seed=5")[1]["data"]
    assert other["negative"] > first["negative"] and Path(other["contact_sheet"]).exists()


def test_the_policy_in_training_as_actor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", "push_cube", *TRAIN, "env.cfg.success_threshold=0.2", f"runtime.output_dir={tmp_path / 'out'}"]
    words += [f"{KEYS}.save_dir={tmp_path / 'data'}", f"{KEYS}.actors=[{{kind: training}}]", "--quiet"]
    limits = [f"{KEYS}.max_positive_trajectories=2", f"{KEYS}.max_negative_trajectories=9"]
    code, result, _ = run(capsys, *words, *limits)
    assert code == 0 and result["complete"] and result["positive"] == 2 and Path(result["contact_sheet"]).exists()
    code, result, shown = run(capsys, *words, *limits)
    assert code == 0 and result["new_episodes"] == 0 and "is complete" in shown
    run(capsys, *words, limits[0], f"{KEYS}.max_negative_trajectories=14")
    store = EpisodeStore(tmp_path / "data")
    assert store.counts.negative == 14
    code, wrong, _ = run(
        capsys, *words, f"{KEYS}.max_positive_trajectories=500", f"{KEYS}.max_negative_trajectories=500"
    )
    assert code == 1 and "training is over" in wrong["error"] and "early_failures" not in wrong["error"]
    assert len({episode.state[0].tobytes() for episode in store if episode.state is not None}) == 16


def test_a_trained_policy_as_actor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TRAIN, "runtime.iterations=1", f"runtime.output_dir={tmp_path / 'out'}", "--quiet"]
    folder = run(capsys, "train", "push_cube", *words)[1]["run"]
    actor = f"{KEYS}.actors=[{{kind: policy, checkpoint: '{folder}', noise: 0.3}}]"
    words = [*SMALL, f"{KEYS}.max_positive_trajectories=0", f"{KEYS}.save_dir={tmp_path / 'data'}", "--quiet"]
    code, _, _ = run(capsys, "collect", "push_cube", actor, *words)
    assert code == 0
    assert EpisodeStore(tmp_path / "data")[0].meta["actor"] == "policy"
    code, wrong, _ = run(capsys, "collect", "push_cube", actor.replace(folder, f"{folder}x"), *words)
    assert code == 1 and "no run or checkpoint" in wrong["error"]
    code, wrong, _ = run(capsys, "collect", "pick_cube", actor, *words)
    assert code == 1 and "another policy" in wrong["error"]


def test_what_never_comes_ends_with_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", "pick_cube", *SMALL, "env.cfg.episode_length=5", f"{KEYS}.actors=[{{kind: random}}]"]
    words += [f"{KEYS}.save_dir={tmp_path / 'data'}", f"{KEYS}.max_idle_episodes=20", "--quiet"]
    code, wrong, _ = run(capsys, *words)
    assert code == 1
    assert "of the last 20 episodes none was a success" in wrong["error"] and "0 of 6 positive" in wrong["error"]
    assert EpisodeStore(tmp_path / "data").counts.negative == 5 and "early_failures" not in wrong["error"]
    code, wrong, _ = run(capsys, *words, f"{KEYS}.max_negative_trajectories=40", f"{KEYS}.early_failures=0.2")
    assert code == 1 and "more failures are taken as successes come" in wrong["error"]
    assert EpisodeStore(tmp_path / "data").counts.negative == 8


def test_an_env_that_tells_no_success_is_said_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(PendulumEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:-1], {"reward_dist": 0.0, "reward_ctrl": 0.0}

        def render(self) -> Any:
            return np.zeros((8, 8, 3), np.uint8)

    monkeypatch.setitem(gymnasium.registry, "Silent-v0", EnvSpec("Silent-v0", entry_point=Silent))  # type: ignore[arg-type]
    words = ["collect", "pendulum", *SMALL, f"{KEYS}.actors=[{{kind: random}}]", f"{KEYS}.save_dir={tmp_path / 'data'}"]
    words += [
        "env.id=gym:Silent-v0",
        "env.cfg.num_envs=8",
        "env.cfg.max_episode_steps=5",
        f"{KEYS}.max_idle_episodes=4",
    ]
    code, wrong, _ = run(capsys, *words, "--quiet")
    assert code == 1 and "gym:Silent-v0 does not tell success" in wrong["error"]
    assert "env.cfg.success_key may name the right key of its info: reward_ctrl, reward_dist." in wrong["error"]


@pytest.mark.parametrize("command", ["collect", "train"])
def test_a_camera_that_is_not_there_is_told_of_by_the_key_that_named_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [command, "pendulum", f"{KEYS}.save_dir={tmp_path}", "reward.collect_data=true", "--quiet"]
    code, wrong, _ = run(capsys, *words, f"{KEYS}.image_keys=[wrist]", f"{KEYS}.actors=[{{kind: random}}]")
    assert code == 2 and wrong["error"].startswith(f"{KEYS}.image_keys: gym:Pendulum-v1 has no camera 'wrist'")


def test_where_pictures_are_observed_their_cameras_are_told_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(env_id: str, keys: dict[str, Any], *_: Any, **__: Any) -> Any:
        raise ConfigError(f"env.cfg.cameras: unknown camera '{keys['cameras'][0]}'; it has base_camera.")

    monkeypatch.setattr("plaudit.pipelines.builders.build_env", build)
    words = ["train", "maniskill_ppo_cnn", f"{KEYS}.image_keys=[base_camera]", "env.cfg.cameras=[wrist]", "--quiet"]
    code, wrong, _ = run(capsys, *words, "reward.collect_data=true")
    assert code == 2 and wrong["error"] == "env.cfg.cameras: unknown camera 'wrist'; it has base_camera."


def test_what_was_collected_before_an_env_failed_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = itertools.count()
    play = ArmTask.step

    def step(env: ArmTask, action: torch.Tensor) -> Any:
        if next(steps) == 12:
            raise EnvError("ManiSkill's worker 1 of 2 was ended by SIGKILL.")
        return play(env, action)

    monkeypatch.setattr(ArmTask, "step", step)
    words = ["collect", "pick_cube", *SMALL, "env.cfg.episode_length=5", f"{KEYS}.actors=[{{kind: random}}]"]
    code, wrong, _ = run(capsys, *words, f"{KEYS}.save_dir={tmp_path / 'data'}", "--quiet")
    assert code == 1 and "SIGKILL" in wrong["error"] and "the same command goes on" in wrong["error"]
    assert EpisodeStore(tmp_path / "data").counts.negative > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["collect", "push_cube", f"{KEYS}.image_keys=[base_camra]"], "image_keys: unknown camera 'base_camra'"),
        (["collect", "push_cube", f"{KEYS}.format=np"], "Did you mean 'npy'?"),
        (["collect", "push_cube", f"{KEYS}.format=rlinf"], "only read"),
        (["collect", "push_cube", f"{KEYS}.max_positve_trajectories=3"], "Did you mean 'max_positive_trajectories'?"),
        (["collect", "push_cube", f"{KEYS}.actors=[{{kind: exprt}}]"], "Did you mean 'expert'?"),
        (["collect", "push_cube", "env.cfg.control=joint"], "needs env.cfg.control=ee"),
        (["collect", "pendulum", f"{KEYS}.actors=[{{kind: expert}}]"], "gym:Pendulum-v1 has no expert"),
        (["collect", "push_cube", f"{KEYS}.save_dir={{tmp}}/file/x"], "cannot make the episode store"),
        (["collect", "push_cube", f"{KEYS}.save_dir={{tmp}}"], "holds other files"),
        (["collect", "push_cube", f"{KEYS}.early_failures=1.5"], "early_failures: must be between 0 and 1"),
        (
            ["collect", "push_cube", f"{KEYS}.early_failures=0.5", f"{KEYS}.max_positive_trajectories=null"],
            "early_failures: needs both limits",
        ),
        (["collect", "push_cub"], "Did you mean 'push_cube'?"),
    ],
)
def test_what_goes_wrong_is_said(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    code, result, shown = run(capsys, *[word.replace("{tmp}", str(tmp_path)) for word in words], "--quiet")
    assert code in (1, 2) and message in result["error"] and message in shown
