"""Train policies, on a reward model that is fitted first if the config asks for it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from plaudit.config.loader import save_config
from plaudit.config.schema import Config, FitConfig
from plaudit.config.structured import to_dict
from plaudit.errors import CheckpointError, MissingDependencyError, PlauditError
from plaudit.pipelines.builders import (
    Rewarding,
    StageDir,
    bare,
    build_envs_for,
    build_learner,
    build_manager,
    check_env,
    checkpoint_of,
    describe,
    load,
    load_policy,
    load_reward,
    run_folder,
    set_up,
    versions,
)
from plaudit.pipelines.collect import DataSet, collecting, draw_sheet
from plaudit.pipelines.fit import fit
from plaudit.rl.algorithms.sac import digests
from plaudit.utils.atomic_io import whole_file
from plaudit.utils.threads import apart_threads, claim_threads, learning_threads, simulation_threads

if TYPE_CHECKING:
    import torch

    from plaudit.data.recorder import RewardDataCollector
    from plaudit.data.recording_env import DataCollectorWrapper
    from plaudit.envs.base import VecEnv
    from plaudit.pipelines.audit import Auditing
    from plaudit.rl import Policy, Trainer
    from plaudit.rl.async_.actor import Actor
    from plaudit.rl.loggers import Callback
    from plaudit.rl.run_dir import RunFolder

logger = logging.getLogger("plaudit")


def beside_learning(config: Config, learns_on: torch.device, *, looks: bool) -> tuple[Config, torch.device, int]:
    """The config for a process that only acts, where it does, and the other one's threads: it leaves that one a core,
    or half of them where a policy that `looks` at pictures learns without a GPU, and the GPU.
    """
    claim_threads(1)
    judged, frozen = config.reward.use_reward_model, bool(config.policy.cfg.get("freeze_encoder"))
    # Then pictures are turned into numbers while acting.
    kept = frozen and digests(config.algorithm.cfg.get("image_shift", 0), judged=judged)
    acting, learning = apart_threads(config.runtime.threads, looks=looks and learns_on.type == "cpu" and not kept)
    return replace(config, runtime=replace(config.runtime, threads=acting)), torch.device("cpu"), learning


def learn_elsewhere(
    config: Config, sac: Any, env: VecEnv, device: torch.device, threads: int, stack: ExitStack
) -> Actor:
    """An algorithm that only acts; what `sac` is to learn a process learns on `device`, with so many threads, which
    ends with `stack`.
    """
    from plaudit.rl.async_.actor import Actor

    runtime = config.runtime
    actor = Actor(sac, env, config.policy, device=device, threads=threads, seed=runtime.seed, imports=runtime.imports)
    stack.callback(actor.close)
    return actor


def fit_and_train(fitted: FitConfig | None, trained: Config | None, *, quiet: bool = False) -> dict[str, Any]:
    """Fits and trains what `load_training` gave.

    Args:
        fitted: What to fit; `None` to train only.
        trained: What to train, on the model that was fitted; `None` to fit only.
        quiet: No progress display.

    Returns:
        What the last of them gives, with that of a fit before it under `fit`.
    """
    if fitted is None:
        assert trained is not None
        return train(trained, quiet=quiet)
    if trained is not None:
        check_env(trained.env.id)  # A fit is long, and what comes after it should not end in a typo.
    result = fit(fitted, quiet=quiet)
    # One of several processes has no result; a fit that was stopped has no model yet.
    if trained is None or "artifact" not in result:
        if trained is not None and result.get("interrupted"):
            logger.info(
                "the policy is not trained yet; once the fit is done, train it with reward.training.enabled=false "
                "reward.checkpoint_path=%s",
                result["run"],
            )
        return result
    reward = trained.reward
    done = replace(reward.training, enabled=False)  # Or a resumed run would say that it fits, too.
    reward = replace(reward, training=done, checkpoint_path=result["artifact"])
    return {**train(replace(trained, reward=reward), quiet=quiet), "fit": result}


RESULT = "result.json"
"""What a run ended with, in its folder."""

TEST_SEED = 2_000_003
"""Added to the run's seed for the figures we report: other episodes than those that pick the best checkpoint."""


