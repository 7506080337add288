"""The env contract as a test that any env can be put through (after `dm_env.test_utils`).

    from plaudit.envs.testing import check_env

    def test_my_env():
        check_env(lambda num_envs: build_env("MyTaskRL", {"num_envs": num_envs}))

A breach raises an `EnvError` that says what was expected. `CHECKS` are the parts, for one test each.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, TypeAlias, get_args

import gymnasium as gym
import torch

from plaudit.envs.base import Frames, Headline, Obs, Step, TaskEnv, VecEnv
from plaudit.errors import EnvError, NonFiniteError

Make: TypeAlias = Callable[[int], VecEnv]
"""Builds the env under test with so many envs."""

LONGEST = 1000
"""Steps after which a check stops waiting for episodes that have no time limit."""

ROUNDING = 0.1
"""Mean difference of two pictures, of 255, that rounding may make."""


def check_env(make: Make, *, independent: bool | None = None) -> None:
    """Puts an env through every check.

    Args:
        make: Builds the env with so many envs; called several times.
        independent: Whether env i's episodes must not depend on the number of envs. `None` asks it of envs that can
            save their state.
    """
    with closing(make(1)) as env:
        ask = env.can_save_state if independent is None else independent
    for check in CHECKS:
        if check is not check_independence or ask:
            check(make)


def check_spaces(make: Make) -> None:
    """The env has as many envs as asked for, and the spaces of one env."""
    with closing(make(3)) as env:
        _expect(env.num_envs == 3, f"num_envs is 3 when 3 were asked for, not {env.num_envs}")
        _expect(isinstance(env.device, torch.device), f"device is a torch.device, not {env.device!r}")
        _expect(isinstance(env.observation_space, gym.spaces.Dict), "observation_space is a Dict")
        for name, space in env.observation_space.spaces.items():
            fits = isinstance(space, gym.spaces.Box) and (
                (space.dtype == "float32" and len(space.shape) == 1)
                if name == "state"
                else (space.dtype == "uint8" and len(space.shape) == 3 and space.shape[-1] == 3)
            )
            _expect(fits, f"'{name}' is float32 (d,) if 'state', else uint8 (H, W, 3), not {space}")
        action = env.action_space
        _expect(isinstance(action, gym.spaces.Box) and len(action.shape) == 1, f"action_space is a Box (d,): {action}")
        limit = env.max_episode_steps
        _expect(limit is None or limit >= 1, f"max_episode_steps is None or positive, not {limit}")
        width = (env.observation_space.spaces.get("state") or gym.spaces.Box(0, 1, (0,))).shape or (0,)
        for name, reading in env.readings.items():
            _expect(0 <= reading.index < width[0], f"the reading '{name}' has a place in state, not {reading.index}")
        _expect(env.headline in get_args(Headline), f"headline is one of {get_args(Headline)}, not {env.headline!r}")


def check_steps(make: Make) -> None:
    """Shapes, dtypes, devices and ranges of what `reset` and `step` return."""
    with closing(make(3)) as env:
        obs, info = env.reset(seed=0)
        _expect(isinstance(info, dict), "reset returns observations and an info dict")
        _check_obs(env, obs, env.num_envs, "reset's obs")
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        for _, step in _rollout(env, 20):
            _check_step(env, step)
            kept += [(value, value.clone()) for value in (step.reward, *step.obs.values(), *step.rewards.values())]
        env.reset(seed=1)
        _expect(all(torch.equal(a, b) for a, b in kept), "what a step returned stays as it was while the env goes on")


def check_seeds(make: Make) -> None:
    """The same seed and actions give the same steps, in another env and in the same one again."""
    with closing(make(3)) as one, closing(make(3)) as two:
        runs = []
        for env in (one, two, one):
            obs, _ = env.reset(seed=7)
            runs.append([obs, *[step for _, step in _rollout(env, 15)]])
        _expect_same(runs[0], runs[1], "with the same seed, two envs of the same kind")
        _expect_same(runs[0], runs[2], "reset to the same seed, the same env")


def check_action_errors(make: Make) -> None:
    """A wrong shape is an error with both shapes; a non-finite number is an error too."""
    with closing(make(3)) as env:
        env.reset(seed=0)
        good = (env.num_envs, *env.action_space.shape)
        wrong = (env.num_envs, env.action_space.shape[0] + 1)
        message = _error_of(EnvError, lambda: env.step(torch.zeros(wrong, device=env.device)))
        _expect(message is not None, f"an action of shape {wrong} instead of {good} raises an EnvError")
        _expect(str(good) in str(message) and str(wrong) in str(message), f"the message has both shapes: {message}")
        action = torch.zeros(good, device=env.device)
        action[1, 0] = torch.nan
        _expect(_error_of(NonFiniteError, lambda: env.step(action)) is not None, "a NaN action raises a NonFiniteError")


def check_episode_ends(make: Make) -> None:
    """Episodes last until `max_episode_steps` at most; ended envs start anew and keep their true last observation."""
    with closing(make(3)) as env:
        first, _ = env.reset(seed=3)
        limit = env.max_episode_steps
        age = torch.zeros(env.num_envs, dtype=torch.int64)
        starts, differs = [first], False
        for _, step in _rollout(env, min(LONGEST, 2 * limit + 1 if limit else LONGEST)):
            age += 1
            if limit is not None:
                late = (age >= limit) & ~step.terminated.cpu()
                _expect(bool((age <= limit).all()), f"no episode goes beyond max_episode_steps={limit}")
                _expect(bool((step.truncated.cpu() == late).all()), f"episodes are truncated at step {limit} exactly")
            if step.final_obs is not None:
                begun = {name: value[step.ended] for name, value in step.obs.items()}
                starts.append(begun)
                differs |= not _same(begun, step.final_obs)
                age[step.done.cpu()] = 0
        varied = any(not torch.equal(row, starts[0][k][0]) for o in starts for k, v in o.items() for row in v)
        _expect(differs or not varied or len(starts) == 1, "final_obs is the last of the old episode, not the new obs")


def check_final_obs(make: Make) -> None:
    """What is cut off by the clock ends with the observation that an env without a clock sees (a `TaskEnv` only)."""
    with closing(make(2)) as env, closing(make(2)) as twin:
        if not isinstance(env, TaskEnv) or not isinstance(twin, TaskEnv):
            return
        env.max_episode_steps, twin.max_episode_steps = 4, None
        env.reset(seed=5)
        twin.reset(seed=5)
        for (_, cut), (_, free) in zip(_rollout(env, 4), _rollout(twin, 4), strict=True):
            if bool(free.done.any()):
                return
            last = cut
        _expect(bool(last.truncated.all()) and last.final_obs is not None, "4 steps with a limit of 4 are truncated")
        _expect(_same(last.final_obs or {}, free.obs), "final_obs is what the env sees when it is not cut off")


def check_saved_state(make: Make) -> None:
    """`state_dict`, through `torch.save` and back, goes on exactly; only where the env says that it can."""
    with closing(make(3)) as env, closing(make(3)) as other:
        if not env.can_save_state:
            return
        env.reset(seed=1)
        obs = [step.obs for _, step in _rollout(env, 7)][-1]
        file = io.BytesIO()
        torch.save(env.state_dict(), file)
        kept = env.state_dict()
        unbroken = [step for _, step in _rollout(env, 30, seed=9)]
        file.seek(0)
        other.reset(seed=2)
        for target, state, what in ((other, torch.load(file, weights_only=True), "another env"), (env, kept, "itself")):
            _expect(_same(target.load_state_dict(state), obs), f"load_state_dict of {what} returns the present obs")
            resumed = [step for _, step in _rollout(target, 30, seed=9)]
            _expect_same(unbroken, resumed, f"a state loaded into {what}: the steps after it")


def check_frames(make: Make) -> None:
    """Frames come when they are asked for, and no others."""
    with closing(make(2)) as env:
        if not env.cameras:
            _expect(_error_of(EnvError, lambda: env.request_frames("always")) is not None, "no cameras: an EnvError")
            return
        _, info = env.reset(seed=0)
        _expect(info.get("frames") is None, "no frames before they are asked for")
        for _, step in _rollout(env, 2):
            _expect(step.frames is None and step.final_frames is None, "mode 'none' gives no frames")
        env.request_frames("always")
        _, info = env.reset(seed=0)
        _check_frames(env, info.get("frames"), 2, "reset's info['frames'] in mode 'always'")
        for _, step in _rollout(env, 2):
            _check_frames(env, step.frames, 2, "frames in mode 'always'")
        env.request_frames("terminal")
        for _, step in _rollout(env, min(LONGEST, env.max_episode_steps or LONGEST)):
            _expect(step.frames is None, "mode 'terminal' gives no frames but the last ones")
            if len(step.ended):
                _check_frames(env, step.final_frames, len(step.ended), "final_frames in mode 'terminal'")
            else:
                _expect(step.final_frames is None, "no final_frames where nothing ended")
        _check_frames(env, env.render(torch.tensor([1])), 1, "render([1])")
        env.request_frames("none")


def check_snapshots(make: Make) -> None:
    """A snapshot that is drawn later shows what `render` showed at its instant, but for rounding; only where the env
    says it can.
    """
    with closing(make(2)) as env:
        if not env.can_snapshot:
            return
        env.reset(seed=6)
        seen: list[Frames] = []
        taken: list[torch.Tensor] = []
        for _, _step in _rollout(env, 3):
            seen.append(env.render())
            taken.append(env.snapshot())
        later = env.render_snapshots(torch.cat(taken))
        once = {name: torch.cat([frames[name] for frames in seen]) for name in env.cameras}
        _expect(_alike(later, once), "a snapshot drawn later is the picture that was drawn then")
        env.request_frames("terminal")
        env.request_snapshots(True)
        for _, step in _rollout(env, min(LONGEST, env.max_episode_steps or LONGEST)):
            _expect(step.snapshot is not None, "every step has a snapshot once request_snapshots(True) was called")
            if step.final_frames is not None and step.snapshot is not None:
                drawn = env.render_snapshots(step.snapshot[step.ended.to(step.snapshot.device)])
                _expect(_alike(drawn, step.final_frames), "a step's snapshots of ended envs show their last states")
        env.request_snapshots(False)
        env.request_frames("none")


def check_restart(make: Make) -> None:
    """`restart` begins new episodes in the envs named and leaves the others alone; only where the env says it can."""
    with closing(make(3)) as env, closing(make(3)) as twin:
        if not env.can_restart:
            return
        for one in (env, twin):
            one.reset(seed=8)
            for _ in _rollout(one, 2):
                pass
        ids = torch.tensor([2, 0])
        _check_obs(env, env.restart(ids), 2, "what restart([2, 0]) returns")
        limit = env.max_episode_steps
        pairs = zip(_rollout(env, (limit or 5) - 2), _rollout(twin, (limit or 5) - 2), strict=True)
        for number, ((_, ours), (_, theirs)) in enumerate(pairs):
            alone = [{name: value[1] for name, value in step.obs.items()} for step in (ours, theirs)]
            _expect(number > 0 or _same(*alone), "restart([2, 0]) leaves env 1 as it was")
            late = ours.truncated[ids.to(env.device)]
            _expect(not bool(late.any()), "the clock of an env that was restarted begins at 0")


def check_independence(make: Make) -> None:
    """Env i's episodes are the same whatever the number of envs."""
    with closing(make(2)) as few, closing(make(5)) as many:
        few_obs, _ = few.reset(seed=4)
        many_obs, _ = many.reset(seed=4)
        _expect(_same(few_obs, {k: v[:2] for k, v in many_obs.items()}), "env i starts alike among 2 and among 5 envs")
        for action, step in _rollout(many, 30):
            alone = few.step(action[:2])
            same = _same(alone.obs, {k: v[:2] for k, v in step.obs.items()})
            same &= torch.equal(alone.reward, step.reward[:2]) and torch.equal(alone.done, step.done[:2])
            _expect(same, "env i steps alike among 2 and among 5 envs")


