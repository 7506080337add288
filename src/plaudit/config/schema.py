"""The config tree as frozen dataclasses: every key, its type, its default, and one line on what it does.

Nothing here imports torch or a simulator, so that a wrong key is found in a moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from plaudit.config.reward_schema import RewardConfig
from plaudit.config.structured import REQUIRED, require

SEED_LIMIT = 2**32 - 4_000_000
"""NumPy's seeds end at 2**32, and evaluation and the envs add to the run's seed."""

Metric: TypeAlias = Literal[
    "auto",
    "return",
    "length",
    "success_once",
    "success_at_end",
    "model_success_once",
    "model_success_at_end",
    "eval/return",
    "eval/length",
    "eval/success_once",
    "eval/success_at_end",
    "eval/model_success_once",
    "eval/model_success_at_end",
]
"""What `runtime.best_metric` may be; the prefix is the one that logs show."""


@dataclass(frozen=True)
class RuntimeConfig:
    """How a run is carried out, whatever it trains."""

    exp_name: str = "plaudit"  # Experiment name; the run's folder is <output_dir>/<exp_name>_<timestamp>.
    output_dir: str = "outputs"  # Where run folders go.
    mode: Literal["sync", "async"] = "sync"  # async: SAC learns in a process of its own, while acting goes on.
    seed: int = 0  # Seed of everything random in the run.
    cuda: bool = True  # Use a GPU where there is one; without one, the CPU is used and a line says so.
    headless: bool = True  # False opens the simulator's viewer on the first env.
    iterations: int = 100  # Rollout-and-update rounds; more where reward.audit refreshes a model, see its prolong.
    rollout_steps: int = 16  # Steps of every env in one rollout.
    eval_freq: int = 50_000  # Env steps between evaluations; 0 evaluates only at the end.
    eval_episodes: int = 256  # Episodes of one evaluation, spread evenly over the evaluation envs.
    save_freq: int = 50_000  # Env steps between numbered checkpoints; `latest` is written with each of them.
    save_seconds: float = 0.0  # Seconds after which `latest` is written also between those; 0 never does.
    keep_checkpoints: int = 5  # Numbered checkpoints kept; older ones are deleted. 0 keeps all.
    best_metric: Metric = "auto"  # Evaluation metric that picks `best`; auto: the headline success, else return.
    stop_at: float | None = None  # Stop early once an evaluation's best_metric reaches this.
    video_episodes: int = 4  # Episodes filmed after the last evaluation; 0 for none.
    threads: int = 0  # CPU threads for simulation, rendering and SAC's critics, in mode async all; 0 takes every core.
    imports: tuple[str, ...] = ()  # Python modules to import first: those that register your own envs or algorithms.
    resume: str | None = None  # A run or checkpoint whose policy this run starts from; --resume goes on with a run.
    use_wandb: bool = False  # Also log to Weights & Biases.
    wandb_project_name: str = "plaudit"  # Weights & Biases project.

    def __post_init__(self) -> None:
        require(_is_plain_name(self.exp_name), "exp_name", "must be a plain name, without '/' or '\\'")
        require(bool(self.output_dir), "output_dir", "must not be empty")
        require(0 <= self.seed < SEED_LIMIT, "seed", f"must be at least 0 and less than {SEED_LIMIT}")
        for key in ("iterations", "rollout_steps", "eval_episodes", "save_freq"):
            require(getattr(self, key) >= 1, key, "must be at least 1")
        for key in ("eval_freq", "save_seconds", "keep_checkpoints", "video_episodes", "threads"):
            require(getattr(self, key) >= 0, key, "must not be negative")


def _is_plain_name(name: str) -> bool:
    """Whether a text can be part of one folder's name."""
    return bool(name.strip(". ")) and name.isprintable() and not set(name) & set("/\\")


@dataclass(frozen=True)
class EnvConfig:
    """Which env, and how it is set up. `train` and `eval` are laid over `cfg` for that use only."""

    id: str = REQUIRED  # Registered id such as PushCube, gym:<Gymnasium id>, or maniskill:<task>.
    cfg: dict[str, Any] = field(default_factory=dict)  # The env's own keys; `plaudit envs NAME` lists them.
    train: dict[str, Any] = field(default_factory=dict)  # Keys of `cfg` that differ for training.
    eval: dict[str, Any] = field(default_factory=dict)  # Keys of `cfg` that differ for evaluation.


@dataclass(frozen=True)
class NetworkConfig:
    """One network of a policy."""

    type: Literal["mlp", "cnn"] = "mlp"  # mlp for vectors; cnn adds an image encoder before the mlp.
    hidden_sizes: tuple[int, ...] = (256, 256)  # Width of each hidden layer.
    activation: Literal["relu", "tanh", "elu", "silu", "gelu"] = "tanh"  # Between layers.

    def __post_init__(self) -> None:
        require(all(size >= 1 for size in self.hidden_sizes), "hidden_sizes", "every width must be at least 1")


@dataclass(frozen=True)
class PolicyConfig:
    """The policy: its class, its own keys, and its networks."""

    name: str = "actor_critic"  # Registered policy.
    cfg: dict[str, Any] = field(default_factory=dict)  # The policy's own keys.
    actor: NetworkConfig | None = None  # Required by actor_critic.
    critic: NetworkConfig | None = None  # Required by actor_critic.


@dataclass(frozen=True)
class AlgorithmConfig:
    """The learning algorithm and its own keys."""

    name: str = "ppo"  # Registered algorithm.
    cfg: dict[str, Any] = field(default_factory=dict)  # The algorithm's own keys, PPOConfig for ppo.


@dataclass(frozen=True)
class FitConfig:
    """What a fit takes of an experiment: it needs neither an env nor a policy."""

    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)


@dataclass(frozen=True)
class Config:
    """A whole experiment."""

    env: EnvConfig = field(default_factory=EnvConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)


@dataclass(frozen=True)
class RunConfig:
    """What `plaudit run` takes of a recipe: how each stage differs from the rest of it."""

    episodes: int = 256  # Fresh episodes on which each policy is judged at the end.
    collect: dict[str, Any] = field(default_factory=dict)  # Keys that differ while data is collected.
    fit: dict[str, Any] = field(default_factory=dict)  # Keys that differ for the reward model's fit.
    train: dict[str, Any] = field(default_factory=dict)  # Keys that differ for the policy on the learned reward.

    def __post_init__(self) -> None:
        require(self.episodes >= 1, "episodes", "must be at least 1")