def train(
    config: Config, *, quiet: bool = False, until_collected: bool = False, place: StageDir | None = None
) -> dict[str, Any]:
    """Trains from scratch in a new run folder, or in a `place` where something may have been begun; with
    `until_collected`, only until all data that is wanted is there.
    """
    from plaudit.rl.run_dir import RunFolder

    if place is None:
        return _train(config, None, None, quiet, until_collected)
    run = RunFolder.open(place.folder)
    return _train(config, run, run.latest if run.latest.exists() else None, quiet, command=place.command)


def resume(path: Path, overrides: Sequence[str] = (), *, quiet: bool = False) -> dict[str, Any]:
    """Goes on with a run where its latest checkpoint left it, or where the checkpoint given did."""
    from plaudit.rl.run_dir import RunFolder

    run = RunFolder.open(run_folder(path))
    checkpoint = path if path.is_file() else run.latest
    if not checkpoint.exists():
        raise CheckpointError(f"'{run.path}' has no checkpoints/latest.pt yet; start it again with plaudit train.")
    return _train(load(run.path / "config.yaml", overrides), run, checkpoint, quiet)


def _train(
    config: Config,
    run: RunFolder | None,
    checkpoint: Path | None,
    quiet: bool,
    until_collected: bool = False,
    command: str | None = None,
) -> dict[str, Any]:
    """Builds everything, and only then writes; trains, films, and says where things are."""
    from plaudit.pipelines.demonstrations import pick, show
    from plaudit.rl import Trainer
    from plaudit.rl.run_dir import RunFolder

    if config.runtime.use_wandb and importlib.util.find_spec("wandb") is None:
        raise MissingDependencyError("runtime.use_wandb needs Weights & Biases: pip install 'plaudit[wandb]'.")
    whole = config
    device = learns_on = _set_up(config)
    if config.runtime.mode == "async":
        config, device, threads = beside_learning(config, learns_on, looks=_looks(config))
    artifact = load_reward(config, checkpoint)
    with ExitStack() as stack:
        env = build_envs_for(config, "train", device, stack, artifact)
        # Whoever only collects evaluates nothing, but for an audit.
        evaluates = not until_collected or artifact is not None
        eval_env = build_envs_for(config, "eval", device, stack, artifact) if evaluates else None
        policy, algorithm = build_learner(config, env, device)
        if config.runtime.mode == "async":
            algorithm = learn_elsewhere(config, algorithm, env, learns_on, threads, stack)
        algorithm.from_scratch = config.runtime.resume is None
        reward = None if artifact is None else Rewarding.build(config, artifact, env, device)
        if checkpoint is None:
            _start(policy, config.runtime.resume)
        shown = [] if checkpoint is not None else pick(algorithm, env, None if reward is None else reward.manager)
        if run is None:
            run = RunFolder.create(config.runtime.output_dir, config.runtime.exp_name)
        data, collector = None, None
        if config.reward.collect_data:
            data = DataSet.open(config, run.path / "data")
            wrapped = _collect(config, env, run, data, stack, lambda: trainer.step)
            env, collector = wrapped, wrapped.collector
        auditing = None
        if reward is not None and eval_env is not None:
            env, eval_env, auditing = reward.put_around(config, env, eval_env, run)
        trainer = Trainer(
            policy,
            env,
            algorithm,
            settings=config.runtime,
            run=run,
            eval_env=None if until_collected else eval_env,
            listeners=_listeners(config, env, run, auditing, quiet),
            until=partial(_enough, config, collector if until_collected else None, auditing),
            prolong=config.reward.audit.prolong,
        )
        show(algorithm, env, shown)
        if checkpoint is not None:
            trainer.load(checkpoint)
        save_config(whole, run.path / "config.yaml")
        logger.info("run folder: %s", run.path)
        summary = trainer.train() | describe(env)
        if auditing is not None:
            summary |= {"stopped_by": "audit" if auditing.stopped else None, "audit": auditing.summary}
        if data is not None and collector is not None:
            summary["data"] = _collected(collector) | draw_sheet(data, config.runtime.seed)
        result = _finish(config, run, trainer, summary, command or f"plaudit train --resume {run.path}")
        if auditing is not None and "test" in result:
            auditing.tested()
        return result


