"""The keys of the algorithms and of their policies: `algorithm.cfg` and `policy.cfg`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from plaudit.config.structured import REQUIRED, require

EncoderName: TypeAlias = Literal["cnn", "resnet10"]
"""What turns a camera's pictures into numbers in a policy."""


@dataclass(frozen=True)
class EncoderConfig:
    """What the `policy.cfg` of every policy that looks says of its encoder."""

    encoder: EncoderName = "cnn"  # Of networks of type cnn, which share it: a small one, or a ResNet-10 for GPUs.
    pretrained_encoder_path: str | None = None  # Where resnet10 starts: a file with torchvision's names.
    freeze_encoder: bool = False  # Leave resnet10 as that file has it, and train only what comes after it.

    def __post_init__(self) -> None:
        given = self.pretrained_encoder_path is not None
        require(not given or self.encoder == "resnet10", "pretrained_encoder_path", "is for encoder resnet10")
        why = "needs pretrained_encoder_path: an encoder that is random and stays so sees little"
        require(given or not self.freeze_encoder, "freeze_encoder", why)


@dataclass(frozen=True)
class ActorCriticConfig(EncoderConfig):
    """`policy.cfg` of `actor_critic`."""

    squash: bool = False  # tanh-squashed Gaussian instead of a plain one (whose samples the env clips).
    init_log_std: float = -0.5  # Logarithm of the first standard deviation, in units of the action range's half.
    resume_log_std: float | None = None  # What a policy of runtime.resume begins with; null: with its own.
    normalize_obs: bool = True  # Keep running mean and variance of vector observations, saved with the model.

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("init_log_std", "resume_log_std"):
            value = getattr(self, key)
            require(value is None or math.isfinite(value), key, "must be finite")


@dataclass(frozen=True)
class PPOConfig:
    """`algorithm.cfg` of `ppo` (Schulman et al., 2017)."""

    learning_rate: float = 3e-4  # Adam's step size at the start.
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"  # How it goes to zero over the run.
    n_epochs: int = 4  # Passes over each rollout.
    batch_size: int = 256  # Samples in a minibatch.
    gamma: float = 0.99  # Discount.
    gae_lambda: float = 0.95  # Trace decay of generalised advantage estimation.
    clip_coef: float = 0.2  # Range of the probability ratio.
    clip_value: float | None = None  # Range of the value's change in one update; null does not clip.
    ent_coef: float = 0.0  # Weight of the entropy bonus.
    noise_correlation: float = 0.0  # Of exploration noise from step to step; 0.7 finds rewards that are rare.
    vf_coef: float = 0.5  # Weight of the value loss.
    critic_warmup: float = 0.0  # Share of the run in which only the critic learns, at its start or after a refresh.
    max_grad_norm: float = 0.5  # Gradients longer than this are shortened to it.
    normalize_advantage: bool = True  # Zero mean and unit variance in each minibatch.
    target_kl: float | None = None  # Stop an update's epochs beyond this divergence; null never does.
    image_shift: int = 0  # Pixels, at most, by which pictures are moved in updates; what is said of them should stay.
    image_shift_coef: float = 0.1  # Weight of that wish (DrAC's) in the loss.

    def __post_init__(self) -> None:
        require(0 < self.learning_rate < math.inf, "learning_rate", "must be greater than 0 and finite")
        for key in ("n_epochs", "batch_size"):
            require(getattr(self, key) >= 1, key, "must be at least 1")
        for key in ("gamma", "gae_lambda"):
            require(0 <= getattr(self, key) <= 1, key, "must be between 0 and 1")
        require(0 <= self.critic_warmup < 1, "critic_warmup", "must be at least 0 and less than 1")
        require(0 <= self.noise_correlation < 1, "noise_correlation", "must be at least 0 and less than 1")
        for key in ("clip_coef", "clip_value", "max_grad_norm", "target_kl"):
            value = getattr(self, key)
            require(value is None or value > 0, key, "must be greater than 0")
        for key in ("ent_coef", "vf_coef", "image_shift"):
            require(getattr(self, key) >= 0, key, "must not be negative")
        require(0 < self.image_shift_coef < math.inf, "image_shift_coef", "must be greater than 0 and finite")


@dataclass(frozen=True)
class SACPolicyConfig(EncoderConfig):
    """`policy.cfg` of `sac`: a tanh-squashed Gaussian, and an ensemble of critics."""

    num_critics: int = 2  # Critics, each with weights of its own; RLPD has 10.
    critic_layer_norm: bool = False  # LayerNorm after each hidden layer: keeps values of unseen actions in bounds.
    actor_layer_norm: bool = False  # The same for the actor.
    resume_log_std: float | None = None  # Of a policy of runtime.resume at first, everywhere; null: its own.

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.resume_log_std is None or math.isfinite(self.resume_log_std), "resume_log_std", "must be finite")
        require(self.num_critics >= 1, "num_critics", "must be at least 1")


