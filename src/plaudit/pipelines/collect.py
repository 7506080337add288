"""Collect labelled episodes."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.config.loader import save_config
from plaudit.config.reward_schema import ActorConfig
from plaudit.config.schema import SEED_LIMIT, Config
from plaudit.config.structured import to_dict
from plaudit.config.validation import env_cfg
from plaudit.data import Episode, EpisodeStore, EpisodeWriter
from plaudit.data.episode import summarise
from plaudit.errors import ConfigError, DataError, EnvError, PlauditError
from plaudit.pipelines.builders import (
    build_collecting_env,
    checkpoint_of,
    load,
    load_policy,
    run_folder,
    set_up,
    versions,
)

if TYPE_CHECKING:
    import torch

    from plaudit.data.behaviors import Act, Behavior, Misled
    from plaudit.data.recorder import RewardDataCollector
    from plaudit.data.recording_env import DataCollectorWrapper
    from plaudit.envs.base import VecEnv

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
        from plaudit.data.formats import open_writer

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
    from plaudit.data import EpisodeSource
    from plaudit.data.contact_sheet import contact_sheet
    from plaudit.data.formats import load_episodes

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
    from plaudit.data.background_writer import BackgroundWriter
    from plaudit.data.recorder import RewardDataCollector
    from plaudit.data.recording_env import DataCollectorWrapper

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


def collect(config: Config, *, quiet: bool = False) -> dict[str, Any]:
    """Collects until there are as many episodes as wanted, going on from where an earlier run stopped."""
    otherwise = Path("data") / config.runtime.exp_name
    if config.reward.data_collection.actors[0].kind == "training":
        return _collect_by_training(config, otherwise, quiet)
    device = set_up(config)
    with ExitStack() as stack:
        env = _build_env(config, device)
        stack.callback(env.close)
        actors = _actors(config, env)
        data = DataSet.open(config, otherwise)
        if data.complete:
            return _already(data)
        if isinstance(data.writer, EpisodeStore):
            keys = replace(config.reward.data_collection, save_dir=str(data.home))
            whole = replace(config, reward=replace(config.reward, data_collection=keys))
            save_config(whole, data.home / "config.yaml", "collect")
        try:
            result = _gather(config, env, actors, data, quiet)
        except EnvError as error:
            kept = "What was collected before is kept; once the cause is gone, the same command goes on."
            raise type(error)(f"{error}\n{kept}") from error
        hint = env.success_hint
    return _finish(config, data, result, hint)


def _gather(config: Config, env: VecEnv, actors: list[Behavior], data: DataSet, quiet: bool) -> dict[str, Any]:
    """Steps the envs until there is enough, Ctrl-C, or no hope; everything is on the disk when this returns."""
    from plaudit.data.behaviors import BehaviorMixture
    from plaudit.reporting.progress import CollectionDisplay
    from plaudit.utils.interrupts import GracefulInterrupt

    writer = data.new_writer()
    seed = fresh_seed(config.runtime.seed, writer)
    crew = BehaviorMixture(actors, env, seed)
    before, size, steps, started = data.writer.counts, data.size, 0, time.perf_counter()
    with GracefulInterrupt() as interrupt, ExitStack() as stack:
        display = None if quiet else stack.enter_context(closing(CollectionDisplay()))
        say = logger.info if display is None else display.say
        wrapped = collecting(config, env, data, f"w{writer:03d}", stack, crew.describe, say)
        collector = wrapped.collector
        obs, _ = wrapped.reset(seed)
        while not (collector.complete or interrupt.requested or _hopeless(config, collector)):
            step = wrapped.step(crew.act(obs))
            crew.begin(step.ended.cpu().numpy())
            obs, steps = step.obs, steps + env.num_envs
            if display is not None:
                display.update(_tally(data, collector, size))
    seconds, after = time.perf_counter() - started, data.writer.counts
    return {
        "new_episodes": after.episodes - before.episodes,
        "seconds": seconds,
        "steps_per_second": steps / seconds,
        "frames_per_second": (after.frames - before.frames) / seconds,
        "complete": collector.complete,
        "interrupted": interrupt.requested and not collector.complete,
    }


def _finish(config: Config, data: DataSet, result: dict[str, Any], hint: str = "") -> dict[str, Any]:
    """A picture of what there is, and the result for people and scripts; `hint` is for an env that tells no success."""
    result = {"data": data.place, **asdict(data.writer.counts), "megabytes": data.size / 1e6, **result}
    result |= draw_sheet(data, config.runtime.seed)
    logger.info(
        "%s: %d positive and %d negative episodes, %s frames, %.0f MB (%.0f s, %.0f frames/s).",
        data.place,
        result["positive"],
        result["negative"],
        f"{result['frames']:,}",
        result["megabytes"],
        result["seconds"],
        result["frames_per_second"],
    )
    if "contact_sheet" in result:
        logger.info("contact sheet: %s", data.sheet)
    if result["interrupted"]:
        logger.info("stopped, and all that was collected is kept; the same command goes on.")
    elif not result["complete"]:
        raise PlauditError(_unlabelled(config, data, hint) or _no_hope(config, data))
    return result


def _already(data: DataSet) -> dict[str, Any]:
    counts = data.writer.counts
    logger.info(
        "%s is complete: %d positive and %d negative episodes. For more, raise "
        "reward.data_collection.max_positive_trajectories and max_negative_trajectories.",
        data.place,
        counts.positive,
        counts.negative,
    )
    return {"data": data.place, **asdict(counts), "new_episodes": 0, "complete": True, "interrupted": False}


def _hopeless(config: Config, collector: RewardDataCollector) -> bool:
    return collector.idle >= _most_idle(config)


def _most_idle(config: Config) -> int:
    return config.reward.data_collection.max_idle_episodes


def _unlabelled(config: Config, data: DataSet, hint: str) -> str | None:
    """What is wrong where successes are missing because nobody tells them."""
    counts, (positive, _) = data.writer.counts, data.wanted
    if not counts.frames or counts.unknown_frames < counts.frames or positive == 0:
        return None
    return (
        f"{config.env.id} does not tell success, so none of the {counts.episodes} episodes in {data.place} has a "
        f"label, and none can be a success. {hint} Collect into another place then, or remove this one."
    )


def _no_hope(config: Config, data: DataSet) -> str:
    counts, (positive, negative) = data.writer.counts, data.wanted
    missing = "success" if positive is None or counts.positive < positive else "failure"
    trains = config.reward.data_collection.actors[0].kind == "training"
    over = "training is over" if trains else f"of the last {_most_idle(config):,} episodes none was a {missing}"
    waits = config.reward.data_collection.early_failures < 1 and missing == "success"
    waits = waits and negative is not None and counts.negative < negative
    held = " (more failures are taken as successes come, see early_failures)" if waits else ""
    return (
        f"{over}, and no other episodes are wanted{held}: there are {counts.positive} of {positive} positive and "
        f"{counts.negative} of {negative} negative ones. Let somebody act who does better or worse "
        "(reward.data_collection.actors), ask for fewer, or raise reward.data_collection.max_idle_episodes."
    )


def _tally(data: DataSet, collector: RewardDataCollector, size: int) -> Any:
    from plaudit.reporting.progress import CollectionCounts

    counts = collector.writer.counts
    numbers = counts.frames, counts.success_frames, counts.unknown_frames
    return CollectionCounts(counts.positive, counts.negative, data.wanted, *numbers, size + collector.size)


def _collect_by_training(config: Config, otherwise: Path, quiet: bool) -> dict[str, Any]:
    """Trains, and keeps what happens, until there is enough or training is over."""
    from plaudit.pipelines.train import train

    keys = config.reward.data_collection
    if keys.save_dir is None and keys.positive_dir is None:
        keys = replace(keys, save_dir=str(otherwise))
    config = replace(config, reward=replace(config.reward, collect_data=True, data_collection=keys))
    data = DataSet.open(config, otherwise)
    if data.complete:
        return _already(data)
    if data.writer.counts.episodes:
        # The same seed would learn the same and show the same.
        seed = fresh_seed(config.runtime.seed, data.writer.counts.episodes)
        config = replace(config, runtime=replace(config.runtime, seed=seed))
    before = data.writer.counts
    trained = train(config, quiet=quiet, until_collected=True)
    data = DataSet.open(config, otherwise)
    after, seconds = data.writer.counts, trained["seconds"]
    result = {
        "run": trained["run"],
        "new_episodes": after.episodes - before.episodes,
        "seconds": seconds,
        "frames_per_second": (after.frames - before.frames) / seconds,
        "complete": data.complete,
        "interrupted": trained["interrupted"],
    }
    return _finish(config, data, result)


def _build_env(config: Config, device: torch.device) -> VecEnv:
    keys = env_cfg(config, "train")
    if config.reward.data_collection.num_envs is not None and "num_envs" in keys:
        keys["num_envs"] = config.reward.data_collection.num_envs
    return build_collecting_env(config, keys, device)


def _actors(config: Config, env: VecEnv) -> list[Behavior]:
    """Who acts. What acts the same but for its mistakes is built, and asked, only once."""
    from plaudit.data.behaviors import MISTAKES, Behavior

    built: dict[tuple[str, str | None], Act] = {}
    actors = []
    for wanted in config.reward.data_collection.actors:
        key = wanted.kind, wanted.checkpoint
        if key not in built:
            built[key] = _act(wanted, env, config.runtime.seed)
        mistakes = {name: getattr(wanted, name) for name in MISTAKES}
        misled = _misled(env) if wanted.misaim else None
        actors.append(Behavior(wanted.kind, built[key], wanted.weight, **mistakes, misled=misled))
    return actors


def _act(wanted: ActorConfig, env: VecEnv, seed: int) -> Act:
    from plaudit.data.behaviors import uniform

    if wanted.kind == "random":
        return uniform(env, seed)
    if wanted.kind == "expert":
        return _expert(env)
    assert wanted.checkpoint is not None
    return _policy(Path(wanted.checkpoint), env)


def _expert(env: VecEnv) -> Act:
    """The task's own expert, which looks at the true state and not at observations."""
    expert = getattr(env, "expert_action", None)
    if expert is None:
        raise ConfigError(
            f"reward.data_collection.actors: {type(env).__name__} has no scripted expert. Let a trained policy act: "
            "[{kind: policy, checkpoint: <a run>}]."
        )
    env.reset(0)
    shape = tuple(expert().shape)
    if shape != (env.num_envs, *env.action_space.shape):
        raise ConfigError(
            "reward.data_collection.actors: the scripted expert moves the gripper, so it needs env.cfg.control=ee."
        )
    return lambda obs: expert()


def _misled(env: VecEnv) -> Misled:
    """The task's own expert, that takes the goal to be elsewhere."""
    expert: Misled | None = getattr(env, "misled_expert_action", None)
    if expert is None:
        raise ConfigError(f"reward.data_collection.actors: misaim: the expert of {type(env).__name__} has no such.")
    return expert


def _policy(path: Path, env: VecEnv) -> Act:
    """A trained policy, which acts by its mean."""
    import torch

    from plaudit.rl import build_policy
    from plaudit.rl.observations import flat

    theirs = load(run_folder(path) / "config.yaml")
    policy = build_policy(theirs.policy, env.observation_space, env.action_space, env.device)
    load_policy(policy, checkpoint_of(path))
    policy.eval()

    def act(obs: Any) -> torch.Tensor:
        with torch.no_grad():
            return policy.act(flat(obs), deterministic=True)

    return act
