"""Build the parts of a reward-model fit from a config: data, model and batches."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.config.reward_schema import FitDataConfig, TrainingConfig
from plaudit.config.schema import FitConfig
from plaudit.config.structured import to_dict
from plaudit.data import EpisodeStore
from plaudit.data.episode import SUCCESS, UNKNOWN, Episode, EpisodeSource, Summary
from plaudit.data.formats import load_episodes
from plaudit.data.formats.base import FileSource
from plaudit.data.split import TEST, TRAIN, VAL, Split, SplitSettings, split_episodes
from plaudit.data.split_files import load_splits
from plaudit.errors import ConfigError, DataError, nearest
from plaudit.pipelines.builders import set_up
from plaudit.pipelines.datasets import home_of_splits
from plaudit.reporting.progress import show_table, track
from plaudit.utils.threads import fit_threads

if TYPE_CHECKING:
    import torch

    from plaudit.data.dataset import FrameDataset
    from plaudit.reward_models.config import RewardModelConfig
    from plaudit.reward_models.evaluation.validation import Aim
    from plaudit.reward_models.model import RewardModel
    from plaudit.reward_models.training.batches import Feed
    from plaudit.reward_models.training.distributed import Ranks

logger = logging.getLogger("plaudit")

GROUP = 16
"""Episodes that are copied together."""

MOST_COPIED = 20_000_000_000
"""Bytes of all copies; those that were used longest ago are deleted for new ones."""

IN_USE = 24 * 60 * 60
"""Seconds for which a copy may be read by the fit that last asked for it."""


def open_splits(config: FitConfig, cache: Path, *, quiet: bool = False) -> dict[str, Split]:
    """The splits that a config names, of stores.

    Args:
        config: The config.
        cache: Folder for copies of data sets in other layouts.
        quiet: No progress bar.
    """
    keys = config.reward.training.data
    splits = _divided(config, keys, cache, quiet)
    if keys.test_path is None:
        return splits
    if TEST in splits:
        logger.info("the test split is not used: reward.training.data.test_path names other episodes to test on.")
    return {**splits, TEST: _whole(_as_store(load_episodes(keys.test_path), cache, quiet))}


def _divided(config: FitConfig, keys: FitDataConfig, cache: Path, quiet: bool) -> dict[str, Split]:
    """The splits of the data set: by its manifests, or made anew."""
    if keys.splits is not None:
        return _of_stores(load_splits(keys.splits), cache, quiet)
    source = _source(config, keys)
    _tell_notes(source)
    home = home_of_splits(source)
    if home.is_dir() and not keys.divides:
        logger.info("splits: those in %s", home)
        return _of_stores(load_splits(home), cache, quiet)
    return split_episodes(_as_store(source, cache, quiet), _settings(keys))


def _settings(keys: FitDataConfig) -> SplitSettings:
    names = ("val_fraction", "test_fraction", "num_samples_per_episode", "fail_success_ratio")
    given = {name: getattr(keys, name) for name in names if getattr(keys, name) is not None}
    if keys.test_path is not None:
        given = {"test_fraction": 0.0, **given}
    try:
        return SplitSettings(**given)
    except ValueError as error:
        raise ConfigError(f"reward.training.data.{error}.") from None


def _source(config: FitConfig, keys: FitDataConfig) -> EpisodeSource:
    """The data set that a config names, or the one that `plaudit collect` makes with the same recipe."""
    if keys.positive_dir is not None and keys.negative_dir is not None:
        from plaudit.data.formats.npy import NpyPair

        return NpyPair(Path(keys.positive_dir), Path(keys.negative_dir))
    if keys.path is not None:
        return load_episodes(keys.path, keys.format)
    made = config.reward.data_collection
    if made.positive_dir is not None:
        return _source(config, replace(keys, positive_dir=made.positive_dir, negative_dir=made.negative_dir))
    place = Path(made.save_dir or Path("data") / config.runtime.exp_name)
    if not place.exists():
        raise DataError(
            f"there is nothing at '{place}'. Name a data set (plaudit fit DATA, or reward.training.data.path), or make "
            "one with plaudit collect."
        )
    return load_episodes(place, keys.format)


def _tell_notes(source: EpisodeSource) -> None:
    for note in source.notes:
        logger.info("note on %s: %s.", source.path, note)


def _whole(source: EpisodeSource) -> Split:
    """All frames of a data set that have a label, as a split to test on."""
    _tell_notes(source)
    summaries = source.summaries()
    rows = [np.flatnonzero(summary.labels != UNKNOWN).astype(np.int32) for summary in summaries]
    return Split(TEST, source, np.arange(len(summaries)), summaries, rows, SplitSettings())


def _of_stores(splits: Mapping[str, Split], cache: Path, quiet: bool) -> dict[str, Split]:
    """The same splits, of stores."""
    source = next(iter(splits.values())).source
    store = _as_store(source, cache, quiet)
    places = {summary.id: number for number, summary in enumerate(store.summaries())}
    return {
        name: replace(split, source=store, index=np.array([places[s.id] for s in split.summaries], np.int64))
        for name, split in splits.items()
    }


def _as_store(source: EpisodeSource, cache: Path, quiet: bool) -> EpisodeStore:
    """The data set itself if it is a store, else a copy in the cache: other layouts have no access to single frames."""
    if isinstance(source, EpisodeStore):
        return source
    place = cache / "episodes" / _fingerprint(source)
    done = place / "complete"
    if not done.exists():
        logger.info("'%s' (format %s) is copied to %s, once.", source.path, source.format, place)
        store = EpisodeStore.create(place)
        for group in _groups(track(source, "copying", quiet=quiet)):
            store.add(group)
        if len(store) != len(source):
            raise DataError(f"{source.path}: two of its {len(source)} episodes have the same name; rename one file.")
        done.touch()
        with suppress(OSError):  # Other fits may be copying or deleting, or own a copy. The next time is soon enough.
            _limit_copies(place.parent)
    with suppress(OSError):  # The cache may be another user's, whose it is to keep it small.
        os.utime(done)
    return EpisodeStore(place)


def _limit_copies(folder: Path) -> None:
    """Deletes copies that were used longest ago, but none that a fit may be reading, and nothing that is no copy."""
    copies = [place for place in folder.iterdir() if re.fullmatch("[0-9a-f]{32}", place.name) and place.is_dir()]
    kept = 0
    for used, place in sorted(((_last_used(place), place) for place in copies), reverse=True):
        kept += sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        if kept > MOST_COPIED and time.time() - used > IN_USE:
            logger.info("the copy %s was not used for long, and is deleted to make room.", place)
            (place / "complete").unlink(missing_ok=True)  # First, so that half a copy is never taken for a whole one.
            shutil.rmtree(place, ignore_errors=True)


def _last_used(copy: Path) -> float:
    """When a fit last asked for a copy; for one that is not complete, when it last grew."""
    done = copy / "complete"
    return (done if done.exists() else copy).stat().st_mtime


def _groups(episodes: Iterator[Episode]) -> Iterator[list[Episode]]:
    while group := list(islice(episodes, GROUP)):
        yield group


def _fingerprint(source: EpisodeSource) -> str:
    """Of the files of a data set: their names, sizes and times."""
    places = [file for _, file in source.files] if isinstance(source, FileSource) else [source.path]
    whole = hashlib.blake2b(source.format.encode(), digest_size=16)
    for place in dict.fromkeys(places):
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            stat = file.stat()
            whole.update(f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return whole.hexdigest()


def tell_statistics(splits: Mapping[str, Split]) -> None:
    """A table of what there is: episodes, frames and labels, of each split and its positive and negative episodes."""
    rows = []
    for name, split in splits.items():
        pairs = list(zip(split.summaries, split.rows, strict=True))
        for kind in (True, False):
            some = [(summary, used) for summary, used in pairs if summary.positive == kind]
            rows.append([f"{name}, {'positive' if kind else 'negative'}", *_numbers(some)])
        rows.append([name, *_numbers(pairs)])
    columns = ["episodes", "frames", "label=1", "label=0", "not used"]
    show_table(["split", *columns], rows, right=columns)


def _numbers(episodes: list[tuple[Summary, np.ndarray[tuple[int], np.dtype[np.int32]]]]) -> list[str]:
    labels = np.concatenate([np.zeros(0, np.int8), *(summary.labels[used] for summary, used in episodes)])
    every = sum(len(summary.labels) for summary, _ in episodes)
    success = int((labels == SUCCESS).sum())
    numbers = len(episodes), every, success, len(labels) - success, every - len(labels)
    return [f"{number:,}" for number in numbers]


@dataclass(frozen=True)
class Parts:
    """All that a fit is made of, before anything is written.

    Attributes:
        config: Complete: with the model's every key.
        model: On its device.
        data: The frames of each split, of the model's cameras.
        split: How they were divided.
        cache: Folder for what later fits can use too.
    """

    config: FitConfig
    model: RewardModel
    data: dict[str, FrameDataset]
    split: SplitSettings
    cache: Path

    @property
    def aim(self) -> Aim:
        """What the threshold is chosen for."""
        from plaudit.reward_models.evaluation.validation import Aim

        reward = self.config.reward
        return Aim(reward.training.target_false_positive_rate, reward.hold or 1, reward.reward_mode)


def build_parts(config: FitConfig, quiet: bool, ranks: Ranks) -> Parts:
    """Data first, and everything about it that could spoil the fit; then the model."""
    from plaudit.reward_models.training.split_checks import check_splits

    cache = cache_folder(config)
    with ranks.first("data"):
        splits = open_splits(config, cache, quiet=quiet)
        if ranks.leads:
            tell_statistics(splits)
            check_splits(splits)
    device = _device(config, ranks)
    from plaudit.data.dataset import FrameDataset
    from plaudit.reward_models.model import build_reward_model

    model_config = complete_model(config.reward.model, splits[TRAIN])
    model = build_reward_model(model_config).to(device)
    data = {name: FrameDataset(split, model.cameras) for name, split in splits.items()}
    for name, frames in data.items():
        _check_sizes(frames, model, name)
    training = _settled(config.reward.training, device, data[TRAIN])
    reward = replace(config.reward, model=to_dict(model_config), training=training)
    return Parts(replace(config, reward=reward), model, data, splits[TRAIN].settings, cache)


def _settled(settings: TrainingConfig, device: torch.device, train: FrameDataset) -> TrainingConfig:
    """The settings with what they leave to the machine and to the data: bf16 where it works, and hard frames."""
    from plaudit.reward_models.training.bf16_probe import bf16_works
    from plaudit.reward_models.training.samplers import share_for

    wanted = settings.precision == "bf16" and bf16_works(device.type)
    share = share_for(settings.hard_share, train)
    return replace(settings, precision="bf16" if wanted else "f32", hard_share=share)


def complete_model(block: Mapping[str, Any], train: Split) -> RewardModelConfig:
    """The model's config: what the block leaves open has the default model's values, or is as in the data."""
    from plaudit.reward_models.config import DEFAULT_MODEL
    from plaudit.reward_models.model import model_config

    sizes = train.summaries[0].cameras
    block = {**({} if "model_type" in block else DEFAULT_MODEL), "image_keys": sorted(sizes), **block}
    for camera in block["image_keys"]:
        if camera not in sizes:
            raise DataError(
                f"{train.source.path}: has no camera '{camera}', which reward.model.image_keys names."
                f"{nearest(camera, sizes)}"
            )
    found = {sizes[camera] for camera in block["image_keys"]}
    if len(found) > 1:
        words = ", ".join(f"{camera} {sizes[camera][0]}×{sizes[camera][1]}" for camera in block["image_keys"])
        raise DataError(
            f"{train.source.path}: its cameras have different sizes ({words}), and a model has one for all. Choose "
            "some with reward.model.image_keys, or collect with reward.data_collection.image_size."
        )
    return model_config({"image_size": [3, *found.pop()], **block})


def _check_sizes(frames: FrameDataset, model: RewardModel, name: str) -> None:
    for camera, size in frames.sizes.items():
        if size != model.image_size:
            (height, width), (ours, wide) = size, model.image_size
            raise DataError(
                f"{frames.source.path}: the frames of camera '{camera}' in the split '{name}' are {height}×{width} "
                f"pixels, but reward.model.image_size is [3, {ours}, {wide}]. Leave that key out."
            )


def _device(config: FitConfig, ranks: Ranks) -> torch.device:
    import torch

    device = set_up(config, fit_threads(config.runtime.threads))
    if device.type != "cuda":
        return device
    number, count = ranks.gpu(config.reward.training.gpu_id), torch.cuda.device_count()
    if number >= count:
        raise ConfigError(f"reward.training.gpu_id is {number}, but there are {count} GPUs, counted from 0.")
    return torch.device("cuda", number)


def cache_folder(config: FitConfig) -> Path:
    """Where a fit keeps what later ones can use too."""
    from plaudit.reward_models.inference.onnx_cache import user_cache

    given = config.reward.training.cache_dir
    return user_cache() if given is None else Path(given).expanduser()


def build_feeds(parts: Parts, quiet: bool) -> dict[str, Feed]:
    """What the fit reads: features of a frozen encoder, else frames. Tests always see frames, as the model will."""
    from plaudit.reward_models.training.augment import Augment
    from plaudit.reward_models.training.batches import FeatureFeed, FrameFeed
    from plaudit.reward_models.training.feature_cache import FeatureCache

    def show(items: Collection[int]) -> Iterator[int]:
        return track(items, "encoding", quiet=quiet)

    settings, model = parts.config.reward.training, parts.model
    augment = Augment(settings.augment)
    feeds: dict[str, Feed] = {name: FrameFeed(frames, augment) for name, frames in parts.data.items()}
    if settings.feature_cache and model.config.freeze_encoder:
        if settings.augment.enabled and settings.cache_views == 1:
            logger.info(
                "frames are not varied (reward.training.augment): a frozen encoder sees each once. "
                "reward.training.cache_views=4 keeps four views of each, in four times the time and space."
            )
        cache = FeatureCache(parts.cache / "features")
        for name, views in ((TRAIN, settings.cache_views), (VAL, 1)):
            frames = parts.data[name]
            features = cache.features(model, frames, views=views, augment=augment, track=show)
            feeds[name] = FeatureFeed(frames, features)
    return feeds