def _set_up(config: Config) -> torch.device:
    """Also decides who has which threads: torch as many as learning can use, the critics all, as they take turns."""
    asked = config.runtime.threads
    return set_up(config, learning_threads(asked, looks=_looks(config)), simulation_threads(asked))


def _listeners(
    config: Config, env: VecEnv, run: RunFolder, auditing: Auditing | None, quiet: bool
) -> Sequence[Callback]:
    """Who is told of the numbers: the display and the logs, aside where a control loop must not wait, and the audit."""
    from plaudit.rl.loggers import Aside, default_listeners

    told = [*_display(env, quiet), *default_listeners(run, config.runtime, dict(to_dict(config)))]
    return [*([Aside(told)] if env.real_time else told), *([] if auditing is None else [auditing])]


def _looks(config: Config) -> bool:
    """Whether the policy looks at pictures."""
    return any(block is not None and block.type == "cnn" for block in (config.policy.actor, config.policy.critic))


def _start(policy: Policy, other: str | None) -> None:
    """Gives a policy its first weights: another run's, with the statistics, or what it wants to start from itself.
    Optimiser and counters start anew.
    """
    if other is None:
        policy.load_pretrained()
        return
    checkpoint = checkpoint_of(Path(other))
    load_policy(policy, checkpoint)
    policy.on_pretrained_loaded()
    logger.info("starting from the policy of %s", checkpoint)


def _collect(
    config: Config, env: VecEnv, run: RunFolder, data: DataSet, stack: ExitStack, step: Callable[[], int]
) -> DataCollectorWrapper:
    """The training env, with a collector that listens to it."""

    def describe(env: int) -> dict[str, Any]:
        return {"actor": "training", "policy_step": step()}

    wrapped = collecting(config, env, data, _learns_as(config, run), stack, describe)
    logger.info("collecting episodes in %s", data.place)
    return wrapped


def _learns_as(config: Config, run: RunFolder) -> str:
    """A name for what decides the episodes of a training run: run again, it gives them the same ids, and no copies."""
    whole = to_dict(config)
    runtime = {key: whole["runtime"][key] for key in ("seed", "cuda", "rollout_steps", "resume")}
    what = [runtime, *(whole[section] for section in ("env", "policy", "algorithm"))]
    if config.runtime.mode == "async":  # No two runs have the same episodes.
        what.append({"run": run.path.name})
    return f"t{hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:8]}"


def _enough(config: Config, collector: RewardDataCollector | None, auditing: Auditing | None) -> bool:
    """Whether a run may end: its audit wants it, or it trains only for its data and there is all that is wanted, or no
    hope of it.
    """
    if auditing is not None and auditing.stopped:
        return True
    if collector is None:
        return False
    return collector.complete or collector.idle >= config.reward.data_collection.max_idle_episodes


def _collected(collector: RewardDataCollector) -> dict[str, Any]:
    """What there is of the data, once all of it is on the disk."""
    collector.writer.flush()
    counts = collector.writer.counts
    if collector.repeated:
        logger.info("%d episodes were there already, from an earlier run of the same training.", collector.repeated)
    logger.info("collected: %d positive and %d negative episodes.", counts.positive, counts.negative)
    return {**asdict(counts), "complete": collector.complete}


def _display(env: VecEnv, quiet: bool) -> list[Callback]:
    if quiet:
        return []
    from plaudit.reporting.progress import ProgressDisplay
    from plaudit.rl.loggers import Callback

    class Display(ProgressDisplay, Callback):
        """The display, as the trainer's listener."""

    return [Display(env.headline)]


