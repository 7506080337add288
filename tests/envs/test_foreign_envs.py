"""Envs that nobody here wrote, of three packages, with the recipes that docs/your-own.md prints: `make test-robots`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from plaudit.cli import main
from plaudit.envs import build_env
from plaudit.envs.base import VecEnv
from plaudit.envs.testing import CHECKS, check_frames, check_restart, check_seeds, check_steps
from plaudit.errors import ConfigError, RegistryError

PAGE = (Path(__file__).parents[2] / "docs" / "your-own.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"```yaml\n# (\w+)\.yaml\n(.*?)```", PAGE, re.DOTALL))
EXPERTS = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def pick" in block)

needs_robots = pytest.mark.skipif(
    "PLAUDIT_TEST_ROBOTS" not in os.environ, reason="needs the extra 'robots' and some minutes: make test-robots"
)

ENVS: dict[str, dict[str, Any]] = {
    "gym:FetchReach-v4": {"kwargs": {"width": 64, "height": 64}},
    "gym:metaworld/reach-v3": {"max_episode_steps": 20, "kwargs": {"width": 64, "height": 64, "camera_name": "corner"}},
    "gym:gym_hil/PandaPickCubeBase-v0": {"max_episode_steps": 6, "cameras": ["render.0", "render.1"]},
}
# An env of gym-hil takes seconds to make, and its pictures half a second each.
CHEAP = (check_steps, check_seeds, check_frames, check_restart)
CASES = [(env_id, check) for env_id in ENVS for check in (CHEAP if "gym_hil" in env_id else CHECKS)]


def make(env_id: str, num_envs: int, **cfg: Any) -> VecEnv:
    return build_env(env_id, {"draft": True, **ENVS[env_id], "num_envs": num_envs, **cfg})


def test_recipes_are_of_ten_lines() -> None:
    assert set(RECIPES) == {"fetch_reach", "handle_press", "hil_pick"}
    assert all(len(text.splitlines()) <= 10 for text in RECIPES.values())


@needs_robots
@pytest.mark.parametrize(("env_id", "check"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_contract(env_id: str, check: Callable[[Any], None]) -> None:
    check(partial(make, env_id))


@needs_robots
@pytest.mark.parametrize("name", RECIPES)
def test_three_stages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("mine.py").write_text(EXPERTS, encoding="utf-8")
    Path(f"{name}.yaml").write_text(RECIPES[name], encoding="utf-8")
    few = [f"reward.data_collection.max_{kind}_trajectories=8" for kind in ("positive", "negative")]
    quick = ["reward.training.max_steps=10", "reward.training.figures=false", "runtime.eval_episodes=2"]

    def run(*words: str) -> dict[str, Any]:
        assert main([*words, *few, *quick, "--quiet", "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))

    collected = run("collect", f"{name}.yaml")
    assert (collected["positive"], collected["negative"]) == (8, 8)
    run("fit", f"{name}.yaml", "reward.training.save_dir=models")
    learned = ["reward.use_reward_model=true", "reward.checkpoint_path=models/best_model"]
    trained = run("train", f"{name}.yaml", *learned)
    assert trained["steps"] >= 1000 and {"success_once", "model_success_once"} <= set(trained["test"])


@needs_robots
class TestMetaworld:
    def test_every_episode_has_a_goal_of_its_own(self) -> None:
        env = make("gym:metaworld/reach-v3", 2)
        first, _ = env.reset(seed=0)
        again = env.restart(torch.tensor([0, 1]))
        goals = torch.cat([first["state"][:, -3:], again["state"][:, -3:]])
        assert len({tuple(goal) for goal in goals.tolist()}) == 4

    def test_its_own_policy_succeeds(self) -> None:
        expert = "metaworld.policies:SawyerReachV3Policy"
        env: Any = make("gym:metaworld/reach-v3", 1, max_episode_steps=100, expert=expert)
        env.reset(seed=0)
        assert any(bool(env.step(env.expert_action()).success) for _ in range(99))

    def test_as_the_package_registers_it(self) -> None:
        env = build_env("gym:Meta-World/MT1", {"num_envs": 1, "kwargs": {"env_name": "reach-v3", "seed": 0}})
        env.reset(seed=0)
        assert env.step(torch.zeros(1, 4)).success is not None

    def test_wrong_names(self) -> None:
        with pytest.raises(RegistryError, match="Did you mean 'metaworld/push-v3'"):
            build_env("gym:metaworld/push-v2")
        with pytest.raises(ConfigError, match=r"no camera 'cornr'; it has topview, corner.*Did you mean 'corner'"):
            make("gym:metaworld/reach-v3", 1, kwargs={"camera_name": "cornr"})


@needs_robots
def test_pictures_that_are_observed_are_cameras() -> None:
    cfg = {"cameras": None, "camera_size": [32, 32], "kwargs": {"image_obs": True}}
    env = make("gym:gym_hil/PandaPickCubeBase-v0", 1, **cfg)
    env.request_frames("always")
    obs, info = env.reset(seed=0)
    assert env.cameras == ("pixels.front", "pixels.wrist") and set(obs) == {"state", *env.cameras}
    assert all(torch.equal(info["frames"][camera], obs[camera]) for camera in env.cameras)
    assert obs["pixels.wrist"].shape == (1, 32, 32, 3)