@dataclass(frozen=True)
class SACConfig:
    """`algorithm.cfg` of `sac` (Haarnoja et al., 2018), and with demonstrations of RLPD (Ball et al., 2023)."""

    learning_rate: float = 3e-4  # Adam's step size, of actor, critics and temperature.
    gamma: float = 0.99  # Discount.
    n_step: int = 1  # Rewards that are summed before the critics are asked.
    batch_size: int = 256  # Transitions in a gradient step.
    update_ratio: float = 1.0  # Gradient steps for each env step, all envs counted; 0.25 is one for every four.
    actor_interval: int = 1  # Gradient steps of the critics for each one of actor and temperature.
    learning_starts: int = 1000  # Env steps before learning begins, acted at random, or as runtime.resume does.
    tau: float = 0.005  # How far the target networks follow in a step.
    min_critics: int = 2  # Target critics, drawn anew for each step, of which the least is believed.
    actor_critics: Literal["min", "mean"] = "min"  # What the actor climbs: the least critic, or all of them together.
    temperature: float | None = None  # Weight of the entropy; null learns it.
    init_temperature: float = 1.0  # Where learning it begins.
    target_entropy: float | None = None  # What it is learned for, with actions of -1 to 1; null: -1 for each of them.
    backup_entropy: bool = True  # Count the entropy of what comes as part of a value.
    image_shift: int = 0  # Pixels, at most, by which pictures are moved whenever they are learned from (DrQ).
    capacity: int = 1_000_000  # Transitions that are kept; each episode takes the place of one more.
    storage: Literal["memory", "disk"] = "memory"  # disk: files of the run that are mapped, for more than memory has.
    demonstrations: str | None = None  # A data set in any layout that is known, whose episodes are learned from.
    num_demonstrations: int | None = None  # How many episodes of it; null takes all there are.
    demonstration_outcome: Literal["success", "any"] = "success"  # any: failures too, with the rewards that they get.
    demonstration_share: float = 0.5  # Of every batch, while there are demonstrations.
    cloning: float = 0.0  # Weight of the squared error to what was shown, beside what the critics say of an action.

    def __post_init__(self) -> None:
        require(0 < self.learning_rate < math.inf, "learning_rate", "must be greater than 0 and finite")
        require(0 <= self.gamma <= 1, "gamma", "must be between 0 and 1")
        for key in ("n_step", "batch_size", "actor_interval", "min_critics", "num_demonstrations"):
            value = getattr(self, key)
            require(value is None or value >= 1, key, "must be at least 1")
        require(0 < self.update_ratio < math.inf, "update_ratio", "must be greater than 0 and finite")
        for key in ("learning_starts", "image_shift"):
            require(getattr(self, key) >= 0, key, "must not be negative")
        require(0 < self.tau <= 1, "tau", "must be greater than 0 and at most 1")
        fixed = self.temperature is None or 0 <= self.temperature < math.inf
        require(fixed, "temperature", "must be at least 0 and finite, or null to learn it")
        require(0 < self.init_temperature < math.inf, "init_temperature", "must be greater than 0 and finite")
        finite = self.target_entropy is None or math.isfinite(self.target_entropy)
        require(finite, "target_entropy", "must be finite")
        require(self.capacity >= self.batch_size, "capacity", "must be at least batch_size")
        require(0 < self.demonstration_share < 1, "demonstration_share", "must be greater than 0 and less than 1")
        require(0 <= self.cloning < math.inf, "cloning", "must not be negative or infinite")
        given = self.demonstrations is not None
        require(
            given or self.num_demonstrations is None, "num_demonstrations", "needs demonstrations, which names none"
        )
        require(given or not self.cloning, "cloning", "needs demonstrations, which names none")
        plain = self.demonstration_outcome == "success"
        why = "must be 0 with demonstration_outcome any: failures should not be cloned"
        require(plain or not self.cloning, "cloning", why)
        require(given or plain, "demonstration_outcome", "needs demonstrations, which names none")
        some = self.demonstrations is None or 0 < self.shown < self.batch_size
        require(some, "demonstration_share", f"leaves nothing of one side in a batch of {self.batch_size}")

    @property
    def shown(self) -> int:
        """Transitions of demonstrations in every batch, while there are any."""
        return round(self.batch_size * self.demonstration_share)


@dataclass(frozen=True)
class BCConfig:
    """`algorithm.cfg` of `bc`: behaviour cloning, which never acts to learn. What `runtime` counts in env steps
    (`eval_freq`, `save_freq`) it counts in gradient steps.
    """

    demonstrations: str = REQUIRED  # A data set in any layout that is known, whose successes are learned from.
    num_demonstrations: int | None = None  # How many episodes of it; null takes all successes.
    learning_rate: float = 1e-3  # Adam's step size.
    batch_size: int = 256  # Transitions in a gradient step.
    updates: int = 100  # Gradient steps in an iteration.
    loss: Literal["mse", "likelihood"] = (
        "mse"  # Squared error of the mean action; or minus the log density of a shown one.
    )
    noise: float = 0.0  # On the vectors observed, in standard deviations of those that were shown.

    def __post_init__(self) -> None:
        require(0 < self.learning_rate < math.inf, "learning_rate", "must be greater than 0 and finite")
        for key in ("num_demonstrations", "batch_size", "updates"):
            value = getattr(self, key)
            require(value is None or value >= 1, key, "must be at least 1")
        require(0 <= self.noise < math.inf, "noise", "must not be negative or infinite")
