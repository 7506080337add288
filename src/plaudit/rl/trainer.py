"""The training loop."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch

from plaudit.config.schema import RuntimeConfig
from plaudit.envs.base import VecEnv
from plaudit.errors import CheckpointError, DataError, EnvError, PlauditError
from plaudit.rl import checkpoint
from plaudit.rl.algorithms.base import BaseAlgorithm
from plaudit.rl.episode_stats import TrainingStats
from plaudit.rl.evaluation import best_metric, evaluate
from plaudit.rl.finite_checks import check_finite
from plaudit.rl.loggers import Callback
from plaudit.rl.observations import FlatView, PolicyObs, check_same_spaces, flat, map_obs, obs_dim
from plaudit.rl.policies.base import Policy
from plaudit.rl.reward_source import Relabelled
from plaudit.rl.rollout import RolloutWatch
from plaudit.rl.run_dir import RunFolder
from plaudit.utils.interrupts import GracefulInterrupt
from plaudit.utils.realtime import ahead, undisturbed
from plaudit.utils.rng import rng_state, set_rng_state

logger = logging.getLogger("plaudit")

EVAL_SEED = 1_000_003
"""Added to the run's seed for evaluations, so that they never meet training's episodes."""

COUNTERS = ("step", "iteration", "prolonged", "seconds", "best", "best_step", "last_eval", "last_eval_step", "version")
"""Attributes of the trainer that a checkpoint holds."""

STOPPING = "stopping after this iteration, to save what was learned. Ctrl-C again stops at once."

LATER = ("listeners",)
"""What earlier checkpoints do not hold."""


class Trainer:
    """Collects, updates, logs, evaluates and saves, iteration after iteration.

    Args:
        policy: What is trained.
        env: Training envs.
        algorithm: How it is trained.
        settings: Lengths and intervals.
        run: Where checkpoints go; `None` keeps nothing.
        eval_env: Evaluation envs; `None` does not evaluate.
        listeners: Who is told of the numbers.
        until: Asked after every iteration; training ends once it says so.
        prolong: Share of the iterations that follow, at least, where a reward model was refreshed.

    Attributes:
        step: Env steps taken, all envs counted; gradient steps where the algorithm takes none.
        iteration: Iterations done.
        prolonged: Iterations beyond those that were asked for.
        best: Highest `best_metric` of the evaluations, or `None`.
        exact_resume: Whether `load` took up the running episodes too; `None` where nothing was loaded.
        relabelled: The training env, where its rewards are somebody else's; else `None`.
        version: Of who gives those rewards.
        deferred: Whether those are told for a whole rollout together.
    """

    def __init__(
        self,
        policy: Policy,
        env: VecEnv,
        algorithm: BaseAlgorithm,
        *,
        settings: RuntimeConfig,
        run: RunFolder | None = None,
        eval_env: VecEnv | None = None,
        listeners: Sequence[Callback] = (),
        until: Callable[[], bool] | None = None,
        prolong: float = 0.0,
    ) -> None:
        if eval_env is not None:
            check_same_spaces(env, eval_env)
        self.policy, self.env, self.algorithm = policy, env, algorithm
        self.settings, self.run, self.eval_env, self.listeners = settings, run, eval_env, list(listeners)
        self.until, self.prolong = until, prolong
        self.step = self.iteration = self.prolonged = 0
        self.seconds = 0.0
        self.best: float | None = None
        self.best_step, self.version = 0, 1
        self.last_eval: dict[str, float] = {}
        self.last_eval_step = 0
        self.exact_resume: bool | None = None
        self.obs: PolicyObs | None = None
        self._saved = time.perf_counter()
        self.stats = TrainingStats(env.num_envs, env.device)
        self.relabelled = env if isinstance(env, Relabelled) else None
        # The rewards of a whole rollout at once are quicker, but take longer than a control loop may wait.
        together = algorithm.relabels and not env.real_time
        self.deferred = self.relabelled is not None and self.relabelled.defer(together)
        algorithm.relabelled, algorithm.folder = self.relabelled, None if run is None else run.replay
        algorithm.initialize_buffer(
            settings.rollout_steps, env.num_envs, obs_dim(env.observation_space), env.action_space.shape[0]
        )

    def train(self, iterations: int | None = None) -> dict[str, Any]:
        """Trains until `iterations` (of the whole run, resumed parts included) are done and those by which it was
        prolonged, `runtime.stop_at` is reached, `until` says so, or Ctrl-C; returns a summary.
        """
        asked = self.settings.iterations if iterations is None else iterations
        for listener in self.listeners:
            listener.on_start(self.step, (asked + self.prolonged) * self._steps_per_iteration)
        self._see_who_judges(asked)  # They may have changed that.
        waits_for_nobody = self.env.real_time
        try:
            with (
                GracefulInterrupt(STOPPING) as interrupt,
                undisturbed(waits_for_nobody),
                ahead(waits_for_nobody and self.algorithm.learns_apart),
            ):
                while self._left(asked) > 0 and not self._reached and not interrupt.requested:
                    self._iterate(asked)
                self._catch_up(lambda: self._left(asked) <= 0 and not interrupt.requested)
                self._save("latest.pt")
                if not interrupt.requested and self.eval_env is not None and self.last_eval_step < self.step:
                    self._evaluate()
                    self._save("latest.pt")
                self.algorithm.flush()
                return self._summary(interrupt.requested)
        finally:
            for listener in self.listeners:
                listener.close()

    def _left(self, asked: int) -> int:
        """Iterations to come."""
        return asked + self.prolonged - self.iteration

    def _see_who_judges(self, asked: int) -> None:
        """Where somebody else gives the rewards now, forgets what the last one called the best, which does not compare,
        and gives time to learn what is right today.
        """
        if self.relabelled is None or self.relabelled.version == self.version:
            return
        self.best, self.version = None, self.relabelled.version
        self.best_step = self.last_eval_step = 0  # So that the new one has its say, even if training is over.
        self.algorithm.rewards_are_new()
        more = math.ceil(Fraction(repr(self.prolong)) * asked) - self._left(asked)
        if more <= 0:
            return
        self.prolonged += more
        steps, total = self._steps_per_iteration, asked + self.prolonged
        logger.info(
            "the rewards are new: %s steps more are taken, %s in all", f"{more * steps:,}", f"{total * steps:,}"
        )
        for listener in self.listeners:
            listener.on_prolonged(total * steps)

    def _iterate(self, asked: int) -> None:
        """One round: collect, update, log, and where it is time evaluate and save."""
        started = time.perf_counter()
        self.algorithm.progress((self.iteration - self.prolonged) / asked)
        try:
            extra = self._collect()
            losses = self.algorithm.update()
        except (EnvError, DataError):
            if all(torch.isfinite(weights).all() for weights in self.policy.parameters()):
                self._rescue(with_env=False)
            raise
        before = self.step
        self.iteration += 1
        self.step += self._steps_per_iteration
        elapsed = time.perf_counter() - started
        self.seconds += elapsed
        self._log({**losses, **extra, "charts/steps_per_second": self._steps_per_iteration / elapsed})
        self._see_who_judges(asked)
        if self._due(self.settings.eval_freq, before):
            self._evaluate()
        if self._due(self.settings.save_freq, before):
            self._save_numbered()
        else:
            self._save_by_the_clock()

    def _collect(self) -> dict[str, Any]:
        """One rollout, from where the last one stopped."""
        if self.obs is None:
            self.obs = self._begin(self.settings.seed)
        view = FlatView(self.env, self.obs)
        watch = RolloutWatch(self.stats, self.deferred, f"iteration {self.iteration + 1}")
        extra = self.algorithm.collect_rollout(
            view, self.policy, self.obs, self.settings.rollout_steps, on_step_callback=watch
        )
        self.obs = view.obs
        watch.finish(view, type(self.algorithm).__name__, must_step=self.algorithm.gradient_steps is None)
        return extra

    def _begin(self, seed: int) -> PolicyObs:
        """New episodes, and their first observations."""
        obs = flat(self.env.reset(seed)[0])
        check_finite(obs, "observation", "reset")
        self.env.stagger()
        return obs

    def _catch_up(self, wanted: Callable[[], bool]) -> None:
        """Has what is still to be learned learned, for as long as that is `wanted`, and tells what came of it."""

        def go_on() -> bool:
            if goes_on := wanted():
                self._save_by_the_clock()
            return goes_on

        started = time.perf_counter()
        try:
            losses = self.algorithm.catch_up(go_on)
        except EnvError:
            self._rescue()
            raise
        if losses:
            self.seconds += time.perf_counter() - started
            self._log(losses)

    def _log(self, losses: dict[str, Any]) -> None:
        metrics = {name if "/" in name else f"train/{name}": float(value) for name, value in losses.items()}
        metrics |= self.stats.flush()
        if self.relabelled is not None:
            metrics |= self.relabelled.report()
            if "rollout/success_once" in metrics:
                metrics["env/success_once"] = metrics["rollout/success_once"]
        for listener in self.listeners:
            listener.on_metrics(self.step, metrics)

    def _evaluate(self) -> None:
        """Evaluates, where there is an evaluation env, and keeps the policy if it is the best so far."""
        if self.eval_env is None:
            return
        seed = self.settings.seed + EVAL_SEED
        try:
            result = evaluate(self.policy, self.eval_env, self.settings.eval_episodes, seed).metrics
            name = best_metric(self.settings.best_metric, result, self.env)
        except Exception:
            # Whatever is wrong with the evaluation, what was learned is kept.
            self._rescue()
            raise
        if self.last_eval and name != best_metric(self.settings.best_metric, self.last_eval, self.env):
            # An env may begin to tell success late; until then the return was the metric.
            self.best = None
        self.last_eval, self.last_eval_step = result, self.step
        for listener in self.listeners:
            listener.on_eval(self.step, {f"eval/{name}": value for name, value in (result | self._trust).items()})
        score = result[name]
        if not math.isnan(score) and (self.best is None or score > self.best):
            self.best, self.best_step = score, self.step
            self._save("best.pt")

    @property
    def _trust(self) -> dict[str, float]:
        """How far whoever gives the rewards is to be trusted, by an evaluation; for the log only."""
        if not isinstance(self.eval_env, Relabelled):
            return {}
        return {name.replace("/", "_"): value for name, value in self.eval_env.watched().items()}

    @property
    def _reached(self) -> bool:
        """Whether an evaluation was as good as `runtime.stop_at` asks, or `until` says that it is enough."""
        if self.until is not None and self.until():
            return True
        return self.settings.stop_at is not None and self.best is not None and self.best >= self.settings.stop_at

    @property
    def _steps_per_iteration(self) -> int:
        return self.algorithm.gradient_steps or self.settings.rollout_steps * self.env.num_envs

    def _due(self, every: int, before: int) -> bool:
        """Whether a multiple of `every` steps was passed since `before`."""
        return every > 0 and self.step // every > before // every

    def _summary(self, interrupted: bool) -> dict[str, Any]:
        return {
            "steps": self.step,
            "counted": "env steps" if self.algorithm.gradient_steps is None else "gradient steps",
            "iterations": self.iteration,
            "prolonged": self.prolonged,
            "seconds": self.seconds,
            "steps_per_second": self.step / self.seconds if self.seconds else 0.0,
            "best_metric": best_metric(self.settings.best_metric, self.last_eval, self.env) if self.last_eval else None,
            "best": self.best,
            "best_step": self.best_step,
            "eval": self.last_eval,
            "interrupted": interrupted,
            "exact_resume": self.exact_resume,
        }

    def _save_by_the_clock(self) -> None:
        if 0 < self.settings.save_seconds <= time.perf_counter() - self._saved:
            self._save("latest.pt")

    def _save_numbered(self) -> None:
        self._save(f"step_{self.step}.pt")

    def _save(self, name: str, with_env: bool = True) -> None:
        """Writes a checkpoint under the run, if there is one."""
        if self.run is None:
            return
        folder = checkpoint.CheckpointFolder(self.run.checkpoints, self.settings.keep_checkpoints)
        self.algorithm.save(folder, name, self.state_dict(with_env))
        self._saved = time.perf_counter()

    def _rescue(self, with_env: bool = True) -> None:
        """Saves what was learned where something has gone wrong, which must not be hidden by a disk that is full."""
        try:
            self._save("latest.pt", with_env)
        except PlauditError as error:
            logger.error("what was learned since the last checkpoint is lost: %s", error)

    def state_dict(self, with_env: bool = True) -> dict[str, Any]:
        """All that an exact resume needs beside what the algorithm has to say."""
        keeps = with_env and self.env.can_save_state and self.obs is not None
        return {
            "policy": self.policy.state_dict(),
            "trainer": {name: getattr(self, name) for name in COUNTERS},
            "stats": self.stats.state_dict(),
            "num_envs": self.env.num_envs,
            "env": self.env.state_dict() if keeps else None,
            "obs": self.obs if keeps else None,
            "rng": rng_state(),
            "listeners": {
                type(listener).__name__: state
                for listener in self.listeners
                if (state := listener.state_dict()) is not None
            },
        }

    def load(self, path: str | Path) -> None:
        """Takes up a run where a checkpoint left it: exactly, if the env can save its state, else with new episodes."""
        content = checkpoint.load(path)
        wanted = [*checkpoint.OF_ALGORITHM, *self.state_dict(with_env=False)]
        if missing := [key for key in wanted if key not in content and key not in LATER]:
            raise CheckpointError(f"the checkpoint '{path}' cannot be resumed from: it has no '{missing[0]}'.")
        checkpoint.load_policy(self.policy, content["policy"], path)
        theirs, ours = content["algorithm_class"], self.algorithm.kind
        if theirs != ours:
            raise CheckpointError(f"the checkpoint '{path}' is of another algorithm: {ours} here, {theirs} there.")
        self.algorithm.load_state_dict(content["algorithm"])
        for name in COUNTERS:
            setattr(self, name, content["trainer"].get(name, getattr(self, name)))
        if self.last_eval:  # Better refused now than at the next evaluation.
            best_metric(self.settings.best_metric, self.last_eval, self.env)
        for listener in self.listeners:
            listener.on_resume(self.step)
            if (state := content.get("listeners", {}).get(type(listener).__name__)) is not None:
                listener.load_state_dict(state)
        self._load_env(content)
        set_rng_state(content["rng"])

    def _load_env(self, content: dict[str, Any]) -> None:
        fits = content["env"] is not None and content["num_envs"] == self.env.num_envs
        self.exact_resume = fits and self.env.can_save_state
        if self.exact_resume:
            self.env.load_state_dict(content["env"])
            self.obs = map_obs(lambda part: part.to(self.env.device), content["obs"])
            self.stats.load_state_dict(content["stats"])
            return
        self.obs = self._begin(self.settings.seed + self.step)
        logger.info(
            "resumed at step %d with new episodes: the checkpoint has no state that this env can take up.", self.step
        )
