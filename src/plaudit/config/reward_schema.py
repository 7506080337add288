"""The keys under `reward`: the data that a reward model is fitted to, the fit, the reward, and its audit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from plaudit.config.guard_expressions import parse_guard
from plaudit.config.structured import require


@dataclass(frozen=True)
class ActorConfig:
    """Who acts in a share of the episodes that `plaudit collect` gathers, and what goes wrong for it."""

    kind: Literal["random", "expert", "policy", "training"] = "random"  # training: the policy that is being trained.
    weight: float = 1.0  # Share of the episodes, relative to the other actors'.
    checkpoint: str | None = None  # For policy: a run's folder, or one of its checkpoints.
    noise: float = 0.0  # Standard deviation of noise on every action, in halves of the action range.
    drift: float = 0.0  # Largest push, in the same unit, that sets in at a random time and stays: near misses.
    bursts: float = 0.0  # Chance at each step that a random action is held for a few steps: mistakes and recoveries.
    halts: float = 0.0  # Share of its episodes in which it stops moving at a random time.
    misaim: float = 0.0  # For expert: metres, at most, by which it takes the goal to be elsewhere: telling failures.
    overruns: float = 0.0  # Share of its episodes in which it hangs on to one action for a while: it overshoots.

    def __post_init__(self) -> None:
        require(0 < self.weight < math.inf, "weight", "must be greater than 0 and finite")
        require(self.misaim == 0 or self.kind == "expert", "misaim", "is for actors of kind expert")
        for key in ("noise", "drift", "misaim"):
            require(0 <= getattr(self, key) < math.inf, key, "must not be negative or infinite")
        for key in ("bursts", "halts", "overruns"):
            require(0 <= getattr(self, key) <= 1, key, "must be between 0 and 1")
        given = self.checkpoint is not None
        needs = "must name a run's folder or a checkpoint" if self.kind == "policy" else "is for actors of kind policy"
        require(given == (self.kind == "policy"), "checkpoint", needs)
        mistakes = self.kind == "training" and any((self.noise, self.drift, self.bursts, self.halts, self.overruns))
        require(not mistakes, "kind", "the policy that is being trained explores by itself: no noise, drift and so on")


@dataclass(frozen=True)
class DataCollectionConfig:
    """Which labelled episodes are kept, and where."""

    save_dir: str | None = None  # The data set's folder; null: data/<exp_name>, and <run's folder>/data in training.
    format: str = "plaudit"  # Layout of the files: ours, or another that can be written (npy, episode_pkl ...).
    positive_dir: str | None = None  # Folder of the successes, in place of save_dir; makes the format npy.
    negative_dir: str | None = None  # Folder of the failures; both or none.
    image_keys: tuple[str, ...] | None = None  # Cameras that are kept; null keeps all that the env has.
    image_size: tuple[int, int, int] | None = None  # Channels (3), height and width of the frames; null: the env's.
    max_positive_trajectories: int | None = 500  # Successes wanted, earlier runs included; null for no limit.
    max_negative_trajectories: int | None = 500  # Failures wanted; null for no limit.
    early_failures: float = 1.0  # Share of the failures taken at once; the others keep pace with the successes.
    frames_per_episode: int | None = None  # Frames kept of each: label changes, the last, random ones; null for all.
    whole_episodes: float = 0.0  # Share of episodes of which all frames are kept: validation needs to see every step.
    num_envs: int | None = 64  # Envs that plaudit collect steps together; null: as many as for training.
    max_idle_episodes: int = 2000  # plaudit collect gives up after so many episodes in a row that are not wanted.
    actors: tuple[ActorConfig, ...] = (ActorConfig(),)  # Who acts in plaudit collect; drawn anew for every episode.

    def __post_init__(self) -> None:
        both = (self.positive_dir is None) == (self.negative_dir is None)
        require(both, "negative_dir" if self.negative_dir is None else "positive_dir", "give both folders or none")
        split = self.positive_dir is not None
        require(not (split and self.save_dir is not None), "save_dir", "cannot be given beside positive_dir")
        require(not split or self.format in ("plaudit", "npy"), "format", "only npy goes into positive_dir")
        require(self.image_keys is None or bool(self.image_keys), "image_keys", "must name a camera, or be null")
        shape = self.image_size
        fits = shape is None or (shape[0] == 3 and min(shape[1:]) >= 1)
        require(fits, "image_size", "must be [3, height, width]")
        for key in ("max_positive_trajectories", "max_negative_trajectories"):
            require((getattr(self, key) or 0) >= 0, key, "must not be negative")
        limited = None not in (self.max_positive_trajectories, self.max_negative_trajectories)
        require(limited or self.early_failures == 1, "early_failures", "needs both limits, max_..._trajectories")
        for key in ("frames_per_episode", "num_envs", "max_idle_episodes"):
            value = getattr(self, key)
            require(value is None or value >= 1, key, "must be at least 1")
        for key in ("early_failures", "whole_episodes"):
            require(0 <= getattr(self, key) <= 1, key, "must be between 0 and 1")
        require(bool(self.actors), "actors", "somebody must act")
        alone = len(self.actors) == 1 or all(actor.kind != "training" for actor in self.actors)
        require(alone, "actors", "the policy that is being trained acts alone, or not at all")


@dataclass(frozen=True)
class FitDataConfig:
    """What a reward model is fitted to."""

    path: str | None = None  # A data set in any layout that is known; null: where plaudit collect puts this recipe's.
    format: str | None = None  # Its layout; null finds out by looking.
    positive_dir: str | None = None  # Folder of .npy trajectories with success, in place of path.
    negative_dir: str | None = None  # Folder of those without; both or none.
    splits: str | None = None  # Folder of split manifests; null: the data set's own, or else a new split by episode.
    test_path: str | None = None  # Another data set to test on, such as of other actors, in place of a test split.
    val_fraction: float | None = None  # Share of the episodes that validate; null: as plaudit process has it.
    test_fraction: float | None = None  # Share of the episodes that test; null: as plaudit process, 0 with test_path.
    num_samples_per_episode: int | None = None  # Frames of each training episode; null or 0 is all of them.
    fail_success_ratio: float | None = None  # Failure frames for each success in training, at most; null as it is.

    def __post_init__(self) -> None:
        both = (self.positive_dir is None) == (self.negative_dir is None)
        require(both, "negative_dir" if self.negative_dir is None else "positive_dir", "give both folders or none")
        require(self.path is None or self.positive_dir is None, "path", "cannot be given beside positive_dir")
        require(self.splits is None or not self.divides, "splits", "come divided; leave out what divides a data set")

    @property
    def divides(self) -> bool:
        """Whether any key says how to divide the data set."""
        keys = (self.val_fraction, self.test_fraction, self.num_samples_per_episode, self.fail_success_ratio)
        return any(key is not None for key in keys)


@dataclass(frozen=True)
class OptimConfig:
    """How a reward model's weights are changed."""

    optimizer: Literal["adam", "adamw"] = "adamw"  # adamw shrinks the weights apart from the gradient.
    lr: float = 3e-3  # Step size after the warm-up.
    weight_decay: float | None = None  # How much the weights are shrunk; null: 0.01 with adamw, not at all with adam.
    clip_grad: float = 1.0  # Gradients longer than this are shortened to it; 0 never.
    lr_schedule: Literal["constant", "linear", "cosine"] = "cosine"  # How the step size goes to zero.
    warmup_steps: int | None = None  # Steps in which it grows from zero; null: a twentieth of all.

    def __post_init__(self) -> None:
        require(0 < self.lr < math.inf, "lr", "must be greater than 0 and finite")
        for key in ("weight_decay", "clip_grad"):
            require(0 <= (getattr(self, key) or 0) < math.inf, key, "must be at least 0 and finite")
        require((self.warmup_steps or 0) >= 0, "warmup_steps", "must not be negative")


