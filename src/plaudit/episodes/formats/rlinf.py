"""Episode pickles as RLinf writes them today; read only.

    rank_{r}_env_{e}_episode_{id}_step_{s}_{success,fail}.pkl

A dict as that of `realworld`, but with an entry for the reset: `observations` has N + 1 entries, `actions` N. The other
lists have N + 1 entries too, the first for the reset; some versions wrote N, without it. Frame and label are the same
instant. The label stands in `infos[t]` under the first of the names in `LABELS` that is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plaudit.episodes.episode import SUCCESS, UNKNOWN, Episode, EpisodeSource
from plaudit.episodes.formats import values
from plaudit.episodes.formats.base import EpisodeFormat, FileSource
from plaudit.episodes.formats.numbered import files_in, with_ids
from plaudit.episodes.formats.observations import whole_episode
from plaudit.episodes.formats.realworld import KEYS, about, has_reset, steps
from plaudit.episodes.formats.unpickle import load_pickle

LABELS = ("success", "is_obj_placed", "success_frame", "episode.success_once")
"""Where a frame's label may stand, the first that is there; the last means "now or earlier"."""


class RlinfSource(FileSource):
    """The episodes of a folder, or one file."""

    format = "rlinf"

    def parse(self, file: Path, id: str) -> Episode:
        content = load_pickle(file)
        parts = {key: values.items(values.entry(content, key), key) for key in KEYS}
        count = len(parts["actions"])
        if len(parts["observations"]) == count:
            raise ValueError(
                "it has no observation more than actions, as seed 002's processed files; read it as 'realworld'"
            )
        for key in KEYS:
            expected = {"observations": (count + 1,), "actions": (count,)}.get(key, (count, count + 1))
            if len(parts[key]) not in expected:
                raise ValueError(f"it has {count} actions, but {len(parts[key])} {key}")
        infos = [{}] * (count + 1 - len(parts["infos"])) + parts["infos"]
        ends = {key: parts[key][-count:] if count else [] for key in KEYS}
        return whole_episode(
            id,
            [_views(seen) for seen in parts["observations"]],
            [self._label(info, f"infos[{t}]") for t, info in enumerate(infos)],
            "observations",
            success=values.label(values.entry(content, "success"), "success") == SUCCESS,
            **steps(ends),
            meta=about(content),
        )

    def _label(self, info: Any, what: str) -> int:
        for name in LABELS:
            found = _find(info, name)
            if found is not None:
                if name == LABELS[-1]:
                    self.notes.add(f"labels come from '{name}', which stays true after a success that was lost again")
                return values.label(found, f"{what} '{name}'")
        return UNKNOWN


def _find(info: Any, name: str) -> Any:
    """A value in a dict; dots go into the dicts within."""
    if not isinstance(info, Mapping):
        raise ValueError(f"an info should be a dict, not {values.kind(info)}")
    outer, _, inner = name.partition(".")
    if not inner or name in info:
        return info.get(name)
    within = info.get(outer)
    return within.get(inner) if isinstance(within, Mapping) else None


def _views(seen: Any) -> Any:
    """An observation in which several views under one name (k, H, W, C) have a name each."""
    if not isinstance(seen, Mapping):
        return seen
    split: dict[str, Any] = {}
    for key, value in seen.items():
        if getattr(value, "ndim", 0) == 4 and value.shape[0] > 1:
            split |= {f"{key}_{i}": view for i, view in enumerate(value)}
        else:
            split[key] = value
    return split


class RlinfFormat(EpisodeFormat):
    """Observations with the reset, actions, and what became of them."""

    name = "rlinf"
    about = "rank_0_env_0_episode_0_step_9_success.pkl, as RLinf writes them today (read only)"

    @classmethod
    def matches(cls, path: Path) -> bool:
        return has_reset(path) is True

    @classmethod
    def read(cls, path: Path) -> EpisodeSource:
        return RlinfSource(path, with_ids([path] if path.is_file() else files_in(path, ".pkl"), prefixed=False))
