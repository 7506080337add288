"""What an env says after a step, read from a `Step` or from the dicts that other systems pass around."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import FAILURE, SUCCESS, UNKNOWN
from plaudit.data.formats.parsing import FloatRange, to_frames
from plaudit.errors import DataError, nearest
from plaudit.utils.images import fit

if TYPE_CHECKING:
    from plaudit.envs.base import Step

logger = logging.getLogger("plaudit")

Array: TypeAlias = NDArray[Any]

Picture: TypeAlias = "dict[str, NDArray[np.uint8]] | Array"
"""Camera name to (H, W, 3), or an env's snapshot (k,), from which those are drawn if they are wanted."""

FLAGS = {"grasp": "grasp", "grasped": "grasp", "is_grasped": "grasp"}
"""Measurements that are kept with each frame as flags, and what they are called there; the first that is given."""

STEPS = {
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "terminated": ("terminated", "terminations"),
    "truncated": ("truncated", "truncations"),
}
"""What is kept of each step, and how dicts spell it."""

LABELS = ("success_frame", "success")
FINAL = ("final_obs", "final_observation")
STATE = ("state", "states")


@dataclass(frozen=True)
class ObservationView:
    """What some envs show at one instant, a row for each.

    Attributes:
        frames: Camera name to uint8 (n, H, W, 3); `None` where there are only snapshots.
        snapshots: (n, k), or `None`.
        state: float32 (n, k), or `None`.
        size: Height and width that pictures are scaled to; `None` leaves them as they are.
    """

    frames: Mapping[str, Array] | None
    snapshots: Array | None = None
    state: Array | None = None
    size: tuple[int, int] | None = None

    def take(self, row: int) -> Picture:
        """A copy of one env's picture: a view of it would keep all the others in memory."""
        if self.frames is not None:
            return {camera: fit(pixels[row], self.size) for camera, pixels in self.frames.items()}
        assert self.snapshots is not None
        return np.array(self.snapshots[row])


@dataclass(frozen=True)
class Output:
    """One instant of every env.

    Attributes:
        now: What the envs show.
        labels: int8 (num_envs,), of the instant that the action led to; `None` at a reset, where there was no action.
        final: The last instant of the envs that ended, a row for each. `now` is then the first of their next episodes;
            without it, `now` is the last.
        ended: bool (num_envs,): whose episode is over.
        success_once: bool (num_envs,): whose episode counts as a success whatever its labels say.
        tells: Whether the env knows success at all.
        steps: Of the action that led here: `actions`, `rewards`, `terminated`, `truncated`.
        flags: Other things known of the instant, int8 (num_envs,).
        metrics: Measurements, float32 (num_envs,).
    """

    now: ObservationView
    labels: NDArray[np.int8] | None
    ended: NDArray[np.bool_]
    success_once: NDArray[np.bool_]
    tells: bool = True
    final: ObservationView | None = None
    steps: Mapping[str, Array] = field(default_factory=dict)
    flags: Mapping[str, NDArray[np.int8]] = field(default_factory=dict)
    metrics: Mapping[str, Array] = field(default_factory=dict)


def array(value: Any) -> Array:
    """A tensor, or anything like an array, as numpy."""
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