CHECKS: tuple[Callable[[Make], None], ...] = (
    check_spaces,
    check_steps,
    check_seeds,
    check_action_errors,
    check_episode_ends,
    check_final_obs,
    check_saved_state,
    check_frames,
    check_snapshots,
    check_restart,
    check_independence,
)


def _rollout(env: VecEnv, steps: int, seed: int = 0) -> Iterator[tuple[torch.Tensor, Step]]:
    """Steps with random actions, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    low, high = (torch.as_tensor(x).clamp(-10.0, 10.0) for x in (env.action_space.low, env.action_space.high))
    for _ in range(steps):
        action = (low + (high - low) * torch.rand(env.num_envs, len(low), generator=generator)).float().to(env.device)
        yield action, env.step(action)


def _check_step(env: VecEnv, step: Step) -> None:
    _check_obs(env, step.obs, env.num_envs, "obs")
    _check_tensor(env, step.reward, (env.num_envs,), torch.float32, "reward")
    flags = {"terminated": step.terminated, "truncated": step.truncated}
    flags |= {} if step.success is None else {"success": step.success}
    if step.looks_done is not None and step.success is not None:
        flags["looks_done"] = step.looks_done
        _expect(not bool((step.success & ~step.looks_done).any()), "what succeeds must also look done")
    for name, value in flags.items():
        _check_tensor(env, value, (env.num_envs,), torch.bool, name)
    _expect(not bool((step.terminated & step.truncated).any()), "an env is terminated or truncated, not both")
    for name, value in (step.rewards | step.metrics).items():
        _check_tensor(env, value, (env.num_envs,), torch.float32, f"'{name}' of rewards and metrics")
    if len(step.ended):
        _expect(step.final_obs is not None, "final_obs is given when an env ended")
        _check_obs(env, step.final_obs or {}, len(step.ended), "final_obs")
    else:
        _expect(step.final_obs is None, "final_obs is None when no env ended")


def _check_obs(env: VecEnv, obs: Obs, rows: int, what: str) -> None:
    spaces = env.observation_space.spaces
    _expect(set(obs) == set(spaces), f"{what} has the keys {sorted(spaces)}, not {sorted(obs)}")
    for name, space in spaces.items():
        dtype = torch.float32 if name == "state" else torch.uint8
        _check_tensor(env, obs[name], (rows, *(space.shape or ())), dtype, f"{what}['{name}']")
        for row in obs[name].cpu().numpy():
            _expect(space.contains(row), f"{what}['{name}'] is in {space}, unlike {row}")


def _check_frames(env: VecEnv, frames: Frames | None, rows: int, what: str) -> None:
    _expect(frames is not None and set(frames) == set(env.cameras), f"{what} has the cameras {env.cameras}")
    for name, value in (frames or {}).items():
        _expect(
            value.dim() == 4 and value.shape[0] == rows and value.shape[3] == 3, f"{what}['{name}'] is (n, H, W, 3)"
        )
        _expect(value.dtype == torch.uint8, f"{what}['{name}'] is uint8, not {value.dtype}")


def _check_tensor(env: VecEnv, value: Any, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
    _expect(isinstance(value, torch.Tensor), f"{what} is a tensor, not {type(value).__name__}")
    _expect(tuple(value.shape) == shape, f"{what} has shape {shape}, not {tuple(value.shape)}")
    _expect(value.dtype == dtype, f"{what} is {dtype}, not {value.dtype}")
    _expect(value.device.type == env.device.type, f"{what} is on {env.device}, not {value.device}")


def _alike(one: Frames, two: Frames) -> bool:
    """Whether pictures are the same but for rounding: a camera on a moving hand is where the joints' numbers put it,
    and at an edge a pixel may then go over to the other side.
    """
    if one.keys() != two.keys() or any(one[name].shape != two[name].shape for name in one):
        return False
    return all(bool((one[name].float() - two[name].float()).abs().mean() <= ROUNDING) for name in one)


def _same(one: Obs, two: Obs) -> bool:
    return set(one) == set(two) and all(torch.equal(one[name], two[name]) for name in one)


def _expect_same(one: list[Any], two: list[Any], what: str) -> None:
    for index, (a, b) in enumerate(zip(one, two, strict=True)):
        pairs = [(a, b)] if isinstance(a, dict) else [(a.obs, b.obs), (a.final_obs or {}, b.final_obs or {})]
        same = all(_same(x, y) for x, y in pairs)
        if isinstance(a, Step):
            flags = ("reward", "terminated", "truncated")
            same &= all(torch.equal(getattr(a, name), getattr(b, name)) for name in flags)
            if a.success is not None and b.success is not None:
                same &= torch.equal(a.success, b.success)
        _expect(same, f"{what}, are equal (step {index} differs)")


def _error_of(kind: type[Exception], call: Callable[[], Any]) -> Exception | None:
    """The error of this kind that a call raises, if it does."""
    try:
        call()
    except kind as error:
        return error
    return None


def _expect(condition: bool, expected: str) -> None:
    if not condition:
        raise EnvError(f"the env breaks the contract; expected: {expected}.")