@dataclass(frozen=True)
class AugmentConfig:
    """How training pictures are varied, each camera on its own."""

    enabled: bool = True  # Vary them at all.
    shift: int = 2  # Pixels, at most, by which a picture moves each way; its edge is repeated.
    zoom: float = 0.0  # Share, at most, by which it is enlarged or made smaller.
    brightness: float = 0.1  # Share, at most, by which it is made lighter or darker.
    contrast: float = 0.1  # Share, at most, by which light and dark move apart or together.
    colour: float = 0.05  # Share, at most, by which each of red, green and blue changes.

    def __post_init__(self) -> None:
        require(self.shift >= 0, "shift", "must not be negative")
        for key in ("zoom", "brightness", "contrast", "colour"):
            require(0 <= getattr(self, key) < 1, key, "must be at least 0 and less than 1")


BestMetric: TypeAlias = Literal["log_loss", "balanced_accuracy", "roc_auc", "average_precision", "recall"]
"""What a fit may pick its best weights by, on the validation split. `recall` is that at the chosen threshold."""


@dataclass(frozen=True)
class TrainingConfig:
    """How a reward model is fitted."""

    enabled: bool = False  # plaudit train fits a reward model first, and trains on that (use_reward_model).
    only: bool = False  # It fits, and trains no policy; then neither an env nor a policy need be given.
    data: FitDataConfig = field(default_factory=FitDataConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    training_backend: Literal["simple", "ddp", "fsdp"] = "simple"  # In one process; as replicas, or shards, in several.
    training_processes: int | None = None  # How many with ddp and fsdp; null: one for each GPU, else 2.
    gpu_id: int = 0  # Which GPU, where there is one and runtime.cuda is true; with ddp and fsdp each has its own.
    precision: Literal["f32", "bf16"] = "f32"  # Of the network's arithmetic; bf16 only where this machine has it.
    num_epochs: int | None = None  # Passes over the training frames, at most; null: 2,000 steps, shared by the cameras.
    max_steps: int | None = None  # Batches, at most; null for no other limit than num_epochs.
    max_seconds: float | None = None  # Seconds, at most; such a fit cannot be repeated exactly.
    global_batch_size: int = 64  # Frames in a step.
    micro_batch_size: int | None = None  # Frames that go through the network together; null: all of a step.
    balance: Literal["sampler", "weight", "none"] = "sampler"  # Classes by lot, by their weight in the loss, as is.
    success_share: float = 0.5  # Share of successes in what the sampler draws, or in the weighted loss.
    hard_share: float | None = None  # Share of a batch drawn by loss; null: 0.75 if all labels are a simulator's, or 0.
    log_interval: int = 20  # Steps between logged losses.
    val_check_interval: int | None = None  # Steps between validations; null: once an epoch, or twice without epochs.
    best_metric: BestMetric = "log_loss"  # What picks the best weights, on the validation split.
    patience: int = 0  # Validations in a row without a better best_metric, after which training ends; 0 never.
    save_interval: int = 1000  # Steps between checkpoints.
    keep_checkpoints: int = 3  # Checkpoints kept; older ones are deleted. 0 keeps all.
    save_dir: str | None = None  # For step_<N>/, best_model/ and all else; null: <output_dir>/<exp_name>_<timestamp>.
    output_checkpoint: str | None = None  # One more file for the best weights, as in RLinf's guides.
    feature_cache: bool = True  # Run a frozen encoder only once for each frame, and keep what it says.
    cache_views: int = 1  # Views kept of each training frame: the frame itself first, varied ones after it.
    cache_dir: str | None = None  # Where that is kept, for later fits too; null: ~/.cache/plaudit.
    target_false_positive_rate: float = 0.01  # Episodes in which the chosen threshold may fire wrongly.
    figures: bool = True  # Draw curves, timelines and the worst mistakes into the artifact.
    visualize_positive: bool = False  # First write every success frame as a picture.
    vis_output_dir: str = "positive_samples_vis"  # Where to.
    debug_save_dir: str | None = None  # Write test frames as pictures, sorted by what the model says of them.

    def __post_init__(self) -> None:
        counts = ("num_epochs", "max_steps", "global_batch_size", "micro_batch_size", "log_interval", "save_interval")
        for key in (*counts, "val_check_interval", "cache_views", "training_processes"):
            value = getattr(self, key)
            require(value is None or value >= 1, key, "must be at least 1")
        for key in ("gpu_id", "patience", "keep_checkpoints"):
            require(getattr(self, key) >= 0, key, "must not be negative")
        require(
            self.enabled or not self.only,
            "only",
            "needs enabled to be true: it leaves out the training that follows the fit",
        )
        several = self.training_backend != "simple" or self.training_processes in (None, 1)
        require(several, "training_processes", "is for training_backend ddp and fsdp; simple is one process")
        require(self.max_seconds is None or self.max_seconds > 0, "max_seconds", "must be greater than 0")
        require(0 < self.success_share < 1, "success_share", "must be greater than 0 and less than 1")
        require(0 <= (self.hard_share or 0) < 1, "hard_share", "must be at least 0 and less than 1")
        fits = 0 <= self.target_false_positive_rate < 1
        require(fits, "target_false_positive_rate", "must be at least 0 and less than 1")


@dataclass(frozen=True)
class AuditConfig:
    """Who watches a reward model while a policy learns from it, and what happens where it is fooled."""

    enabled: bool = True  # Watch at all; ground truth is looked at, and reaches nothing that learns.
    window: int = 256  # Training episodes, the last ones, that an alarm is raised by.
    min_claims: int = 20  # Of them the model must have called so many a success before it can be said to be fooled.
    max_fooled: float = 0.3  # Alarm where surely more than this share of the window's episodes fooled it,
    min_claimed: float = 0.7  # or, once it calls this share of them a success, of those that it calls so.
    max_fooled_again: float = 0.05  # The same in that case for a refreshed model: what fooled one is watched closely.
    max_out_of_range: float = 0.3  # Alarm where surely more than this share of its scores is unlike any in its fit.
    on_alarm: Literal["warn", "stop", "refresh"] = "warn"  # refresh: fit the model further, with labels of the truth.
    follow: int | None = None  # Training envs whose pictures are kept; null: 64, and with reward_mode terminal all.
    max_labels: int = 200  # Episodes, in the whole run, whose truth may be used to refresh the model.
    refresh_steps: int = 300  # Batches of one refresh.
    prolong: float = 1.0  # Share of runtime.iterations that follows each refresh, at least; 0 adds none.

    def __post_init__(self) -> None:
        for key in ("window", "min_claims", "follow", "max_labels", "refresh_steps"):
            value = getattr(self, key)
            require(value is None or value >= 1, key, "must be at least 1")
        require(self.min_claims <= self.window, "min_claims", "must not be more than window, which it is counted in")
        for key in ("max_fooled", "max_fooled_again", "min_claimed", "max_out_of_range"):
            require(0 < getattr(self, key) < 1, key, "must be greater than 0 and less than 1")
        require(0 <= self.prolong <= 1, "prolong", "must be between 0 and 1")
        require(self.enabled or self.on_alarm == "warn", "on_alarm", "needs an audit; set enabled to true")


@dataclass(frozen=True)
class RewardConfig:
    """Learning what success looks like."""

    collect_data: bool = False  # Keep labelled episodes of a training run.
    data_collection: DataCollectionConfig = field(default_factory=DataCollectionConfig)
    model: dict[str, Any] = field(default_factory=dict)  # The reward model's own keys; without model_type a small one.
    training: TrainingConfig = field(default_factory=TrainingConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    use_reward_model: bool = False  # Train on a fitted reward model in place of the env's own reward.
    checkpoint_path: str | None = None  # It: an artifact, the folder of a fit, or another system's checkpoint.
    reward_mode: Literal["per_step", "terminal"] = "per_step"  # When the model is asked: at every step or the last.
    reward_interval: int = 1  # With per_step: only at every so many-th step of an episode, and its last; 0 between.
    reward_type: Literal["binary", "continuous"] = "binary"  # Its verdict, or its probability of success.
    success_reward: float = 1.0  # What a success is worth.
    fail_reward: float = 0.0  # What anything else is worth.
    reward_threshold: float | None = None  # Success is a probability above this; null: as the model was fitted for.
    hold: int | None = None  # Frames that have to be over the threshold; null: the model's own, 1 in a fit.
    hold_window: int | None = None  # Of so many last frames; null: in a row.
    hysteresis: float | None = None  # Once a success, it stays one while the probability is above this; null: never.
    guards: tuple[str, ...] = ()  # What must hold beside for a success, such as gripper_width > 0.01.
    uncertainty_penalty: float = 0.0  # How many standard deviations of an ensemble are taken off its logit.
    combine_mode: Literal["replace", "add", "weighted"] = "replace"  # With the env's own reward; replace leaves it out.
    reward_weight: float = 1.0  # Of the model's reward.
    env_reward_weight: float = 0.0  # Of the env's own, with combine_mode weighted.
    terminate_on_success: bool = False  # End an episode where the model says success.
    env_success_ends: bool = False  # Let the env's own success end episodes, though that is ground truth.
    batch_size: int = 256  # Frames that are scored together.
    backend: Literal["auto", "torch", "onnx", "onnx_int8"] = "auto"  # What scores; auto: ONNX Runtime on a CPU.
    precision: Literal["f32", "bf16"] = "f32"  # Of torch's arithmetic; bf16 only where this machine has it.
    debug_save_dir: str | None = None  # Write scored frames as pictures, sorted by what the model says of them.
    debug_images: int = 1000  # Pictures kept there, at most, of either kind; newer ones replace older ones.

    def __post_init__(self) -> None:
        for key in ("success_reward", "fail_reward", "env_reward_weight", "uncertainty_penalty"):
            require(math.isfinite(getattr(self, key)), key, "must be finite")
        require(self.uncertainty_penalty >= 0, "uncertainty_penalty", "must not be negative")
        for key in ("hold", "hold_window", "batch_size", "debug_images", "reward_interval"):
            value = getattr(self, key)
            require(value is None or value >= 1, key, "must be at least 1")
        for text in self.guards:
            try:
                parse_guard(text)
            except ValueError as error:
                require(False, "guards", str(error))
        self._check_threshold()
        self._check_weights()

    def _check_threshold(self) -> None:
        for key in ("reward_threshold", "hysteresis"):
            value = getattr(self, key)
            require(value is None or 0 < value < 1, key, "must be greater than 0 and less than 1")
        if self.hysteresis is not None and self.reward_threshold is not None:
            require(self.hysteresis <= self.reward_threshold, "hysteresis", "must not be above reward_threshold")
        given = {
            "hold": (self.hold or 1) > 1,
            "hold_window": self.hold_window,
            "hysteresis": self.hysteresis,
            "reward_interval": self.reward_interval > 1,
        }
        for key, value in given.items():
            alone = self.reward_mode == "per_step" or not value
            require(alone, key, "is for reward_mode per_step: terminal looks at one frame only")
        ends = self.reward_mode == "per_step" or not self.terminate_on_success
        require(ends, "terminate_on_success", "is for reward_mode per_step: terminal is not asked before the end")
        enough = self.hold_window is None or (self.hold is not None and self.hold_window >= self.hold)
        require(enough, "hold_window", "must be at least hold, which must be given too")

    def _check_weights(self) -> None:
        ordered = self.success_reward > self.fail_reward
        require(ordered, "success_reward", "must be greater than fail_reward, or there is nothing to learn from it")
        counts = 0 < self.reward_weight < math.inf
        why = "must be greater than 0 and finite: the model would not count (use_reward_model=false leaves it out)"
        require(counts, "reward_weight", why)
        mixed = self.combine_mode == "weighted" or self.env_reward_weight == 0
        require(
            mixed, "env_reward_weight", f"is for combine_mode weighted; with '{self.combine_mode}' nothing reads it"
        )
