"""The audit of a training run: raises alarms, does what the config says about them, and leaves a record for people."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plaudit.config.schema import Config
from plaudit.data.episode import UNKNOWN
from plaudit.errors import CheckpointError, DataError, OutputError, PlauditError
from plaudit.pipelines.audit_record import AuditRecord
from plaudit.pipelines.builders import run_folder
from plaudit.pipelines.refresh import Refresher, agreement
from plaudit.rewards.audit.audit import Alarm, Audit, AuditCounts, Reference
from plaudit.rewards.audit.frame_recorder import Followed, Watched
from plaudit.rewards.audit.label_sheet import LIST, ask_for_labels, read_labels
from plaudit.rewards.reward_env import KEY, RewardedEnv
from plaudit.rewards.reward_function import RewardManager
from plaudit.rl.evaluation import shares
from plaudit.rl.loggers import Callback
from plaudit.utils.rng import preserved_rng

if TYPE_CHECKING:
    from plaudit.data.episode import Episode
    from plaudit.envs.base import VecEnv
    from plaudit.reward_models.artifact import RewardArtifact

logger = logging.getLogger("plaudit")

PLACE = "audit"
"""Folder of a run in which an audit keeps pictures, labelled episodes and refreshed models."""

FOLLOWED = 64
"""Envs whose pictures are kept where the model is asked at every step."""

FEW_OTHERS = 16
"""Episodes that did not fool the model and are labelled even where fewer, or none, did."""

WAYS_OUT = (
    "Raise reward.reward_threshold, add a hold or a guard, or collect such episodes and fit again; "
    "reward.audit.on_alarm=refresh does the last of these by itself."
)


class Auditing(Callback):
    """Watches the envs of a training run, and acts on alarms between iterations.

    Args:
        config: The run's.
        env: Training envs, without rewards of a model.
        eval_env: Evaluation envs, likewise.
        manager: The model.
        folder: The run's.
        refresher: Fits the model further; `None` where that is not wanted.

    Attributes:
        env: Training envs with the model's rewards.
        eval_env: Evaluation envs with them.
        stopped: Whether training is to end.
        labelled: Ids of the episodes whose labels were used.
    """

    def __init__(
        self,
        config: Config,
        env: VecEnv,
        eval_env: VecEnv,
        manager: RewardManager,
        folder: Path,
        refresher: Refresher | None,
    ) -> None:
        self.config, self.keys, self.refresher = config, config.reward.audit, refresher
        self.place = folder / PLACE
        reference = Reference.of(manager)
        followed = Followed(_chosen(config, env.num_envs))
        self.audit = Audit(env.num_envs, self.keys, env.headline, reference, followed=followed)
        quota = shares(config.runtime.eval_episodes, eval_env.num_envs).numpy()
        self.of_eval = Audit(eval_env.num_envs, self.keys, env.headline, reference, quota=quota)
        version = version_of(manager.artifact, folder)
        self.env = RewardedEnv(env, manager, [self.audit], version=version)
        self.eval_env = RewardedEnv(eval_env, manager, [self.of_eval], version=version)
        self.followed, self.record = followed, AuditRecord(folder, self.keys)
        self.labelled: list[str] = []
        self.stopped = self._waits = self._said_spent = self._said_unwritten = False

    def on_start(self, step: int, total_steps: int) -> None:
        if self._waits and self.refresher is not None:  # Somebody may have labelled episodes meanwhile.
            self._refresh(step)

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        alarm = self.audit.check()
        if alarm is not None:
            self._raise(step, alarm)

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        self.record.evaluated(step, self.env.version, self.of_eval.tally)
        self._write()

    def close(self) -> None:
        self._write()

    def tested(self) -> None:
        """The last evaluation was the test of the best policy."""
        self.record.tested(self.env.version, self.of_eval.tally)
        self._write()

    def _raise(self, step: int, alarm: Alarm) -> None:
        """Tells of an alarm, and does what is to be done."""
        self.record.alarm(step, self.env.version, alarm)
        self._write(alarmed=True)
        whose = "labels of the truth" if alarm.tally.told else "the labels that a person has given"
        means = {
            "warn": f"{self._where(alarm.tally)}{WAYS_OUT}",
            "stop": f"Training ends here (reward.audit.on_alarm=stop). {self._where(alarm.tally)}{WAYS_OUT}",
            "refresh": f"It is refreshed now, with {whose} (reward.audit.on_alarm=refresh).",
        }
        logger.warning("audit, step %s: %s. %s", f"{step:,}", alarm.message, means[self.keys.on_alarm])
        self.stopped = self.keys.on_alarm == "stop"
        if self.refresher is not None:
            self._refresh(step)

    def _where(self, tally: AuditCounts) -> str:
        """Tells of the pictures of what was seen, if there are any: scores may be out of range without a mistake."""
        path = self.record.sheet if tally.told else self.place / "to_label"
        return f"Look at {path}. " if path.exists() else ""

    def _refresh(self, step: int) -> None:
        """Labels, fits, and puts the new model in the old one's place."""
        assert self.refresher is not None
        left = self.keys.max_labels - len(self.labelled)
        if left <= 0:
            if not self._said_spent:
                logger.warning(
                    "audit: all %d labels that reward.audit.max_labels allows are spent, so the model stays as it is. "
                    "%s",
                    self.keys.max_labels,
                    WAYS_OUT,
                )
            self._said_spent = True
            return
        try:
            episodes = self._labels(step, left)
            if not episodes:
                return
            with preserved_rng():  # What the policy draws is not to depend on it.
                self._fit(step, episodes)
        except PlauditError as error:
            logger.warning("audit: the model could not be refreshed, and stays as it is: %s", error)
            self.record.failed(step, str(error))
            self.followed.clear()  # They have had their try; the next one is to learn from others too.

    def _labels(self, step: int, left: int) -> list[Episode]:
        """Episodes with labels, `left` at most: the truth's, or where there is none those that a person has given."""
        if not self.audit.tally.told:
            return self._labels_of_a_person(left)
        fooled, others = (
            [one for one in some if one.labelled and one.id not in self.labelled]
            for some in (self.followed.worst(), self.followed.telling())
        )
        fooled = fooled[: max((left + 1) // 2, left - len(others))]
        others = others[: min(left - len(fooled), max(len(fooled), FEW_OTHERS))]
        meta = {
            "env": self.config.env.id,
            "actor": "training",
            "policy_step": step,
            "reward_version": self.env.version,
        }
        return [one.episode("simulator", meta) for one in (*fooled, *others)]

    def _labels_of_a_person(self, left: int) -> list[Episode]:
        folder = self.place / "to_label"
        self._waits = True  # Also where the list cannot be read: whoever mends it resumes the run.
        done = read_labels(folder) if (folder / LIST).exists() else []
        told = [episode for episode in done if (episode.labels != UNKNOWN).any()]  # A row of ? teaches nothing.
        new = [episode for episode in told if episode.id not in self.labelled][:left]
        self._waits = not new
        if self._waits:
            logger.warning(
                "audit: the model cannot be refreshed, since there is no ground truth. Fill in the column success of "
                "%s; it is read at the next alarm, and when the run is resumed.",
                folder / LIST,
            )
        return new

    def _fit(self, step: int, episodes: list[Episode]) -> None:
        """Fits the model to all labels so far, some of them new, and swaps it."""
        from plaudit.data.store import EpisodeStore

        assert self.refresher is not None
        started, old, version = time.perf_counter(), self.env.manager, self.env.version + 1
        store = EpisodeStore.create(self.place / "labelled")
        store.add(episodes)
        self.labelled += [episode.id for episode in episodes]  # They are spent once they are there to learn from.
        self.record.pictures_of(self.env.version, self.followed.worst())
        ids, path = [episode.id for episode in episodes], self.place / f"reward_v{version}"
        manager = self._manager(self.refresher.fit(old.artifact, store, self.labelled, path))
        before, after = (
            {held: agreement(one, store, ids, held_back=held).to_dict() for held in (False, True)}
            for one in (old, manager)
        )
        self._swap(manager, version)
        frames = sum(int((episode.labels >= 0).sum()) for episode in episodes)
        self.record.refreshed(
            {
                "step": step,
                "version": version,
                "artifact": str(path),
                "id": manager.artifact.id,
                "parent": old.artifact.id,
                "episodes": len(ids),
                "frames": frames,
                "before": before[False],
                "after": after[False],
                "held_back_before": before[True],
                "held_back_after": after[True],
                "threshold": manager.rule.decision.threshold,
                "seconds": time.perf_counter() - started,
            }
        )
        self._write()
        logger.info(
            "audit: reward model version %d, fitted in %.0f s with labels of %d episodes (%d of %d spent): of %d "
            "failed episodes among them it calls %d a success, %d before.",
            version,
            time.perf_counter() - started,
            len(ids),
            len(self.labelled),
            self.keys.max_labels,
            after[False]["failures"],
            after[False]["fooled"],
            before[False]["fooled"],
        )

    def _manager(self, artifact: RewardArtifact) -> RewardManager:
        """The pipeline around another model, for the same envs."""
        keys, old = self.config, self.env.manager
        return RewardManager(
            artifact, keys.reward, readings=old.readings, device=self.env.device, threads=keys.runtime.threads
        )

    def _swap(self, manager: RewardManager, version: int) -> None:
        reference = Reference.of(manager)
        for env, audit in ((self.env, self.audit), (self.eval_env, self.of_eval)):
            env.swap(manager, version)
            audit.renew(reference)

    def _write(self, *, alarmed: bool = False) -> None:
        """All that is for people: the record, pictures of the worst, and what wants labels. It is not worth a run.

        Args:
            alarmed: What raised an alarm is to be labelled before what nobody has looked at until then.
        """
        tally = self.audit.tally
        try:
            if tally.episodes and not tally.told:
                ask_for_labels(self.place / "to_label", self._to_label(), anew=alarmed)
            self.record.write(self.env.version, tally, self.followed, len(self.labelled))
        except (OutputError, DataError) as error:
            if not self._said_unwritten:
                logger.warning("audit: what it has seen cannot be written down, and training goes on: %s", error)
            self._said_unwritten = True

    def _to_label(self) -> list[Watched]:
        """Half of what the model calls successes, the surest ones first, and half of the others."""
        kept = list(self.followed.others)[::-1]
        sides = [[one for one in kept if one.claimed == claimed] for claimed in (True, False)]
        sides[0].sort(key=lambda one: -one.worst.logit)
        count = max(FEW_OTHERS, min(map(len, sides)))
        return [one for side in sides for one in side[:count]]

    @property
    def summary(self) -> dict[str, Any]:
        """For the result of a run."""
        return {
            "alarms": len(self.record.alarms),
            "refreshes": len(self.record.refreshes),
            "labels": len(self.labelled),
            "version": self.env.version,
            "record": str(self.record.path),
        }

    def state_dict(self) -> dict[str, Any]:
        # Pictures decide something only where they may be labelled.
        return {
            "version": self.env.version,
            "artifact": self.env.manager.artifact.id,
            "audit": self.audit.state_dict(pictures=self.refresher is not None),
            "labelled": list(self.labelled),
            "waits": self._waits,
            "said_spent": self._said_spent,
            "record": self.record.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.audit.load_state_dict(state["audit"])
        self.labelled = list(state["labelled"])
        self._waits, self._said_spent = bool(state["waits"]), bool(state["said_spent"])
        self.record.load_state_dict(state["record"])


def version_of(artifact: RewardArtifact, run: Path) -> int:
    """Of a reward model in a run: 1 unless it was refreshed there."""
    path = Path(artifact.path or "").resolve()
    return int(path.name.removeprefix("reward_v")) if path.parent == (run / PLACE).resolve() else 1


def reward_at(checkpoint: Path) -> RewardArtifact | None:
    """The refreshed reward model that a checkpoint was saved with; `None` where that was the first one. What is missing
    or another one is an error.
    """
    from plaudit.reward_models.artifact import RewardArtifact
    from plaudit.rl.checkpoint import load

    content = load(checkpoint)
    # Without an audit the env knows it, and where the env's state was not saved the trainer does.
    places = [content.get("listeners", {}).get(Auditing.__name__), (content.get("env") or {}).get(KEY)]
    state = next((one for one in places if one is not None), content.get("trainer", {}))
    if state.get("version", 1) == 1:
        return None
    path = run_folder(checkpoint) / PLACE / f"reward_v{state['version']}"
    artifact = RewardArtifact.load(path)
    if artifact.id != state.get("artifact", artifact.id):
        raise CheckpointError(
            f"the reward model '{path}' is not the one that the checkpoint was saved with: {artifact.id} and "
            f"{state['artifact']}. Put it back, or start the run anew."
        )
    return artifact


def _chosen(config: Config, num_envs: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The training envs that are followed, spread evenly."""
    wanted = config.reward.audit.follow or (num_envs if config.reward.reward_mode == "terminal" else FOLLOWED)
    count = min(wanted, num_envs)
    return np.arange(count, dtype=np.int64) * num_envs // count
