"""Frames: size, content, threads, and that no more of them are drawn than were asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

from plaudit.envs.base import Frames
from plaudit.envs.mujoco.arm_task import ArmTask
from plaudit.envs.mujoco.config import PushCubeConfig
from plaudit.envs.mujoco.renderer import BatchRenderer
from plaudit.errors import EnvError

TASKS = ["PushCube", "PickCube", "PegInsertion"]
Make = Callable[..., ArmTask]


def _changed(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
    """Pixels (n,) that differ visibly between frames uint8 (n, H, W, 3)."""
    return ((one.int() - two.int()).abs().amax(-1) > 25).sum((1, 2))


@pytest.mark.parametrize("size", [(64, 64), (48, 96), (33, 17), (8, 1500)])
def test_frames_of_any_size(make: Make, size: tuple[int, int]) -> None:
    env = make("PickCube", 2, camera_size=size)
    frames = env.render()
    assert list(frames) == ["base_camera", "wrist_camera"]
    for pixels in frames.values():
        assert pixels.dtype == torch.uint8
        assert pixels.shape == (2, *size, 3)
        assert pixels.float().std() > 5  # a picture, not one colour


def test_a_wider_frame_shows_the_same_middle(make: Make) -> None:
    env = make("PickCube", 1)
    square = env.draw(("base_camera",), (64, 64))["base_camera"]
    wide = env.draw(("base_camera",), (64, 128))["base_camera"]
    assert _changed(square, wide[:, :, 32:96]) < 40  # the same but for edges


def test_frames_are_the_right_way_up(make: Make) -> None:
    env = make("PickCube", 1)
    env.sim.scenery[0, :3] = [0.0, 0.0, 0.3]
    high = env.render()["base_camera"][0].int()
    env.sim.scenery[0, :3] = [0.0, 0.0, 0.1]
    low = env.render()["base_camera"][0].int()
    green = [((f[..., 1] - f[..., 0] > 60) & (f[..., 1] - f[..., 2] > 40)).nonzero()[:, 0] for f in (high, low)]
    assert len(green[0]) > 3
    assert len(green[1]) > 3
    assert green[0].float().mean() < green[1].float().mean() - 5


@pytest.mark.parametrize("env_id", TASKS)
def test_threads_change_no_pixel(make: Make, env_id: str) -> None:
    one, two = make(env_id, 5), make(env_id, 5, threads=2)
    frames, others = one.render(), two.render()
    for camera in one.cameras:
        assert torch.equal(frames[camera], others[camera])
    some = torch.tensor([3, 1])
    assert torch.equal(two.render(some)["base_camera"], frames["base_camera"][some])


@pytest.mark.parametrize("env_id", TASKS)
def test_goal_is_visible(make: Make, env_id: str) -> None:
    env = make(env_id, 8)
    before = env.render()["base_camera"]
    env.sim.scenery[:, 1] += 0.04
    assert (_changed(before, env.render()["base_camera"]) >= 4).all()


@pytest.mark.parametrize("env_id", TASKS)
def test_base_camera_has_object_and_goal_in_its_frame(make: Make, env_id: str) -> None:
    env = make(env_id, 500)
    model = env.sim.model
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    camera = model.camera("base_camera").id
    axes, zoom = data.cam_xmat[camera].reshape(3, 3), 1 / np.tan(np.deg2rad(model.cam_fovy[camera]) / 2)
    for points in (env.thing, env.sim.scenery[:, :3]):
        x, y, minus_depth = ((points - data.cam_xpos[camera]) @ axes).T
        assert np.abs(zoom * x / minus_depth).max() < 0.95
        assert np.abs(zoom * y / minus_depth).max() < 0.95


def test_goal_disc_has_the_size_of_the_threshold(make: Make) -> None:
    counts = []
    for threshold in (0.1, 0.05):
        env = make("PushCube", 1, success_threshold=threshold, camera_size=(128, 128))
        before = env.render()["base_camera"]
        env.sim.scenery[:, 2] -= 1.0  # under the table
        counts.append(int(_changed(before, env.render()["base_camera"])))
    assert 2.5 < counts[0] / counts[1] < 5.5  # four times the area, but for what the arm hides


@pytest.mark.parametrize("env_id", TASKS)
def test_object_is_visible_from_both_cameras(make: Make, env_id: str) -> None:
    env = make(env_id, 8)
    most = {camera: torch.zeros(8, dtype=torch.int64) for camera in env.cameras}
    for step in range(24):
        if step % 3 == 0:
            frames = env.render()
            place = env.sim.qpos[:, 9:12].copy()
            env.sim.qpos[:, 9:12] = [0, 0, -1]  # under the table
            without = env.render()
            env.sim.qpos[:, 9:12] = place
            for camera in env.cameras:
                most[camera] = torch.maximum(most[camera], _changed(frames[camera], without[camera]))
        env.step(env.expert_action())
    assert (most["base_camera"] >= 6).all()
    assert (most["wrist_camera"] >= 20).all()


@pytest.mark.parametrize("env_id", TASKS)
def test_two_cameras_see_different_things(make: Make, env_id: str) -> None:
    frames = make(env_id, 2).render()
    assert (_changed(frames["base_camera"], frames["wrist_camera"]) > 400).all()


def test_camera_choice(make: Make) -> None:
    env = make("PickCube", 1, cameras=("wrist_camera",), obs_mode="rgb")
    obs = env.observe()
    assert set(obs) == {"state", "wrist_camera"}
    assert set(env.observation_space.spaces) == {"state", "wrist_camera"}


def test_no_cameras_no_frames(make: Make) -> None:
    env = make("PickCube", 1, cameras=())
    with pytest.raises(EnvError, match="no cameras"):
        env.request_frames("always")
    for keys in ({"obs_mode": "rgb"}, {"frames": "always"}):
        with pytest.raises(ValueError, match=r"cameras: .* needs at least one"):
            PushCubeConfig(cameras=(), **keys)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown camera 'side'; there are base_camera, wrist_camera"):
        PushCubeConfig(cameras=("side",))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many states each call of `BatchRenderer.render` draws."""
    calls: list[int] = []
    render = BatchRenderer.render

    def count(self: BatchRenderer, qpos: Any, *others: Any) -> Any:
        calls.append(len(qpos))
        return render(self, qpos, *others)

    monkeypatch.setattr(BatchRenderer, "render", count)
    return calls