class Reader:
    """Reads what the envs say.

    Args:
        num_envs: How many envs step together.
        cameras: Names of the pictures that are kept; `None` keeps all.
        size: Height and width that they are scaled to; `None` leaves them as they are.
    """

    def __init__(self, num_envs: int, cameras: Sequence[str] | None, size: tuple[int, int] | None) -> None:
        self.num_envs, self.cameras, self.size = num_envs, cameras, size
        self._floats = FloatRange()

    def reset(self, obs: Mapping[str, Any], frames: Any, snapshots: Any) -> Output:
        """After the reset of a `VecEnv`."""
        nobody = np.zeros(self.num_envs, bool)
        return Output(self._view(frames, obs, snapshots), None, nobody, nobody)

    def step(self, step: Step, info: Mapping[str, Any]) -> Output:
        """After a step of a `VecEnv`; `info` may hold the `actions`, and `snapshots` where there are no frames: of the
        instants that `obs` shows. Those of last instants are the step's own.
        """
        metrics = {name: array(value) for name, value in step.metrics.items()}
        steps = {"rewards": step.reward, "terminated": step.terminated, "truncated": step.truncated}
        if "actions" in info:
            steps["actions"] = info["actions"]
        labels = self._labels(step.success)
        if step.looks_done is not None:
            # No picture can tell these from successes, so that calling them failures would teach the opposite.
            labels[(labels == FAILURE) & array(step.looks_done)] = UNKNOWN
        last = None if step.snapshot is None else step.snapshot[step.ended.to(step.snapshot.device)]
        return Output(
            now=self._view(step.frames, step.obs, info.get("snapshots")),
            labels=labels,
            ended=array(step.done),
            success_once=np.zeros(self.num_envs, bool),
            tells=step.success is not None,
            final=None if step.final_obs is None else self._view(step.final_frames, step.final_obs, last),
            steps={name: array(value) for name, value in steps.items()},
            flags=self._flags(metrics),
            metrics=metrics,
        )

    def mapping(self, output: Mapping[str, Any], info: Mapping[str, Any], is_last_step: Any) -> Output:
        """After a step of another system, whose output is a dict of batches.

        Pictures may be uint8, or floats. Those are taken as 0 to 1 until one is beyond 1, and from then on as 0 to 255:
        a dark batch alone could not tell. A warning says so where some were taken as 0 to 1 before.

        Args:
            output: `obs` with pictures under the cameras' names, and perhaps `state`; `success_frame`, `rewards`,
                `terminations`, `truncations`, `actions`, `grasp`. Without any of those it is a reset. Where the envs
                reset themselves, `final_obs` has the last observations of those that ended, or a row for every env.
            info: The same names, and `success_once`.
            is_last_step: bool, or (num_envs,): whose episode is over.
        """
        both = {**info, **output}
        steps = {key: array(value) for key, names in STEPS.items() if (value := _first(both, names)) is not None}
        label = _first(both, LABELS)
        ended = self._each(is_last_step).astype(bool)
        obs, final = self._obs(both.get("obs")), _first(both, FINAL)
        last = None if final is None or not ended.any() else self._obs(final)
        if last is not None and len(next(iter(last.values()))) == self.num_envs:
            last = {name: value[ended] for name, value in last.items()}
        once = both.get("success_once", both.get("episode", {}).get("success_once", False))
        return Output(
            now=self._view(obs, obs),
            labels=None if label is None and not steps else self._labels(label),
            ended=ended,
            success_once=self._each(once).astype(bool),
            tells=label is not None,
            final=None if last is None else self._view(last, last),
            steps={key: value if key == "actions" else self._each(value) for key, value in steps.items()},
            flags=self._flags(both),
        )

    def _view(self, frames: Any, obs: Mapping[str, Any], snapshots: Any = None) -> ObservationView:
        state = None if "state" not in obs else array(obs["state"])
        shots = None if snapshots is None else array(snapshots)
        if frames is None:
            if shots is None:
                raise DataError("an env gave no frames; ask it for them first: env.request_frames('always').")
            return ObservationView(None, shots, state, self.size)
        cameras = self.cameras or [name for name in frames if name != "state"]
        for camera in cameras:
            if camera not in frames:
                raise DataError(f"an env's output has no picture '{camera}'.{nearest(camera, frames)}")
        return ObservationView({camera: array(frames[camera]) for camera in cameras}, shots, state, self.size)

    def _obs(self, obs: Any) -> dict[str, Array]:
        """The pictures in a dict of observations, uint8 (n, H, W, 3), and `state`, float32 (n, k)."""
        if not isinstance(obs, Mapping):
            raise DataError("an env's output must have 'obs', a dict with its pictures under the cameras' names.")
        pictures = {name: array(value) for name, value in obs.items() if np.ndim(value) == 4}
        if not pictures:
            raise DataError(f"there is no picture (n, H, W, 3) or (n, 3, H, W) among the observations {sorted(obs)}.")
        known = self._floats.beyond_one
        try:
            found: dict[str, Array] = {**to_frames(pictures, seen=self._floats)}
        except ValueError as error:
            raise DataError(f"an env's output: {error}.") from None
        if self._floats.beyond_one and not known and self._floats.taken_as_unit:
            logger.warning(
                "an env's pictures go beyond 1, so floats are taken as 0 to 255 from now on; those before were taken "
                "as 0 to 1, and are stored too bright if they were not. Give uint8 pictures to leave no doubt."
            )
        state = _first(obs, STATE)
        return found if state is None else {**found, "state": array(state).astype(np.float32)}

    def _labels(self, success: Any) -> NDArray[np.int8]:
        """int8 (num_envs,) of what is true or at least 0.5; `UNKNOWN` where nothing was said, or NaN."""
        if success is None:
            return np.full(self.num_envs, UNKNOWN, np.int8)
        values = self._each(success).astype(np.float32)
        return np.where(np.isnan(values), UNKNOWN, np.where(values >= 0.5, SUCCESS, FAILURE)).astype(np.int8)

    def _flags(self, given: Mapping[str, Any]) -> dict[str, NDArray[np.int8]]:
        found: dict[str, NDArray[np.int8]] = {}
        for name, flag in FLAGS.items():
            if name in given and flag not in found:
                found[flag] = self._labels(given[name])
        return found

    def _each(self, value: Any) -> Array:
        """(num_envs,) from as many values, or from one for all."""
        values = array(value).reshape(-1)
        if len(values) not in (1, self.num_envs):
            raise DataError(f"an env's output has {len(values)} values where there are {self.num_envs} envs.")
        return np.broadcast_to(values, (self.num_envs,))


def _first(mapping: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value under the first of the names that is there."""
    return next((mapping[name] for name in names if mapping.get(name) is not None), None)
