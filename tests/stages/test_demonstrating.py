"""Demonstrations for a run: chosen, checked, and with the rewards that are learned from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from learned_samples import Slider, brightness, manager, pictures
from sac_helpers import make_trainer, sac_of

from plaudit.data.episode import Episode
from plaudit.data.formats import load_episodes, open_writer
from plaudit.data.store import EpisodeStore
from plaudit.envs.base import VecEnv
from plaudit.errors import DataError
from plaudit.pipelines.demonstrations import pick, show
from plaudit.rewards.reward_env import RewardedEnv
from plaudit.rewards.reward_function import RewardManager
from plaudit.rl import Trainer, build_algo

PLACES = np.array([-0.4, -0.15, 0.1, 0.35, 0.6, 0.85], np.float32)


def episode(id: str, success: bool = True, **changes: Any) -> Episode:
    """A slider that goes right from -0.4 by a quarter a step, five steps, until the clock ends it."""
    state = np.stack([2 * PLACES, np.arange(6, dtype=np.float32)], 1)
    labels = (PLACES > 0.5).astype(np.int8) if success else np.zeros(6, np.int8)
    over = np.arange(5) == 4
    frames = {"base_camera": pictures(4 * torch.from_numpy(PLACES)).numpy()}
    made = Episode(
        id,
        frames,
        labels,
        np.arange(6, dtype=np.int32),
        5,
        success,
        "simulator",
        state=state,
        actions=np.ones((5, 1), np.float32),
        rewards=PLACES[1:],
        terminated=over & ~over,
        truncated=over,
    )
    return replace(made, **changes)


def stored(folder: Path, *episodes: Episode) -> str:
    EpisodeStore.create(folder).add(episodes)
    return str(folder)


def trainer_on(env: VecEnv, place: str, count: int | None = None, run: Path | None = None) -> Trainer:
    keys = {"demonstrations": place, "num_demonstrations": count, "learning_starts": 8, "batch_size": 8}
    return make_trainer(env, sac=keys, rollout_steps=4, run=run)


def rewards(trainer: Trainer) -> list[float]:
    replay = sac_of(trainer).demonstrations
    assert replay is not None
    found: list[float] = replay.columns["reward"][replay.transitions()].tolist()
    return found


def test_successes_with_their_own_rewards(tmp_path: Path) -> None:
    place = stored(tmp_path / "data", episode("a", success=False), episode("b"), episode("c"))
    trainer = trainer_on(Slider(2), place, 1)
    episodes = pick(trainer.algorithm, trainer.env, None)
    assert [one.id for one in episodes] == ["b"]
    show(trainer.algorithm, trainer.env, episodes)
    assert rewards(trainer) == pytest.approx(PLACES[1:].tolist())
    trainer.train(iterations=3)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 1, 1, 1, 1]),
        ({"reward_mode": "terminal"}, [0, 0, 0, 0, 1]),
        ({"reward_interval": 2}, [0, 1, 0, 1, 1]),
        ({"hold": 3}, [0, 0, 0, 1, 1]),
        ({"guards": ["place > 0.3"]}, [0, 0, 1, 1, 1]),
    ],
)
def test_rewards_of_a_model(tmp_path: Path, settings: dict[str, Any], expected: list[float]) -> None:
    place = stored(tmp_path / "data", episode("a"))
    slider = Slider(2)
    trainer = trainer_on(RewardedEnv(slider, manager(readings=slider.readings, **settings)), place)
    show(trainer.algorithm, trainer.env, pick(trainer.algorithm, slider, manager()))
    assert rewards(trainer) == expected


def test_where_the_models_verdict_ends_episodes_it_ends_demonstrations(tmp_path: Path) -> None:
    slider = Slider(2)
    trainer = trainer_on(RewardedEnv(slider, manager(terminate_on_success=True)), stored(tmp_path, episode("a")))
    show(trainer.algorithm, trainer.env, pick(trainer.algorithm, slider, manager()))
    replay = sac_of(trainer).demonstrations
    assert replay is not None
    batch = replay.take(replay.transitions(), 3, 0.5)
    assert batch.discount.tolist() == [0, 0, 0, 0, 0]
    assert batch.reward.tolist() == [0.5, 1, 1, 1, 1]


def test_another_model_judges_demonstrations_again_also_after_a_resume(tmp_path: Path) -> None:
    place = stored(tmp_path / "data", episode("a"))
    slider, run = Slider(2), tmp_path / "run"
    trainer = trainer_on(RewardedEnv(slider, manager()), place, run=run)
    show(trainer.algorithm, trainer.env, pick(trainer.algorithm, slider, manager()))
    trainer.train(iterations=3)
    assert rewards(trainer) == [0, 1, 1, 1, 1]
    assert isinstance(trainer.env, RewardedEnv)
    trainer.env.swap(manager(brightness(0.9)), 2)
    trainer.train(iterations=4)
    assert rewards(trainer) == [0, 0, 0, 1, 1]
    (tmp_path / "data" / "episodes" / "a.safetensors").unlink()  # A resume does not need it.
    resumed = trainer_on(RewardedEnv(Slider(2), manager(brightness(0.9)), version=2), place, run=run)
    resumed.load(run / "checkpoints" / "latest.pt")
    assert rewards(resumed) == [0, 0, 0, 1, 1]
    resumed.train(iterations=5)


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    def picked(place: str, model: RewardManager | None = None) -> list[Episode]:
        trainer = trainer_on(Slider(2), place)
        return pick(trainer.algorithm, trainer.env, model)

    with pytest.raises(DataError, match=r"demonstrations: there is nothing at 'nowhere'. Collect some"):
        picked("nowhere")
    place = stored(tmp_path / "data", episode("a"))
    with pytest.raises(DataError, match=r"'a' has no pictures of 'wrist', which the reward model looks at"):
        picked(place, manager(brightness(image_keys=("wrist",))))
    few = episode("a")
    few = replace(few, frames={"base_camera": few.frames["base_camera"][[0, 5]]}, labels=few.labels[[0, 5]])
    few = replace(few, frame_index=np.array([0, 5], np.int32))
    with pytest.raises(DataError, match=r"has pictures of 1 of its 5 steps, but the reward model must see 5"):
        picked(stored(tmp_path / "few", few), manager())
    assert picked(stored(tmp_path / "end", few), manager(reward_mode="terminal"))
    large = episode("a", frames={"base_camera": np.zeros((6, 8, 12, 3), np.uint8)})
    with pytest.raises(DataError, match=r"'a': the pictures of 'base_camera' are 8x12, but the reward model takes"):
        picked(stored(tmp_path / "large", large), manager())
    silent = stored(tmp_path / "silent", episode("a", rewards=None))
    with pytest.raises(DataError, match=r"'a' has no rewards; train on a reward model, or record them"):
        picked(silent)
    with pytest.raises(DataError, match=r"'a' has no rewards"):  # They would be added to the model's.
        picked(silent, manager(combine_mode="add"))
    assert picked(silent, manager())


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("judged", [False, True])
def test_a_layout_without_the_last_instant_is_learned_from(tmp_path: Path, terminated: bool, judged: bool) -> None:
    over = (np.arange(5) == 4) & terminated
    ended = episode("a", terminated=over, truncated=~over & (np.arange(5) == 4))
    open_writer(tmp_path / "theirs", "realworld").add([ended])
    read = load_episodes(tmp_path / "theirs")[0]  # Its camera has another name than the env's.
    place = stored(tmp_path / "data", replace(read, frames={"base_camera": read.frames["main_images"]}))
    slider = Slider(2)
    model = manager() if judged else None
    trainer = trainer_on(slider if model is None else RewardedEnv(slider, model), place)
    show(trainer.algorithm, trainer.env, pick(trainer.algorithm, slider, model))
    # What it led to is unknown of the fifth step. The env's own reward of it counts, where nothing was to come.
    kept = 5 if terminated and not judged else 4
    assert rewards(trainer) == pytest.approx([0, 1, 1, 1] if judged else PLACES[1:][:kept].tolist())
    replay = sac_of(trainer).demonstrations
    assert replay is not None
    batch = replay.take(replay.transitions(), 1, 0.5)
    assert batch.discount.tolist() == [0.5] * 4 + [0.0] * (kept - 4)
    trainer.train(iterations=3)
    assert all(part.isfinite().all() for part in trainer.policy.state_dict().values())


RULES = {"num_envs": 9, "cameras": ["eye"], "randomize": 1.0, "episode_length": 70, "action_scale": 0.05}


@pytest.mark.parametrize(
    ("key", "theirs", "ours", "of_rewards"),
    [
        ("reward_mode", "sparse", "dense", True),
        ("success_threshold", 0.1, 0.025, True),
        ("terminate_on_success", False, True, False),
        ("action_scale", 0.03, 0.05, False),
        ("kwargs", {"a": [1, 2]}, {"a": [1, 3]}, False),
    ],
)
def test_demonstrations_of_other_rules_are_refused(
    tmp_path: Path, key: str, theirs: Any, ours: Any, of_rewards: bool
) -> None:
    slider = Slider(2)
    vars(slider.cfg).update({"randomize": 0.0, "cameras": ("base_camera",), "episode_length": 50, "action_scale": 0.05})

    def picked(value: Any, model: RewardManager | None = None) -> list[Episode]:
        kept = episode("a", meta={"env_cfg": {**RULES, key: value}})
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        trainer = trainer_on(slider, stored(place, kept))
        return pick(trainer.algorithm, slider, model)

    assert picked(theirs)[0].id == "a" if key not in RULES else picked(0.05)  # As far as only one side tells.
    setattr(slider.cfg, key, ours)
    assert picked(ours)
    message = rf"'a' was recorded with env.cfg.{key} .*, but this run has .*Collect demonstrations with this recipe"
    with pytest.raises(DataError, match=message):
        picked(theirs)
    with pytest.raises(DataError, match=message):  # The env's own reward is part of what is learned from.
        picked(theirs, manager(combine_mode="add"))
    if of_rewards:
        assert picked(theirs, manager())  # The model's rewards are of another kind anyway.
    else:
        with pytest.raises(DataError, match=message):
            picked(theirs, manager())


def test_where_the_end_counts_the_demonstrations_end_in_success(tmp_path: Path) -> None:
    left = replace(episode("a"), labels=np.array([0, 0, 0, 1, 1, 0], np.int8))
    trainer = trainer_on(Slider(2), stored(tmp_path, left, episode("b")), 1)
    assert [one.id for one in pick(trainer.algorithm, trainer.env, None)] == ["a"]
    trainer.env.headline = "success_at_end"
    assert [one.id for one in pick(trainer.algorithm, trainer.env, None)] == ["b"]


def test_others_have_none() -> None:
    trainer = make_trainer(Slider(2))
    assert pick(trainer.algorithm, trainer.env, None) == []
    show(trainer.algorithm, trainer.env, [])
    assert sac_of(trainer).demonstrations is None


def test_cloning_needs_neither_rewards_nor_their_pictures(tmp_path: Path) -> None:
    slider = Slider(2)
    slider.cfg.reward_mode = "dense"
    silent = episode("a", rewards=None, meta={"env_cfg": {"reward_mode": "sparse"}})
    silent = replace(silent, frames={"other_camera": silent.frames["base_camera"]})
    trainer = trainer_on(slider, stored(tmp_path, silent))
    with pytest.raises(DataError, match=r"recorded with env.cfg.reward_mode 'sparse'"):
        pick(trainer.algorithm, slider, None)
    clone = build_algo("bc", {"demonstrations": str(tmp_path)}, trainer.policy)
    clone.initialize_buffer(1, 2, 2, 1)
    for env, model in ((slider, None), (RewardedEnv(slider, manager()), manager())):
        show(clone, env, pick(clone, slider, model))
        assert clone.buffer.columns["action"][clone.buffer.transitions()].tolist() == [[1.0]] * 5
