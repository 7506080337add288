"""What is asked of ManiSkill's envs, on one that only notes it. What they answer is in `test_maniskill`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from plaudit.envs.maniskill.config import ManiSkillConfig
from plaudit.envs.maniskill.simulation import ManiSkillSim, _drawer, _explained
from plaudit.errors import MissingDependencyError


class Scenes:
    """Four scenes on a GPU, as far as a restart is concerned.

    Attributes:
        asked: Arguments of each `reset`.
        drawn: What torch would have drawn in each.
    """

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.drawn: list[float] = []

    def reset(self, **given: Any) -> tuple[torch.Tensor, dict[str, Any]]:
        self.asked.append(given)
        self.drawn.append(torch.rand(()).item())
        return torch.full((4, 1), float(len(self.asked))), {}


@pytest.fixture
def sim() -> ManiSkillSim:
    sim = ManiSkillSim.__new__(ManiSkillSim)
    sim.env, sim.num_envs, sim.cfg, sim._remembers = Scenes(), 4, ManiSkillConfig(), False
    return sim


def test_all_scenes_start_with_a_seed_each(sim: ManiSkillSim) -> None:
    sim.start([0, 1, 2, 3], [2**31 - 2, 5, 6, 7])
    assert sim.env.asked == [{"seed": [2**31 - 2, 2**31 - 1, 0, 1]}]


def test_some_of_many_scenes_start_without_new_generators_for_the_others(sim: ManiSkillSim) -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    for seed in (8, 8, 9):
        sim.start([1, 3], [seed, 77])
    assert [list(given) for given in sim.env.asked] == [["options"]] * 3  # No seeds, which would be for all.
    assert sim.env.asked[0]["options"]["env_idx"].tolist() == [1, 3]
    first, again, other = sim.env.drawn
    assert first == again != other  # The seed decides, and nobody else's numbers change.
    assert torch.equal(torch.random.get_rng_state(), before)
    assert sim.state.tolist() == [[3.0]] * 4


@pytest.mark.parametrize(
    "words", ["vk::createInstanceUnique: ErrorIncompatibleDriver", "failed to find a rendering device"]
)
def test_what_vulkan_lacks_is_said_in_our_words(words: str) -> None:
    why = _explained(RuntimeError(words), "PickCube-v1", None, ManiSkillConfig(), {})
    assert isinstance(why, MissingDependencyError) and words in str(why)
    assert "NVIDIA_DRIVER_CAPABILITIES" in str(why) and "render_backend=cpu" in str(why)


@pytest.mark.parametrize(
    ("asked", "gpu", "draws"), [("auto", True, "gpu"), ("auto", False, "cpu"), ("cpu", True, "cpu")]
)
def test_who_draws(asked: Any, gpu: bool, draws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    assert _drawer(ManiSkillConfig(render_backend=asked)) == draws
