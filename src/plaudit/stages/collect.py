"""Collect labelled episodes."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plaudit.config.checks import env_cfg
from plaudit.config.load import save_config
from plaudit.config.rewards import ActorConfig
from plaudit.config.schema import Config
from plaudit.episodes import EpisodeStore
from plaudit.errors import ConfigError, EnvError, PlauditError
from plaudit.stages.collecting import DataSet, collecting, draw_sheet, fresh_seed
from plaudit.stages.common import build_collecting_env, checkpoint_of, load, load_policy, run_folder, set_up

if TYPE_CHECKING:
    import torch

    from plaudit.envs.base import VecEnv
    from plaudit.episodes.actors import Act, Actor, Misled
    from plaudit.episodes.collector import RewardDataCollector

logger = logging.getLogger("plaudit")


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


def _gather(config: Config, env: VecEnv, actors: list[Actor], data: DataSet, quiet: bool) -> dict[str, Any]:
    """Steps the envs until there is enough, Ctrl-C, or no hope; everything is on the disk when this returns."""
    from plaudit.episodes.actors import Crew
    from plaudit.report.collection import CollectionDisplay
    from plaudit.rl.guard import Interrupt

    writer = data.new_writer()
    seed = fresh_seed(config.runtime.seed, writer)
    crew = Crew(actors, env, seed)
    before, size, steps, started = data.writer.counts, data.size, 0, time.perf_counter()
    with Interrupt() as interrupt, ExitStack() as stack:
        display = None if quiet else stack.enter_context(closing(CollectionDisplay()))
        say = logger.info if display is None else display.say
        wrapped = collecting(config, env, data, f"w{writer:03d}", stack, crew.describe, say)
        collector = wrapped.collector
        obs, _ = wrapped.reset(seed)
        while not (collector.complete or interrupt.asked or _hopeless(config, collector)):
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
        "interrupted": interrupt.asked and not collector.complete,
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
    from plaudit.report.collection import Tally

    counts = collector.writer.counts
    numbers = counts.frames, counts.success_frames, counts.unknown_frames
    return Tally(counts.positive, counts.negative, data.wanted, *numbers, size + collector.size)


def _collect_by_training(config: Config, otherwise: Path, quiet: bool) -> dict[str, Any]:
    """Trains, and keeps what happens, until there is enough or training is over."""
    from plaudit.stages.train import train

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


def _actors(config: Config, env: VecEnv) -> list[Actor]:
    """Who acts. What acts the same but for its mistakes is built, and asked, only once."""
    from plaudit.episodes.actors import MISTAKES, Actor

    built: dict[tuple[str, str | None], Act] = {}
    actors = []
    for wanted in config.reward.data_collection.actors:
        key = wanted.kind, wanted.checkpoint
        if key not in built:
            built[key] = _act(wanted, env, config.runtime.seed)
        mistakes = {name: getattr(wanted, name) for name in MISTAKES}
        misled = _misled(env) if wanted.misaim else None
        actors.append(Actor(wanted.kind, built[key], wanted.weight, **mistakes, misled=misled))
    return actors


def _act(wanted: ActorConfig, env: VecEnv, seed: int) -> Act:
    from plaudit.episodes.actors import uniform

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
    from plaudit.rl.obs import flat

    theirs = load(run_folder(path) / "config.yaml")
    policy = build_policy(theirs.policy, env.observation_space, env.action_space, env.device)
    load_policy(policy, checkpoint_of(path))
    policy.eval()

    def act(obs: Any) -> torch.Tensor:
        with torch.no_grad():
            return policy.act(flat(obs), deterministic=True)

    return act
