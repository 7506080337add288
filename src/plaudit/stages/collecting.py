"""From a config to an env that collects: for the collect stage, and for training where `reward.collect_data` is on."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.config.convert import to_dict
from plaudit.config.schema import SEED_LIMIT, Config
from plaudit.episodes import Episode, EpisodeStore, EpisodeWriter
from plaudit.episodes.episode import summarise
from plaudit.errors import DataError, PlauditError
from plaudit.stages.common import versions

if TYPE_CHECKING:
    from plaudit.envs.base import VecEnv
    from plaudit.episodes.wrapper import DataCollectorWrapper

logger = logging.getLogger("plaudit")


@dataclass(frozen=True)
class DataSet:
    """Where collected episodes go.

    Attributes:
        writer: What writes them.
        folders: Where they are: one folder, or one for the successes and one for the failures.
        wanted: How many successes and failures are wanted; `None` for no limit.
    """

    writer: EpisodeWriter
    folders: tuple[Path, ...]
    wanted: tuple[int | None, int | None]

    @classmethod
    def open(cls, config: Config, otherwise: Path) -> DataSet:
        """Opens, or makes, the data set that a config names, or the one at `otherwise` where it names none."""
        from plaudit.episodes.formats import open_writer

        keys = config.reward.data_collection
        wanted = keys.max_positive_trajectories, keys.max_negative_trajectories
        if keys.positive_dir is not None and keys.negative_dir is not None:
            folders = Path(keys.positive_dir), Path(keys.negative_dir)
            writer = open_writer(None, "npy", positive_dir=folders[0], negative_dir=folders[1])
            return cls(writer, folders, wanted)
        folder = Path(keys.save_dir) if keys.save_dir is not None else otherwise
        return cls(open_writer(folder, keys.format), (folder,), wanted)

    @property
    def complete(self) -> bool:
        """Whether there is as much as is wanted."""
        counts = self.writer.counts
        there = (counts.positive, counts.negative)
        return all(limit is not None and number >= limit for limit, number in zip(self.wanted, there, strict=True))

    @property
    def home(self) -> Path:
        """The folder that all of it is in."""
        return self.folders[0] if len(self.folders) == 1 else self.folders[0].parent

    @property
    def sheet(self) -> Path:
        """Where its contact sheet goes: beside the folder where that is another system's, which has no place for it."""
        if isinstance(self.writer, EpisodeStore) or len(self.folders) > 1:
            return self.home / "contact_sheet.png"
        return self.home.with_name(f"{self.home.name}_contact_sheet.png")

    @property
    def place(self) -> str:
        """The folders, in words."""
        return " and ".join(map(str, self.folders))

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        files = (file for folder in self.folders for file in folder.rglob("*"))
        return sum(file.stat().st_size for file in files if file.is_file())

    def new_writer(self) -> int:
        """A number that no other run that has written here has had."""
        if isinstance(self.writer, EpisodeStore):
            return self.writer.next_writer()
        # Other layouts keep no such number, but where nothing was written it may well be the same again.
        return self.writer.counts.episodes


def draw_sheet(data: DataSet, seed: int) -> dict[str, str]:
    """Draws a picture of what there is for people to look at, and says where it is; or why there is none."""
    from plaudit.episodes import EpisodeSource
    from plaudit.episodes.formats import load_episodes
    from plaudit.episodes.gallery import contact_sheet

    try:
        source = data.writer if isinstance(data.writer, EpisodeSource) else load_episodes(data.home)
        contact_sheet(data.sheet, source, seed=seed)
    except PlauditError as error:
        logger.info("no contact sheet: %s", error)
        return {}
    return {"contact_sheet": str(data.sheet)}


def fresh_seed(seed: int, writer: int) -> int:
    """The seed of the envs of one writer: a collection that goes on must not play the same episodes again."""
    return int(np.random.SeedSequence([seed, writer]).generate_state(1, np.uint64)[0] % SEED_LIMIT)


def collecting(
    config: Config,
    env: VecEnv,
    data: DataSet,
    run: str,
    stack: ExitStack,
    describe: Callable[[int], Mapping[str, Any]],
    say: Callable[[str], None] = logger.info,
) -> DataCollectorWrapper:
    """An env around `env` that collects into `data`; what still waits is written when `stack` is closed.

    Args:
        config: The config.
        env: The env.
        data: Where episodes go.
        run: What tells the ids of this run's episodes from those of others.
        stack: Closes the queue.
        describe: From an env's index to what is written with its present episode: who acts.
        say: Is told, once, that there is enough.
    """
    from plaudit.episodes.collector import RewardDataCollector
    from plaudit.episodes.wrapper import DataCollectorWrapper
    from plaudit.episodes.writer import BackgroundWriter

    keys = config.reward.data_collection
    _check_pictures(config, env, data.writer)
    collector = RewardDataCollector(
        env.num_envs,
        stack.enter_context(BackgroundWriter(data.writer)),
        name=f"{re.sub('[^A-Za-z0-9_.]+', '-', config.env.id)}-s{config.runtime.seed}-{run}",
        cameras=keys.image_keys,
        image_size=None if keys.image_size is None else (keys.image_size[1], keys.image_size[2]),
        frames_per_episode=keys.frames_per_episode,
        whole_episodes=keys.whole_episodes,
        max_positive_trajectories=keys.max_positive_trajectories,
        max_negative_trajectories=keys.max_negative_trajectories,
        early_failures=keys.early_failures,
        about={
            "env": config.env.id,
            "env_cfg": to_dict(cfg) if is_dataclass(cfg := getattr(env, "cfg", None)) else config.env.cfg,
            "seed": config.runtime.seed,
            "fps": env.fps,
            "versions": versions(),
        },
        describe=describe,
        say=say,
    )
    return DataCollectorWrapper(env, collector)


def _check_pictures(config: Config, env: VecEnv, writer: EpisodeWriter) -> None:
    """Refuses to add pictures of other cameras or sizes to a store: no model could learn from both."""
    there = _any_episode(writer) if isinstance(writer, EpisodeStore) else None
    if there is None:
        return
    import torch

    keys = config.reward.data_collection

    frames = env.render(torch.tensor([0]))
    sizes = {name: (pixels.shape[1], pixels.shape[2]) for name, pixels in frames.items()}
    ours = {name: keys.image_size[1:] if keys.image_size else sizes.get(name) for name in keys.image_keys or sizes}
    theirs = dict(summarise(there).cameras)
    if ours != theirs:
        raise DataError(
            f"the store holds pictures {_words(theirs)}, but these would be {_words(ours)}. Choose another "
            "folder with reward.data_collection.save_dir, or the same cameras and size."
        )


def _any_episode(store: EpisodeStore) -> Episode | None:
    """One that can be read, if there is one."""
    for index in range(len(store)):
        with suppress(DataError):  # A damaged one is for the doctor; it need not stop a collection.
            return store[index]
    return None


def _words(cameras: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {size[0]}x{size[1]}" for name, size in sorted(cameras.items()) if size)
