"""Observations in the pickles of other systems.

An observation is a dict of `main_images`, `states`, and further cameras.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plaudit.data.episode import SUCCESS, UNKNOWN, Episode
from plaudit.data.formats.parsing import MAIN_CAMERA, pictures, states, to_frames
from plaudit.errors import ConfigError, nearest


def main_camera(episode: Episode, wanted: str | None) -> str:
    """Return the name of the camera that becomes `main_images`.

    It is `wanted` if given, else the camera of that name, else the first by name.
    """
    if wanted is not None and wanted not in episode.frames:
        raise ConfigError(f"main_camera: episode '{episode.id}' has no '{wanted}'.{nearest(wanted, episode.cameras)}")
    if wanted is not None and wanted != MAIN_CAMERA and MAIN_CAMERA in episode.frames:
        raise ConfigError(f"main_camera: '{wanted}' cannot become '{MAIN_CAMERA}': another camera is called that.")
    return wanted or (MAIN_CAMERA if MAIN_CAMERA in episode.frames else episode.cameras[0])


def observation(episode: Episode, row: int, main: str) -> dict[str, Any]:
    """Return the images and the state of one frame as an observation.

    Cameras other than `main` keep their names.
    """
    pixels = {MAIN_CAMERA if name == main else name: np.array(frames[row]) for name, frames in episode.frames.items()}
    state = episode.state_at(episode.frame_index[row : row + 1])
    return {**pixels, "states": None if state is None else np.array(state[0])}


def flag(value: Any) -> bool | None:
    """Convert a label to a bool, or `None` if it is unknown, as pickles store it."""
    return None if value == UNKNOWN else bool(value == SUCCESS)


def at(values: NDArray[Any] | None, step: int) -> Any:
    """Return the row of a step, or `None` if the values were not recorded."""
    return None if values is None else values[step]


def any_within(values: NDArray[np.bool_] | None, start: int, stop: int) -> bool | None:
    """Return whether a value is true in the steps from `start` up to but without `stop`.

    Returns `None` if the values were not recorded.
    """
    return None if values is None else bool(values[start:stop].any())


def whole_episode(id: str, observations: Sequence[Any], labels: Sequence[int], what: str, **fields: Any) -> Episode:
    """Return an episode with an observation of every instant, the reset first.

    Args:
        id: Id of the episode.
        observations: Observations at the instants 0 to T.
        labels: One label per observation.
        what: Name of the observations in the file, for error messages.
        fields: Further fields of the `Episode`.
    """
    return Episode(
        id=id,
        frames=to_frames(pictures(observations, what)),
        labels=np.array(labels, np.int8),
        frame_index=np.arange(len(observations), dtype=np.int32),
        length=len(observations) - 1,
        state=states(observations, what),
        **fields,
    )


def lost_in_observations(episode: Episode) -> list[str]:
    """Describe the parts of an episode that observations cannot store."""
    renamed = main_camera(episode, None) != MAIN_CAMERA
    return [f"frames: the camera that becomes '{MAIN_CAMERA}' loses its name"] if renamed else []


def lost_between_frames(episode: Episode) -> list[str]:
    """Describe what a layout of consecutive frames loses if instants have no frame."""
    if len(episode) == episode.length + 1:
        return []
    stepwise = ("state", "actions", "rewards", "terminated", "truncated")
    recorded = [name for name in stepwise if getattr(episode, name) is not None]
    return [
        "frame_index and length: which instants the frames are",
        *(f"{name}: of steps without a frame" for name in recorded),
    ]
