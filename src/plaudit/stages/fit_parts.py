"""What a fit is made of, built from a config: data, model, and what the model reads."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit.compute import fit_threads
from plaudit.config.convert import to_dict
from plaudit.config.rewards import TrainingConfig
from plaudit.config.schema import FitConfig
from plaudit.episodes.split import TRAIN, VAL, Split, SplitSettings
from plaudit.errors import ConfigError, DataError, nearest
from plaudit.report.tables import track
from plaudit.stages.common import set_up
from plaudit.stages.fit_data import open_splits, tell_statistics

if TYPE_CHECKING:
    import torch

    from plaudit.episodes.dataset import FrameDataset
    from plaudit.rewards.assess import Aim
    from plaudit.rewards.config import RewardModelConfig
    from plaudit.rewards.feeds import Feed
    from plaudit.rewards.model import RewardModel
    from plaudit.rewards.parallel import Ranks

logger = logging.getLogger("plaudit")


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
        from plaudit.rewards.assess import Aim

        reward = self.config.reward
        return Aim(reward.training.target_false_positive_rate, reward.hold or 1, reward.reward_mode)


def build_parts(config: FitConfig, quiet: bool, ranks: Ranks) -> Parts:
    """Data first, and everything about it that could spoil the fit; then the model."""
    from plaudit.rewards.preflight import check_splits

    cache = cache_folder(config)
    with ranks.first("data"):
        splits = open_splits(config, cache, quiet=quiet)
        if ranks.leads:
            tell_statistics(splits)
            check_splits(splits)
    device = _device(config, ranks)
    from plaudit.episodes.dataset import FrameDataset
    from plaudit.rewards.model import build_reward_model

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
    from plaudit.rewards.hard import share_for
    from plaudit.rewards.precision import bf16_works

    wanted = settings.precision == "bf16" and bf16_works(device.type)
    share = share_for(settings.hard_share, train)
    return replace(settings, precision="bf16" if wanted else "f32", hard_share=share)


def complete_model(block: Mapping[str, Any], train: Split) -> RewardModelConfig:
    """The model's config: what the block leaves open has the default model's values, or is as in the data."""
    from plaudit.rewards.config import DEFAULT_MODEL
    from plaudit.rewards.model import model_config

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
    from plaudit.rewards.graph_cache import user_cache

    given = config.reward.training.cache_dir
    return user_cache() if given is None else Path(given).expanduser()


def build_feeds(parts: Parts, quiet: bool) -> dict[str, Feed]:
    """What the fit reads: features of a frozen encoder, else frames. Tests always see frames, as the model will."""
    from plaudit.rewards.augment import Augment
    from plaudit.rewards.cache import FeatureCache
    from plaudit.rewards.feeds import FeatureFeed, FrameFeed

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
