"""Scripted experts of some of ManiSkill's tasks, for collecting: they look at the true state, and move the gripper.

ManiSkill's own solutions plan whole motions of the joints, for `pd_joint_pos`; these answer every instant with an
action of `pd_ee_delta_pos`, as policies do, so that what they do can be cloned, disturbed, and gone on with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

CONTROL = "pd_ee_delta_pos"
"""The control mode that they are written for: three directions and the gripper."""

ROBOTS = ("panda", "panda_wristcam")
"""The robots, by ManiSkill's names; the first is what the tasks have by default."""

REACH = 0.1
"""Metres that an action of 1 moves the gripper's aim by."""

ABOVE = 0.08
"""Metres over a cube at which the hand comes near it."""

AIMED, TOUCHING = 0.02, 0.012
"""Metres from above a cube, or from its middle, within which the gripper is there."""

Expert: TypeAlias = Callable[[Any, torch.Tensor], torch.Tensor]
"""From one of ManiSkill's envs, and metres (n, 3) by which each goal is believed to be elsewhere, to actions (n, 4)."""


def pick_cube(env: Any, elsewhere: torch.Tensor) -> torch.Tensor:
    """Comes from above, grasps the cube and carries it to the goal."""
    tcp, cube, goal = env.agent.tcp.pose.p, env.cube.pose.p, env.goal_site.pose.p + elsewhere
    held, way = env.agent.is_grasping(env.cube), cube - tcp
    over = _length(way[:, :2]) < AIMED
    waypoint = torch.where(over[:, None], cube, _higher(cube))
    move = torch.where(held[:, None], goal - cube, waypoint - tcp)
    return _action(move, closed=held | (_length(way) < TOUCHING))


def push_cube(env: Any, elsewhere: torch.Tensor) -> torch.Tensor:
    """Comes down behind the cube with the gripper shut, and pushes it to the goal."""
    tcp, cube, goal = env.agent.tcp.pose.p, env.obj.pose.p, env.goal_region.pose.p + elsewhere
    size = float(env.cube_half_size)
    behind = cube.clone()
    behind[:, 0] -= 2.5 * size
    ready = (tcp[:, 0] < cube[:, 0] - 1.5 * size) & ((tcp[:, 1] - cube[:, 1]).abs() < AIMED)
    low = tcp[:, 2] < 2.0 * size
    waypoint = torch.where(ready[:, None], behind, _higher(behind))
    push = 0.4 * (goal - cube)  # Slower as it comes near: what slides goes too far.
    push[:, 2] = size - tcp[:, 2]
    move = torch.where((ready & low)[:, None], push, waypoint - tcp)
    return _action(move, closed=torch.ones_like(ready))


EXPERTS: dict[str, Expert] = {"PickCube-v1": pick_cube, "PushCube-v1": push_cube}
"""By ManiSkill's ids."""


def _higher(place: torch.Tensor) -> torch.Tensor:
    return place + torch.tensor([0.0, 0.0, ABOVE], device=place.device)


def _length(vector: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.linalg.vector_norm(vector, dim=-1)
    return found


def _action(move: torch.Tensor, closed: torch.Tensor) -> torch.Tensor:
    """Actions (n, 4) that move the gripper by metres (n, 3), as far as one step goes, and open or close it."""
    return torch.cat([(move / REACH).clamp(-1.0, 1.0), torch.where(closed, -1.0, 1.0)[:, None]], dim=-1)
