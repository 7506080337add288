"""One recipe for all stages: who has the last word on a key, and what is refused before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from plaudit.config.loader import load_config, save_config
from plaudit.config.run_config import has_stages, load_plan
from plaudit.errors import ConfigError

RECIPE = """
defaults: [push_cube, _self_]
runtime: {seed: 3, iterations: 7}
reward: {success_reward: 2.0}
run:
  episodes: 12
  collect: {runtime: {iterations: 5}}
  fit: {reward: {training: {num_epochs: 2}}}
  train: {runtime: {eval_freq: 0}, reward: {reward_mode: terminal}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return tmp_path / "mine.yaml"


def test_a_stage_has_the_common_keys_and_over_them_its_own(recipe: Path) -> None:
    plan = load_plan(recipe)
    assert plan.episodes == 12 and plan.train.runtime.seed == plan.fit.runtime.seed == 3
    assert (plan.collect.runtime.iterations, plan.train.runtime.iterations) == (5, 7)
    assert plan.fit.reward.training.num_epochs == plan.train.reward.training.num_epochs == 2  # For a refresh.
    assert plan.train.reward.reward_mode == "terminal" and plan.collect.reward.reward_mode == "per_step"
    assert plan.collect.reward.collect_data and not plan.collect.reward.use_reward_model
    assert plan.train.reward.use_reward_model and not plan.train.reward.collect_data


def test_the_command_line_has_the_last_word_and_on_one_stage_the_very_last(recipe: Path) -> None:
    plan = load_plan(recipe, ["run.train.runtime.iterations=1", "runtime.iterations=2", "run.episodes=4"])
    assert (plan.collect.runtime.iterations, plan.train.runtime.iterations, plan.episodes) == (2, 1, 4)
    assert load_plan(recipe, ["~run.collect.runtime.iterations"]).collect.runtime.iterations == 100


def test_a_plan_is_read_back_as_it_was(recipe: Path, tmp_path: Path) -> None:
    plan = load_plan(recipe, ["run.train.runtime.seed=9"])
    save_config(plan.to_dict(), tmp_path / "config.yaml", "run")
    assert load_plan(tmp_path / "config.yaml") == plan
    assert "plaudit run " in (tmp_path / "config.yaml").read_text().splitlines()[0]


def test_any_recipe_will_do() -> None:
    assert load_plan("push_cube").episodes == 256
    assert has_stages("quickstart") and not has_stages("push_cube")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("run: {colect: {}}", "mine.yaml: run.colect: unknown key"),
        ("run: {episodes: 0}", "mine.yaml: run.episodes: must be at least 1"),
        ("run: {collect: {runtime: {iteratons: 1}}}", "mine.yaml, run.collect: runtime.iteratons: unknown key"),
        ("run: {train: {algorithm: {cfg: {batch_size: 10000}}}}", "mine.yaml, run.train: algorithm.cfg.batch_size"),
        ("run: {fit: {reward: {training: {data: {path: x}}}}}", "mine.yaml, run.fit: reward.training.data.path: 'x'"),
        ("run: {train: {reward: {use_reward_model: false}}}", "plaudit run itself connects its stages by this key"),
        (
            "run: {train: {reward: {training: {optim: {lr: 1}}}}}",
            "run.train: reward.training.optim.lr: 1.0: a run refreshes",
        ),
        ("run: {train: {runtime: {seed: '${nothing}'}}}", "mine.yaml, run.train: runtime.seed"),
    ],
)
def test_what_cannot_work_is_refused(recipe: Path, change: str, message: str) -> None:
    recipe.write_text(f"defaults: [push_cube, _self_]\n{change}\n")
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        load_plan(recipe)


def test_a_refresh_is_set_up_where_the_fit_is(recipe: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"command line: reward\.training\.max_steps: 5: a run refreshes its reward model"
    ):
        load_plan(recipe, ["run.train.reward.training.max_steps=5"])
    for key in ("run.fit.reward.training.max_steps=5", "reward.training.max_steps=5"):
        plan = load_plan(recipe, [key])
        assert plan.train.reward.training == plan.fit.reward.training and plan.fit.reward.training.max_steps == 5


def test_the_quickstart_explores_as_the_recipes_for_rare_rewards_do() -> None:
    plan = load_plan("quickstart")
    sparse = load_config("push_cube_sparse")
    assert (plan.train.policy, plan.train.algorithm) == (sparse.policy, sparse.algorithm)
    assert plan.train.runtime.iterations == sparse.runtime.iterations
