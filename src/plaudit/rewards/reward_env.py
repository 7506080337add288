"""An env wrapper that replaces the reward by that of a reward model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plaudit.envs.base import FrameMode, Frames, Obs, Step, VecEnv
from plaudit.envs.wrapper import EnvWrapper
from plaudit.errors import DataError, EnvError
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.inference.frame_validation import take_in
from plaudit.rewards.callbacks import RewardListener, RewardMeter, ScoredSteps, Shown
from plaudit.rewards.relabel import Evidence, Observed, RelabelInputs, recompute_rewards
from plaudit.rewards.reward_function import Bools, Memory, RewardBatch, RewardManager, asked

logger = logging.getLogger("plaudit")

WAITING = 64 * 2**20
"""Bytes of frames that wait to be scored together, at most: 5,400 pictures of 64 by 64."""

SHOWN = 64 * 2**20
"""Bytes of frames that wait to be shown to listeners, at most."""


@dataclass(frozen=True, eq=False)
class Taken:
    """What the rewards of one step of all envs depend on; `scores` (N, 2) are filled in when they are known."""

    done: torch.Tensor
    reward: torch.Tensor
    success: torch.Tensor | None
    looks_done: torch.Tensor | None
    state: torch.Tensor | None
    scores: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Waiting:
    """Frames of one step that are not scored, or not shown, yet, and the envs, int64 (n,), that they are of. `last`
    where they are the last ones of episodes."""

    taken: Taken
    rows: torch.Tensor
    frames: Frames
    last: bool

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(pixels.nbytes for pixels in self.frames.values())


class Gathering:
    """The steps since rewards were last told.

    Args:
        followed: bool (N,), the envs whose pictures are kept to be shown.

    Attributes:
        steps: In the order in which they were taken.
    """

    def __init__(self, followed: torch.Tensor) -> None:
        self.steps: list[Taken] = []
        self._waiting: list[Waiting] = []
        self._kept: list[Waiting] = []
        self._followed = followed

    @property
    def full(self) -> bool:
        """Whether the frames that wait are as many as may."""
        return sum(part.size for part in self._waiting) > WAITING

    def add(self, part: Waiting) -> None:
        """Frames wait to be scored, and those of envs that somebody follows, as copies, to be shown."""
        self._waiting.append(part)
        followed = self._followed[part.rows].nonzero().squeeze(-1)
        if len(followed):
            # In one piece each: with brackets torch copies pictures number by number.
            frames = {camera: pixels.index_select(0, followed) for camera, pixels in part.frames.items()}
            self._kept.append(replace(part, rows=part.rows[followed], frames=frames))
            while sum(one.size for one in self._kept) > SHOWN:
                self._kept = _thinned(self._kept)

    def score(self, manager: RewardManager) -> None:
        """Scores all frames that wait, together."""
        if not self._waiting:
            return
        cameras = manager.artifact.cameras
        frames = {camera: torch.cat([part.frames[camera] for part in self._waiting]) for camera in cameras}
        try:
            found = manager.score(frames)
        except DataError as error:
            raise DataError(f"{_whose(frames, self._waiting)}the frames cannot be scored: {error}") from error
        start = 0
        for part in self._waiting:
            rows = part.rows.cpu().numpy()
            part.taken.scores[rows] = found[start : start + len(rows)]
            start += len(rows)
        self._waiting = []

    def shown(self, manager: RewardManager) -> list[Shown]:
        """The pictures of the envs that somebody follows, as the model sees them."""
        numbers, artifact = {id(step): number for number, step in enumerate(self.steps)}, manager.artifact
        return [
            Shown(
                numbers[id(part.taken)],
                part.rows.cpu().numpy(),
                take_in(part.frames, artifact.cameras, artifact.image_size),
            )
            for part in self._kept
        ]

    def clear(self) -> None:
        """Begins anew."""
        self.steps, self._waiting, self._kept = [], [], []


def _thinned(parts: Sequence[Waiting]) -> list[Waiting]:
    """Fewer instants of all episodes, rather than none of the later ones. How they ended goes only where that alone
    takes up most of the room.
    """
    last, others = ([part for part in parts if part.last == wanted] for wanted in (True, False))
    dropped = others[::2] if sum(part.size for part in last) <= SHOWN // 2 else [*others[::2], *last[::2]]
    gone = {id(part) for part in dropped}
    return [part for part in parts if id(part) not in gone]


def _whose(frames: Frames, waiting: Sequence[Waiting]) -> str:
    """The env and camera whose frame is broken, where that can be told."""
    rows = torch.cat([part.rows for part in waiting])
    for camera, pixels in frames.items():
        if pixels.is_floating_point() and bool((bad := ~torch.isfinite(pixels).flatten(1).all(1)).any()):
            return f"env {int(rows[bad][0])}, camera '{camera}': "
    return ""


_MODES: tuple[FrameMode, ...] = ("none", "terminal", "always")
KEY = "learned_reward"
"""Of what an env with learned rewards adds to the state of the env in it."""


@dataclass(frozen=True, eq=False)
class ModelRolloutRewards:
    """Rewards of T steps, told afterwards; (T, N) each.

    Attributes:
        reward: float32, what is learned from.
        verdict: bool, whether the model takes it for a success.
    """

    reward: torch.Tensor
    verdict: torch.Tensor


class RewardedEnv(EnvWrapper):
    """Any env, with the rewards of a reward model. The env's own stay beside them in `Step.env_reward`.

    The model is asked of the state that an action led to: the last one of an episode too, never the first. Only what it
    is asked of is rendered, by `render` or as `final_frames`, and scored. Rewards are in each `Step`, or, once
    `defer` has been asked for, in what `settle` gives for all steps since the last time, and 0 in the `Step`.

    Where the settings say `terminate_on_success`, an episode ends where the model says success: `terminated`, with its
    true last observation in `final_obs`. That needs an env that `can_restart`, and is never deferred.

    Args:
        env: The env; see `check_cameras`.
        manager: The model, and what its word is worth.
        listeners: Who is told of every step that has got its reward.
        version: Of the model in this run; `swap` puts another in its place.
    """

    def __init__(
        self, env: VecEnv, manager: RewardManager, listeners: Sequence[RewardListener] = (), *, version: int = 1
    ) -> None:
        if manager.settings.terminate_on_success and not env.can_restart:
            raise EnvError(
                f"reward.terminate_on_success: {type(env).__name__} cannot begin episodes on request, so that the "
                "model's verdict cannot end any. Set it to false, or write VecEnv.restart."
            )
        super().__init__(env)
        self.manager, self.listeners, self.version = manager, list(listeners), version
        self.memory = manager.begin(env.num_envs)
        self.age = np.zeros(env.num_envs, np.int64)
        self.meter = RewardMeter(manager.settings)
        self._deferred = False
        followed = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        for listener in listeners:
            followed[torch.from_numpy(listener.follows).to(env.device)] = True
        self._gathered = Gathering(followed)
        self._evidence: Evidence | None = None
        self._seen: dict[str, torch.Tensor] = {}
        self.request_frames(self.frame_mode)

    @property
    def reward_fingerprint(self) -> int:
        """Stands for the model and for the rule by which it gives rewards, in any run; see `Relabelled`."""
        return int(self.manager.identity[:7], 16) + 1

    def swap(self, manager: RewardManager, version: int) -> None:
        """Another model gives the rewards from now on. Not within a rollout: its steps have one judge.

        What counts for a hold or a hysteresis begins anew, since it was the other model's word.
        """
        assert not self._gathered.steps, "the rewards of the steps so far are not settled"
        self.manager, self.version = manager, version
        self.memory = manager.begin(self.num_envs)

    def defer(self, wanted: bool) -> bool:
        """Says whether rewards are wanted from `settle`, all at once; returns whether they will be."""
        self._deferred = wanted and not self.manager.settings.terminate_on_success
        return self._deferred

    def settle(self) -> ModelRolloutRewards | None:
        """The rewards of the steps since the last time, or `None` where each step had its own."""
        if not self._deferred or not self._gathered.steps:
            return None
        judged = self._judge()
        return ModelRolloutRewards(
            *(torch.from_numpy(part).to(self.device) for part in (judged.reward, judged.verdict))
        )

    def remember(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Says that rewards may have to be given again; returns what `seen` gives of one env from now on."""
        self._evidence = Evidence(self.env, self.manager.artifact.cameras)
        return self._evidence.layout

    def seen(self) -> dict[str, torch.Tensor]:
        """What the rewards of the last step depend on, once `remember` was called; (N, ...) each."""
        return self._seen

    def again(self, seen: RelabelInputs, ended: torch.Tensor, obs: Observed) -> tuple[torch.Tensor, torch.Tensor]:
        """The rewards of T steps of one env as they would be given today; see `evidence.judge_again`."""
        assert self._evidence is not None, "remember() was not called"
        return recompute_rewards(self._evidence, self.manager, seen, ended, obs)

    def report(self) -> dict[str, float]:
        """Numbers for the log, of the steps since the last time, and of whoever listens."""
        return self.meter.flush() | self.watched()

    def watched(self) -> dict[str, float]:
        """Numbers for the log of whoever listens alone."""
        return {name: value for listener in self.listeners for name, value in listener.report().items()}

    def reset(self, seed: int | None = None) -> tuple[Obs, dict[str, Any]]:
        self._gathered.clear()
        for listener in self.listeners:
            listener.on_reset()
        self.memory = self.manager.begin(self.num_envs)
        self.age[:] = 0
        obs, info = self.env.reset(seed)
        return obs, {**info, "frames": info.get("frames") if self.frame_mode == "always" else None}

    def step(self, action: torch.Tensor) -> Step:
        step = self.env.step(action)
        asked_of, drawn = self._take(step)
        if self._evidence is not None:
            self._seen = self._evidence.take(step, self.age, asked_of, drawn)
        final_frames = step.final_frames
        step = replace(step, env_reward=step.reward, final_frames=None if self.frame_mode == "none" else final_frames)
        self.meter.watch_termination(step)
        if self._deferred:
            return replace(step, reward=torch.zeros_like(step.reward))
        judged = self._judge()
        reward, verdict = (torch.from_numpy(part[0]).to(self.device) for part in (judged.reward, judged.verdict))
        step = replace(step, reward=reward, verdict=verdict)
        if self.manager.settings.terminate_on_success and bool(verdict.any()):
            step = self._end(step, verdict, asked_of, drawn, final_frames)
        return step

    def _take(self, step: Step) -> tuple[torch.Tensor, Frames]:
        """Keeps what a step's rewards depend on; returns the envs that go on and are asked of, and their frames."""
        state = self._state(step) if self.manager.guards else None
        scores = np.full((self.num_envs, 2), np.nan, np.float32)
        gathered, taken = self._gathered, Taken(step.done, step.reward, step.success, step.looks_done, state, scores)
        gathered.steps.append(taken)
        if step.final_frames is not None:
            gathered.add(Waiting(taken, step.ended, self._ours(step.final_frames), last=True))
        drawn: Frames = {}
        running = self._asked(step.done)
        if len(running):
            with self.meter.timed("render_frames"):
                drawn = self._now(step, running)
            gathered.add(Waiting(taken, running, self._ours(drawn), last=False))
        if gathered.full:
            with self.meter.timed("compute_model_rewards"):
                gathered.score(self.manager)
        return running, drawn

    def _asked(self, done: torch.Tensor) -> torch.Tensor:
        """The envs whose episodes go on and of which the model is asked now, int64 (n,); counts their steps."""
        ended = done.cpu().numpy()
        self.age += 1
        chosen = asked(ended, self.age, self.manager.settings) & ~ended
        self.age[ended] = 0
        return torch.from_numpy(np.flatnonzero(chosen)).to(self.device)

    def _now(self, step: Step, ids: torch.Tensor) -> Frames:
        """Pictures of the present state of some envs; those that somebody sees anyway are not drawn again."""
        for seen in (step.frames or {}, step.obs):
            if all(camera in seen for camera in self.cameras):
                return {camera: seen[camera].index_select(0, ids) for camera in self.cameras}  # As in `Gathering.add`.
        return self.env.render(ids)

    def _ours(self, frames: Frames) -> Frames:
        return {camera: frames[camera] for camera in self.manager.artifact.cameras}

    def _judge(self) -> RewardBatch:
        """The rewards of all steps that were taken since the last time."""
        steps = self._gathered.steps
        with self.meter.timed("compute_model_rewards"):
            self._gathered.score(self.manager)
            scores = np.stack([step.scores for step in steps])
            done, env_reward = _stack([step.done for step in steps]), _stack([step.reward for step in steps])
            states = [step.state for step in steps if step.state is not None]
            judged, self.memory = self.manager.rewards_from_scores(
                scores, done, env_reward, _stack(states) if states else None, self.memory
            )
        if self.manager.settings.terminate_on_success:
            done = done | judged.verdict
        success, looks_done = (_told([getattr(step, name) for step in steps]) for name in ("success", "looks_done"))
        seen = ScoredSteps(judged, scores, done, env_reward, success, looks_done, self._gathered.shown(self.manager))
        for listener in (self.meter, *self.listeners):
            listener.on_rewards(seen)
        self._gathered.clear()
        return judged

    def _state(self, step: Step) -> torch.Tensor:
        """`state` of the states that a step's actions led to, (N, d)."""
        state = step.obs["state"].clone()
        if step.final_obs is not None:
            state[step.ended] = step.final_obs["state"]
        return state

    def _end(
        self,
        step: Step,
        verdict: torch.Tensor,
        asked_of: torch.Tensor,
        drawn: Frames,
        final_frames: Frames | None,
    ) -> Step:
        """The step with the episodes ended that the model takes for successes, and new ones begun in their envs.

        Args:
            step: What the env said.
            verdict: bool (N,).
            asked_of: Envs that the model was asked of and whose episodes go on as the env sees it, int64 (n,).
            drawn: Frames of those.
            final_frames: Of the envs that ended.
        """
        cut = verdict & ~step.done
        terminated, truncated = step.terminated | verdict, step.truncated & ~verdict
        step = replace(step, terminated=terminated, truncated=truncated)
        rows = cut.nonzero().squeeze(-1)
        if not len(rows):
            return step
        early = cut[step.ended]
        if self.frame_mode != "none":
            last = {name: value[cut[asked_of]] for name, value in drawn.items()}
            step.final_frames = _merged(final_frames, last, early)
        step.final_obs = _merged(step.final_obs, {name: value[rows] for name, value in step.obs.items()}, early)
        new = self.env.restart(rows)
        step.obs = {name: value.index_copy(0, rows, new[name]) for name, value in step.obs.items()}
        if step.frames is not None:
            drawn = self.env.render(rows)
            step.frames = {name: value.index_copy(0, rows, drawn[name]) for name, value in step.frames.items()}
        self.memory = Memory(*(_cleared(part, rows.cpu().numpy()) for part in self.memory))
        self.age[rows.cpu().numpy()] = 0
        return step

    def request_frames(self, mode: FrameMode) -> None:
        self.frame_mode = mode
        self.env.request_frames(max(mode, "terminal", key=_MODES.index))

    def state_dict(self) -> dict[str, Any]:
        about = {"artifact": self.manager.artifact.id, "version": self.version}
        ours = {**self.memory._asdict(), "age": self.age, **about}
        return {**self.env.state_dict(), KEY: ours}

    def load_state_dict(self, state: dict[str, Any]) -> Obs:
        self._gathered.clear()
        self.memory = self.manager.begin(self.num_envs)
        kept = state.get(KEY)
        if kept is not None:
            self._remember(kept)
        return self.env.load_state_dict({key: value for key, value in state.items() if key != KEY})

    def _remember(self, kept: dict[str, Any]) -> None:
        """Takes up what `state_dict` kept, if it is of the same rule."""
        ours, theirs = self.manager.artifact.id, kept["artifact"]
        if ours != theirs:
            logger.warning("the reward model is another one than before: %s here, %s in the checkpoint.", ours, theirs)
        self.age = kept["age"].copy()
        if kept["over"].shape == self.memory.over.shape:
            self.memory = Memory(kept["over"], kept["on"])