def _finish(config: Config, run: RunFolder, trainer: Trainer, summary: dict[str, Any], command: str) -> dict[str, Any]:
    """Curves, a test of the best policy on fresh episodes, a film of it, and the result for people and scripts;
    `command` goes on with a run that was stopped.
    """
    from plaudit.reporting.learning_curves import plot_curves

    result: dict[str, Any] = {"run": str(run.path), **summary, "versions": versions()}
    try:
        words = trainer.env.headline, config.runtime.exp_name, summary["counted"]
        plot_curves(run.logs / "metrics.jsonl", run.path / "curves.png", *words)
        result["curves"] = str(run.path / "curves.png")
    except (OSError, PlauditError) as error:
        logger.info("no curves: %s", error)
    if summary["interrupted"]:
        logger.info("stopped and saved; go on with: %s", command)
        return result
    if trainer.eval_env is not None and run.best.exists():
        load_policy(trainer.policy, run.best)
        result["test"] = _test(config, trainer.policy, trainer.eval_env, config.runtime.eval_episodes)
        if config.runtime.video_episodes:
            result |= _film(config, trainer.policy, bare(trainer.eval_env), run, "best")
        _tell(summary, result, config.runtime.eval_episodes)
    with whole_file(run.path / RESULT) as temporary:
        temporary.write_text(json.dumps(result, indent=2, default=str) + "\n", encoding="utf-8")
    return result


def _test(config: Config, policy: Policy, env: VecEnv, episodes: int) -> dict[str, float]:
    """Means over episodes that neither training nor the choice of the best checkpoint has seen."""
    from plaudit.rl.evaluation import evaluate as play

    return play(policy, env, episodes, config.runtime.seed + TEST_SEED).metrics


def _tell(summary: dict[str, Any], result: dict[str, Any], episodes: int) -> None:
    """The outcome in words."""
    name = summary["best_metric"]
    score = f"{result['test'][name]:.1%}" if "success" in name else f"{result['test'][name]:.1f}"
    truth = name.removeprefix("model_")
    if truth != name and truth in result["test"]:
        score += f" (in truth {result['test'][truth]:.1%})"
    logger.info(
        "%s %s over %d fresh test episodes, with the checkpoint of step %s; %s %s in %.0f s of training "
        "(%.0f steps/s).",
        name,
        score,
        episodes,
        f"{summary['best_step']:,}",
        f"{summary['steps']:,}",
        summary["counted"],
        summary["seconds"],
        summary["steps_per_second"],
    )
    for what in ("video", "film_strip", "curves", "run"):
        if what in result:
            logger.info("%s: %s", what.replace("_", " "), result[what])


def evaluate(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    episodes: int | None = None,
    video: bool = False,
    quiet: bool = False,
) -> dict[str, Any]:
    """Tests the best checkpoint of a run, or the checkpoint given, on episodes that its training never saw."""
    from plaudit.rewards.reward_env import RewardedEnv
    from plaudit.rl.run_dir import RunFolder

    run, checkpoint = RunFolder(run_folder(path)), checkpoint_of(path)
    config = load(run.path / "config.yaml", overrides)
    device = set_up(config)
    with ExitStack() as stack:
        artifact = load_reward(config, checkpoint)
        env = build_envs_for(config, "eval", device, stack, artifact)
        policy, _ = build_learner(config, env, device)
        load_policy(policy, checkpoint)
        if artifact is not None:
            env = RewardedEnv(env, build_manager(config, artifact, env, device))
        count = episodes or config.runtime.eval_episodes
        metrics = _test(config, policy, env, count)
        result: dict[str, Any] = {
            "run": str(run.path),
            "checkpoint": str(checkpoint),
            "episodes": count,
            "eval": metrics,
        }
        if video:
            result |= _film(config, policy, bare(env), RunFolder.open(run.path), checkpoint.stem)
    if not quiet:
        print("  ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
        for what in ("video", "film_strip"):
            if what in result:
                print(f"{what.replace('_', ' ')}: {result[what]}")
    return result


def _film(config: Config, policy: Policy, env: VecEnv, run: RunFolder, name: str) -> dict[str, str]:
    """Films some test episodes into the run's `videos/`; says so and goes on where the env has no pictures."""
    from plaudit.reporting.video import film_strip, tile, write_video
    from plaudit.rl.evaluation import film

    try:
        reel = film(policy, env, max(1, config.runtime.video_episodes), config.runtime.seed + TEST_SEED)
    except PlauditError as error:
        logger.info("no video: %s", error)
        return {}
    video, strip = run.videos / f"{name}.mp4", run.videos / f"{name}.png"
    write_video(video, tile(reel.frames, reel.success), reel.fps)
    film_strip(strip, reel.frames[: reel.lengths[0], 0])
    return {"video": str(video), "film_strip": str(strip)}
