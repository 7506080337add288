"""Ids to specs, with or without the package that an id belongs to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

from plaudit.envs.gym.ids import find_spec
from plaudit.errors import MissingDependencyError, RegistryError


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Pendulun-v1", "unknown Gymnasium env 'Pendulun-v1'. Did you mean 'Pendulum-v1'"),
        ("Pendulum", "Did you mean 'Pendulum-v1'"),
        ("Humanoid-v99", "Did you mean 'Humanoid-v5'"),
        ("Xyzzyx", "pprint_registry"),
        ("a b", "pprint_registry"),
        ("no_such_space/Env-v0", "unknown Gymnasium env 'no_such_space/Env-v0'"),
    ],
)
def test_unknown_ids(env_id: str, message: str) -> None:
    with pytest.raises(RegistryError, match=message):
        find_spec(env_id)


def test_a_module_that_is_not_there() -> None:
    with pytest.raises(MissingDependencyError, match="no_such_module"):
        find_spec("no_such_module:Env-v0")


@pytest.mark.parametrize(
    ("env_id", "module", "install"),
    [
        ("FetchPush-v4", "gymnasium_robotics", "gymnasium-robotics"),
        ("AdroitHandDoor-v1", "gymnasium_robotics", "gymnasium-robotics"),
        ("gym_hil/PandaPickCubeBase-v0", "gym_hil", "gym-hil"),
        ("metaworld/push-v3", "metaworld", "metaworld"),
        ("Meta-World/MT1", "metaworld", "metaworld"),
    ],
)
def test_the_package_of_an_id_is_named(env_id: str, module: str, install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules, "plaudit.envs.gym.metaworld"]:
        if name.split(".")[0] == module or name == "plaudit.envs.gym.metaworld":
            monkeypatch.delitem(sys.modules, name, raising=False)
    for name in [name for name in gymnasium.registry if name == env_id]:
        monkeypatch.delitem(gymnasium.registry, name)

    monkeypatch.setitem(sys.modules, module, None)  # What `import` takes for a module that is not there.
    with pytest.raises(
        MissingDependencyError, match=rf"gym:{env_id} comes with the package {install}.*plaudit\[robots\]"
    ):
        find_spec(env_id)


def test_the_package_of_a_namespace_is_imported(tmp_path: Path) -> None:
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('my_envs/Swing-v0', entry_point='gymnasium.envs.classic_control:PendulumEnv')\n"
    )
    code = "from plaudit.envs.gym.ids import find_spec; print(find_spec('my_envs/Swing-v0').id)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "my_envs/Swing-v0"