def check_cameras(env: VecEnv, artifact: RewardArtifact) -> None:
    """Raises a `CheckpointError` that names the camera or the size that the model needs and the env does not have. An
    env whose pictures are not observations is reset for that.
    """
    artifact.check_against({}, cameras=_camera_sizes(env))


def _camera_sizes(env: VecEnv) -> dict[str, tuple[int, int]]:
    spaces = env.observation_space.spaces
    if not env.cameras:
        return {}
    if all(camera in spaces for camera in env.cameras):
        shapes = {camera: spaces[camera].shape or () for camera in env.cameras}
    else:
        env.reset(0)
        shapes = {camera: tuple(pixels.shape[1:]) for camera, pixels in env.render(torch.tensor([0])).items()}
    return {camera: (shape[0], shape[1]) for camera, shape in shapes.items()}


def _stack(parts: Sequence[torch.Tensor]) -> NDArray[Any]:
    return np.stack([np.asarray(part.cpu()) for part in parts])


def _told(parts: Sequence[torch.Tensor | None]) -> Bools | None:
    """What the env said at each of T steps, (T, N); `None` where it did not say it at all of them."""
    said = [part for part in parts if part is not None]
    return _stack(said) if len(said) == len(parts) else None


def _merged(one: dict[str, torch.Tensor] | None, other: dict[str, torch.Tensor], chosen: torch.Tensor) -> Obs:
    """Rows of `other` where `chosen`, bool (k,), says so, and of `one` elsewhere, each in its own order."""
    if one is None:
        return other
    result = {}
    for name, rows in other.items():
        result[name] = rows.new_zeros(len(chosen), *rows.shape[1:])
        result[name][chosen], result[name][~chosen] = rows, one[name]
    return result


def _cleared(part: Bools, rows: NDArray[np.int64]) -> Bools:
    kept = part.copy()
    kept[rows] = False
    return kept