def test_no_frame_is_drawn_that_nobody_asked_for(make: Make, drawn: list[int]) -> None:
    env = make("PushCube", 3, episode_length=4)
    action = torch.zeros(3, 4)
    for _ in range(5):
        env.step(action)
    assert drawn == []
    env.request_frames("terminal")
    env.reset(seed=0)
    for _ in range(8):
        env.step(action)
    assert drawn == [3, 3]  # two ends of episodes
    drawn.clear()
    env.request_frames("always")
    env.reset(seed=0)
    for _ in range(4):
        env.step(action)
    assert drawn == [3, 3, 3, 3, 3, 3]  # reset, four steps, and the last frames of the ended
    drawn.clear()
    env.request_frames("none")
    env.step(action)
    assert drawn == []


def test_terminal_frames_are_of_the_ended_only(make: Make, drawn: list[int]) -> None:
    env = make("PushCube", 4, episode_length=8, frames="terminal")
    env.stagger()  # clocks 0, 2, 4, 6
    counts = []
    for _ in range(8):
        step = env.step(torch.zeros(4, 4))
        counts.append(0 if step.final_frames is None else len(step.final_frames["base_camera"]))
    assert counts == [0, 1, 0, 1, 0, 1, 0, 1]
    assert drawn == [1, 1, 1, 1]


def test_frames_show_the_instants_of_the_observations(make: Make) -> None:
    env = make("PushCube", 2, episode_length=3, obs_mode="rgb", frames="always")
    for _ in range(3):
        step = env.step(torch.ones(2, 4))
        assert step.frames is not None
        assert torch.equal(step.frames["base_camera"], step.obs["base_camera"])
    assert step.frames is not None
    assert step.final_frames is not None
    assert step.final_obs is not None
    assert torch.equal(step.final_frames["wrist_camera"], step.final_obs["wrist_camera"])
    assert not torch.equal(step.final_frames["wrist_camera"], step.frames["wrist_camera"])


def _same(one: Frames, two: Frames) -> bool:
    return all(torch.equal(one[camera], two[camera]) for camera in ("base_camera", "wrist_camera"))


@pytest.mark.parametrize("env_id", TASKS)
def test_without_randomize_frames_are_as_modelled(make: Make, env_id: str) -> None:
    env = make(env_id, 3)
    renderer = BatchRenderer(env.sim.model, 64, 64, threads=1)
    plain = renderer.render(env.sim.qpos, env.sim.scenery, env.cameras)
    renderer.close()
    assert _same(env.render(), {name: torch.from_numpy(pixels) for name, pixels in plain.items()})


@pytest.mark.parametrize("env_id", TASKS)
def test_each_episode_has_its_look(make: Make, env_id: str) -> None:
    env = make(env_id, 3, randomize=1.0, episode_length=2)
    qpos, scenery = env.sim.qpos[:1].copy(), env.sim.scenery[:1].copy()

    def same_state() -> Frames:
        env.sim.qpos[:], env.sim.scenery[:] = qpos, scenery
        return env.render()

    first = same_state()
    env.step(torch.zeros(3, env.action_space.shape[0]))
    assert _same(same_state(), first)
    env.step(torch.zeros(3, env.action_space.shape[0]))  # the next episode begins
    second = same_state()
    for camera in env.cameras:
        looks = torch.cat([first[camera], second[camera]]).int()
        differences = [(looks[i] - looks[j]).abs().float().mean() for i in range(6) for j in range(i)]
        assert min(differences) > 2


