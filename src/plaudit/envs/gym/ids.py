"""Gymnasium's ids to specs. Packages that register their envs when they are imported are imported by themselves."""

from __future__ import annotations

import importlib
import importlib.util
import re

import gymnasium
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id

from plaudit.errors import MissingDependencyError, RegistryError, nearest

PACKAGES = {
    "gym_hil": ("gym_hil", "gym-hil"),
    "Meta-World": ("metaworld", "metaworld"),
    "metaworld": ("plaudit.envs.gym.metaworld", "metaworld"),
    "": ("gymnasium_robotics", "gymnasium-robotics"),
}
"""From the part of an id before its slash to the module that registers such ids, and what it is installed as."""

ROBOTICS = re.compile("Fetch|Hand(Reach|Manipulate)|AdroitHand|FrankaKitchen|PointMaze|AntMaze")
"""How the ids of gymnasium-robotics begin, which have no part before a slash."""


def find_spec(env_id: str) -> EnvSpec:
    """The spec of an id; `module:Id` imports the module first. An unknown id is an error that names the nearest."""
    # MuJoCo reads how it is to draw when it is first imported, which the packages do.
    importlib.import_module("plaudit.envs.mujoco")
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        elif name not in gymnasium.registry:
            _import_package(name)
        return gymnasium.spec(name)
    except ImportError as error:
        raise MissingDependencyError(f"gym:{env_id} needs a module that cannot be imported: {error}.") from error
    except gymnasium.error.Error as error:
        raise RegistryError(f"unknown Gymnasium env '{env_id}'.{_suggestion(name)}") from error


def _import_package(name: str) -> None:
    """Imports the package whose envs are called so, where the id tells which."""
    space = name.rpartition("/")[0]
    if space in PACKAGES and (space or ROBOTICS.match(name)):
        module, install = PACKAGES[space]
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"gym:{name} comes with the package {install} ({error}): pip install 'plaudit[robots]', or "
                f"pip install {install}."
            ) from error
    elif space.isidentifier() and importlib.util.find_spec(space) is not None:
        importlib.import_module(space)


def _suggestion(name: str) -> str:
    """What the user may have meant: the newest version of the same env, or one that is called alike."""
    try:
        space, bare, _ = parse_env_id(name)
        version = find_highest_version(space, bare)
    except gymnasium.error.Error:
        version = None
    if version is not None:
        return f" Did you mean '{get_env_id(space, bare, version)}'?"
    hint = nearest(name, gymnasium.registry)
    if hint.startswith(" Known"):
        return " gymnasium.pprint_registry() lists what there is; 'gym:module:Id' imports a module first."
    return hint
