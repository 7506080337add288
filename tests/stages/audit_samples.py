"""A training run of a second whose reward model is wrong: it calls a success what is half of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from learned_samples import Slider, brightness, pictures

from plaudit.config.schema import Config
from plaudit.data import Episode, EpisodeStore
from plaudit.envs.registry import register_env
from plaudit.pipelines import load

torch.set_num_threads(1)

RECIPE = """
env: {id: test/slider, cfg: {num_envs: 16, poison: false, truth: true}}
policy:
  actor: {hidden_sizes: [8]}
  critic: {hidden_sizes: [8]}
algorithm: {cfg: {batch_size: 64, n_epochs: 1, learning_rate: 1e-3}}
runtime: {iterations: 6, rollout_steps: 8, eval_episodes: 16, eval_freq: 256, save_freq: 128, video_episodes: 0,
  cuda: false, threads: 1}
reward:
  use_reward_model: true
  backend: torch
  training: {augment: {enabled: false}, optim: {lr: 3e-3}, global_batch_size: 32}
  audit: {window: 64, min_claims: 8, min_claimed: 0.05, refresh_steps: 20}
"""


@register_env("test/slider", override=True)
class AuditedSlider(Slider):
    """A slider that a config can build. Its truth may be poisoned, or not be told."""

    def __init__(self, cfg: Any, device: Any = "cpu") -> None:
        super().__init__(cfg.num_envs, poison=cfg.poison)
        self.truth = cfg.truth

    def advance(self, action: torch.Tensor) -> Any:
        outcome = super().advance(action)
        if not self.truth:
            outcome.success = None
        return outcome


def slides(number: int) -> Episode:
    """An episode of which a frame is a success beyond 0.5, as in the env; what lies between 0 and 0.5 is left out, so
    that a model may call it what it likes.
    """
    random = np.random.default_rng(number)
    good = number % 2 == 0
    places = np.concatenate([random.uniform(-1, 0, 3), random.uniform(0.5, 1, 3) if good else random.uniform(-1, 0, 3)])
    return Episode(
        id=f"slide-{number:03d}",
        frames={"base_camera": pictures(4 * places).numpy()},
        labels=(places > 0.5).astype(np.int8),
        frame_index=np.arange(1, 7, dtype=np.int32),
        length=6,
        success=good,
        label_source="simulator",
    ).check()


def prepare(folder: Path, **model: Any) -> Path:
    """Data, a reward model that calls all beyond 0 a success, and a recipe, whose path is returned."""
    EpisodeStore.create(folder / "data").add([slides(number) for number in range(40)])
    brightness(**model).save(folder / "model")
    recipe = folder / "recipe.yaml"
    places = f"""
  checkpoint_path: {folder / "model"}
"""
    text = RECIPE.replace("  use_reward_model: true\n", f"  use_reward_model: true{places}")
    text = text.replace(
        "training: {", f"training: {{data: {{path: {folder / 'data'}}}, cache_dir: {folder / 'cache'}, "
    )
    recipe.write_text(text)
    return recipe


def config(recipe: Path, *words: str) -> Config:
    return load(recipe, [f"runtime.output_dir={recipe.parent / 'out'}", *words])


def policy_of(run: str | Path, name: str = "latest.pt") -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(Path(run) / "checkpoints" / name)["policy"]
    return weights


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