def test_looks_follow_from_the_seed(make: Make) -> None:
    frames = make("PushCube", 3, seed=4, randomize=1.0).render()
    again = make("PushCube", 3, seed=4, randomize=1.0, threads=2)
    assert _same(again.render(), frames)
    some = torch.tensor([2, 0])
    assert _same(again.render(some), {name: pixels[some] for name, pixels in frames.items()})
    mild, other = make("PushCube", 3, seed=4, randomize=0.1), make("PushCube", 3, seed=4)
    changes = [
        (f.render()["base_camera"].int() - frames["base_camera"].int()).abs().sum() for f in (again, mild, other)
    ]
    assert 0 == changes[0] < changes[1] < changes[2]


def test_looks_go_along_with_snapshots_and_saved_states(make: Make) -> None:
    env, other = make("PickCube", 2, randomize=1.0, episode_length=2), make("PickCube", 2, seed=9, randomize=1.0)
    seen, taken = [], []
    for _ in range(4):
        env.step(torch.ones(2, 4))
        seen.append(env.render())
        taken.append(env.snapshot())
    later = other.render_snapshots(torch.cat(taken))
    assert _same(later, {name: torch.cat([frames[name] for frames in seen]) for name in env.cameras})
    other.load_state_dict(env.state_dict())
    assert _same(other.render(), seen[-1])


def test_colours_can_be_told_apart_in_every_look(make: Make) -> None:
    env = make("PushCube", 64, randomize=1.0)
    env.sim.qpos[:] = env.sim.qpos[0]  # so that the arm hides nothing in one of them only
    frames = env.render()["base_camera"]
    red, green, blue = frames.int().unbind(-1)
    assert ((red > 60) & (red > 2 * green) & (red > 2 * blue)).sum((1, 2)).min() >= 4  # the cube
    assert ((blue > 60) & (blue > 2 * red)).sum((1, 2)).min() >= 20  # the disc
    assert frames.float().mean((1, 2, 3)).min() > 90  # no darkness


def test_people_see_every_episode_in_the_same_light(make: Make) -> None:
    one, two = make("PushCube", 1), make("PushCube", 1, randomize=1.0)
    assert torch.equal(one.portrait(torch.tensor([0])), two.portrait(torch.tensor([0])))


@pytest.mark.parametrize("wrong", [-0.1, 1.5, float("nan")])
def test_randomize_is_between_0_and_1(wrong: float) -> None:
    with pytest.raises(ValueError, match="randomize: must be between 0 and 1"):
        PushCubeConfig(randomize=wrong)


def test_portrait_is_large_and_drawn_finely(make: Make) -> None:
    env = make("PegInsertion", 2)
    picture = env.portrait(torch.tensor([1]))
    assert picture.shape == (1, 240, 320, 3)
    coarse = env.draw(("show",), (240, 320), torch.tensor([1]))["show"]
    colours, fewer = (len(np.unique(image.numpy().reshape(-1, 3), axis=0)) for image in (picture, coarse))
    assert colours > fewer  # shadows and a sky


def test_renders_though_mujoco_was_imported_first() -> None:
    code = (
        "import mujoco, torch\n"
        "from plaudit.envs import build_env\n"
        "env = build_env('PushCube', {'num_envs': 1}, threads=1)\n"
        "env.reset(seed=0)\n"
        "print(float(env.render()['base_camera'].float().std()))\n"
        "env.close()\n"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 5
    assert done.stderr == ""  # nothing left open complains at exit


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have a display without saying so")
def test_viewer_without_a_display_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvError, match=r"headless is false, but there is no display.*Set it to true"):
        make("PushCube").open_viewer()


def test_an_env_that_nobody_closed_ends_quietly() -> None:
    code = (
        "from plaudit.envs import build_env\n"
        "env = build_env('PushCube', {'num_envs': 2, 'frames': 'always'})\n"
        "env.reset(seed=0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_without_opengl_the_state_still_steps_and_frames_say_what_to_install() -> None:
    code = (
        "import ctypes, os, torch\n"
        "os.environ.pop('MUJOCO_GL', None)\n"
        "real = ctypes.CDLL\n"
        "def missing(name, *args, **kwargs):\n"
        "    if 'EGL' in str(name):\n"
        "        raise OSError('cannot open shared object file')\n"
        "    return real(name, *args, **kwargs)\n"
        "ctypes.CDLL = missing\n"
        "from plaudit.envs import build_env\n"
        "from plaudit.errors import MissingDependencyError\n"
        "env = build_env('PushCube', {'num_envs': 2})\n"
        "env.reset(seed=0)\n"
        "env.step(torch.zeros(2, 4))\n"
        "try:\n"
        "    env.render()\n"
        "except MissingDependencyError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "apt-get install libegl1 libgl1-mesa-dri" in done.stdout
