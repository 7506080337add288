"""What the scripted experts do at instants that are worked out by hand; on ManiSkill itself they must succeed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from plaudit.envs.maniskill.experts import ABOVE, pick_cube, push_cube

SIZE = 0.02


def body(*places: list[float]) -> Any:
    return SimpleNamespace(pose=SimpleNamespace(p=torch.tensor(places)))


def world(tcp: list[float], cube: list[float], goal: list[float], held: bool = False) -> Any:
    agent = SimpleNamespace(tcp=body(tcp), is_grasping=lambda thing: torch.tensor([held]))
    cubes = {"cube": body(cube), "obj": body(cube)}
    return SimpleNamespace(agent=agent, goal_site=body(goal), goal_region=body(goal), cube_half_size=SIZE, **cubes)


NOWHERE = torch.zeros(1, 3)


def test_a_cube_is_come_to_from_above_grasped_and_carried() -> None:
    cube, goal = [0.1, 0.0, 0.02], [0.0, 0.05, 0.2]
    # Beside it: 4 cm to the point above it, open.
    far = pick_cube(world([0.06, 0.0, 0.02 + ABOVE], cube, goal), NOWHERE)
    assert far[0].tolist() == pytest.approx([0.4, 0, 0, 1], abs=1e-6)
    # Above it: down, as far as a step goes.
    over = pick_cube(world([0.1, 0.0, 0.17], cube, goal), NOWHERE)
    assert over[0].tolist() == pytest.approx([0, 0, -1, 1], abs=1e-6)
    # Around it: shut.
    assert pick_cube(world([0.1, 0.0, 0.03], cube, goal), NOWHERE)[0, 3] == -1
    # With it in hand: to the goal, or to where the goal is believed to be.
    held = world([0.1, 0.0, 0.02], cube, goal, held=True)
    assert pick_cube(held, NOWHERE)[0].tolist() == pytest.approx([-1, 0.5, 1, -1], abs=1e-6)
    assert pick_cube(held, torch.tensor([[0.07, 0.0, -0.15]]))[0].tolist() == pytest.approx(
        [-0.3, 0.5, 0.3, -1], abs=1e-6
    )


def test_a_cube_is_pushed_from_behind() -> None:
    cube, goal = [0.1, 0.0, SIZE], [0.3, 0.0, 0.001]
    # Before it: back to the point above its rear, shut.
    before = push_cube(world([0.12, 0.0, SIZE + ABOVE], cube, goal), NOWHERE)
    assert before[0].tolist() == pytest.approx([-0.7, 0, 0, -1], abs=1e-6)
    # Behind it and high: down to its rear.
    behind = push_cube(world([0.05, 0.0, 0.1], cube, goal), NOWHERE)
    assert behind[0].tolist() == pytest.approx([0, 0, -0.8, -1], abs=1e-6)
    # Behind it and low: 0.4 of the way that the cube has to go.
    low = push_cube(world([0.06, 0.0, 0.03], cube, goal), NOWHERE)
    assert low[0].tolist() == pytest.approx([0.8, 0, -0.1, -1], abs=1e-6)
