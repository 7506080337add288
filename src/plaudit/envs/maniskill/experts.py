"""Scripted experts for data collection in some ManiSkill tasks, which use the true state.

ManiSkill's own solutions plan complete joint motions, for `pd_joint_pos`. These experts return an action of
`pd_ee_delta_pos` at every step, as policies do, so that their behaviour can be cloned, perturbed and continued.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

CONTROL = "pd_ee_delta_pos"
"""Control mode of the experts: translation in three directions, and the gripper."""

ROBOTS = ("panda", "panda_wristcam")
"""Supported robots, by ManiSkill's names; the first is the tasks' default."""

REACH = 0.1
"""Metres by which an action of 1 moves the gripper's target."""

ABOVE = 0.08
"""Height in metres above a cube from which the gripper approaches it."""

AIMED, TOUCHING = 0.02, 0.012
"""Tolerances in metres: of being above (or level with) a cube, and of being at its centre."""

Expert: TypeAlias = Callable[[Any, torch.Tensor], torch.Tensor]
"""Function of a ManiSkill env and the displacement of each goal in metres (n, 3), that returns actions (n, 4)."""


def pick_cube(env: Any, elsewhere: torch.Tensor) -> torch.Tensor:
    """Approach the cube from above, grasp it and carry it to the goal."""
    tcp = env.agent.tcp.pose.p
    cube = env.cube.pose.p
    goal = env.goal_site.pose.p + elsewhere
    held = env.agent.is_grasping(env.cube)
    to_cube = cube - tcp

    # Descend only once the gripper is above the cube.
    over = _length(to_cube[:, :2]) < AIMED
    waypoint = torch.where(over[:, None], cube, _higher(cube))
    move = torch.where(held[:, None], goal - cube, waypoint - tcp)
    return _action(move, closed=held | (_length(to_cube) < TOUCHING))


def push_cube(env: Any, elsewhere: torch.Tensor) -> torch.Tensor:
    """Descend behind the cube with the gripper closed, and push the cube to the goal."""
    tcp = env.agent.tcp.pose.p
    cube = env.obj.pose.p
    goal = env.goal_region.pose.p + elsewhere
    half_size = float(env.cube_half_size)

    # Approach a point behind the cube from above.
    behind = cube.clone()
    behind[:, 0] -= 2.5 * half_size
    ready = (tcp[:, 0] < cube[:, 0] - 1.5 * half_size) & ((tcp[:, 1] - cube[:, 1]).abs() < AIMED)
    low = tcp[:, 2] < 2.0 * half_size
    waypoint = torch.where(ready[:, None], behind, _higher(behind))

    # Push more slowly near the goal, because a sliding cube overshoots.
    push = 0.4 * (goal - cube)
    push[:, 2] = half_size - tcp[:, 2]
    move = torch.where((ready & low)[:, None], push, waypoint - tcp)
    return _action(move, closed=torch.ones_like(ready))


EXPERTS: dict[str, Expert] = {"PickCube-v1": pick_cube, "PushCube-v1": push_cube}
"""Experts by ManiSkill's task id."""


def _higher(position: torch.Tensor) -> torch.Tensor:
    """Return positions raised by `ABOVE`."""
    return position + torch.tensor([0.0, 0.0, ABOVE], device=position.device)


def _length(vector: torch.Tensor) -> torch.Tensor:
    """Return the Euclidean norm along the last dimension."""
    norm: torch.Tensor = torch.linalg.vector_norm(vector, dim=-1)
    return norm


def _action(move: torch.Tensor, closed: torch.Tensor) -> torch.Tensor:
    """Return actions (n, 4) that move the gripper by `move`, metres (n, 3), and open or close it.

    A movement is limited to what one step allows.
    """
    return torch.cat([(move / REACH).clamp(-1.0, 1.0), torch.where(closed, -1.0, 1.0)[:, None]], dim=-1)
