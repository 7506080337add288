"""SAC while its audit refreshes the reward model: what is learned from afterwards is the new model's word alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from audit_samples import RECIPE, config, slides
from learned_samples import pictures
from test_demonstrating import PLACES, episode

from plaudit.config.schema import Config, FitConfig
from plaudit.data import Episode, EpisodeStore
from plaudit.pipelines import fit, train
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.rewards.reward_env import RewardedEnv
from plaudit.rewards.reward_function import RewardManager
from plaudit.rl.algorithms.sac import SAC
from plaudit.rl.buffers.replay_buffer import ReplayBuffer

SAC_KEYS = """
policy:
  name: sac
  actor: {hidden_sizes: [8]}
  critic: {hidden_sizes: [8]}
algorithm: {name: sac, cfg: {batch_size: 16, update_ratio: 0.05, learning_starts: 128, capacity: 2000,
  demonstrations: DEMONSTRATIONS}}
"""

FIT = [
    "reward.use_reward_model=false",
    "reward.model.width=8",
    "reward.model.encoder_stages=2",
    "reward.model.hidden_dim=16",
    "reward.training.num_epochs=12",
    "reward.training.figures=false",
]


def sunny(number: int) -> Episode:
    """An episode of which frames beyond 0 are called successes; in truth those beyond 0.5 are. Every other has none."""
    places = np.random.default_rng(number).uniform(-1, 1 - number % 2, 6)
    labels = (places > 0).astype(np.int8)
    return Episode(
        id=f"sunny-{number:03d}",
        frames={"base_camera": pictures(4 * places).numpy()},
        labels=labels,
        frame_index=np.arange(1, 7, dtype=np.int32),
        length=6,
        success=bool(labels.any()),
        label_source="simulator",
    ).check()


def prepare(folder: Path) -> tuple[Path, Path]:
    """Labelled data and a demonstration; and, whose paths are returned, a recipe and a convolutional model that was
    fitted to wrong labels.
    """
    EpisodeStore.create(folder / "data").add([slides(number) for number in range(40)])
    EpisodeStore.create(folder / "wrong").add([sunny(number) for number in range(40)])
    EpisodeStore.create(folder / "shown").add([episode("shown")])
    head, _, tail = RECIPE.partition("policy:")
    text = head + SAC_KEYS.replace("DEMONSTRATIONS", str(folder / "shown")) + tail[tail.index("runtime:") :]
    places = f"data: {{path: {folder / 'data'}}}, cache_dir: {folder / 'cache'}"
    recipe = folder / "recipe.yaml"
    recipe.write_text(text.replace("training: {", f"training: {{{places}, "))
    wrong = config(recipe, f"reward.training.data.path={folder / 'wrong'}", *FIT)
    return recipe, Path(fit(FitConfig(wrong.runtime, wrong.reward), quiet=True)["artifact"])


class Watcher:
    """Sees, before every update, whose the rewards are that are about to be learned from."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.versions: list[int] = []
        update = SAC.update

        def watched(algorithm: SAC) -> dict[str, float]:
            who = algorithm.relabelled
            assert isinstance(who, RewardedEnv) and algorithm.demonstrations is not None
            self.buffer, self.shown = algorithm.buffer, algorithm.demonstrations
            for replay in (self.buffer, self.shown):
                assert (replay.columns["reward_id"][replay.transitions()] == who.reward_fingerprint).all()
                said = rewards(who.manager, places(replay))
                assert torch.equal(replay.columns["reward"][replay.transitions()], said)
            self.versions.append(who.version)
            return update(algorithm)

        monkeypatch.setattr(SAC, "update", watched)


def places(replay: ReplayBuffer) -> torch.Tensor:
    """Where the slider came to, with each of the transitions."""
    led_to = replay.obs(replay.next(replay.transitions()))
    assert isinstance(led_to, torch.Tensor)
    return led_to[:, 0] / 2


def rewards(manager: RewardManager, places: torch.Tensor) -> torch.Tensor:
    """What a model says of the slider at some places: asked now, and by nobody's memory."""
    return manager.compute_rewards({"base_camera": pictures(4 * places)})


def managed(settings: Config, place: Path) -> RewardManager:
    return RewardManager(RewardArtifact.load(place), settings.reward)


def test_after_a_refresh_every_reward_is_the_new_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plaudit.reporting.learning_curves.plot_curves", lambda *arguments: None)
    recipe, model = prepare(tmp_path)
    seen = Watcher(monkeypatch)
    settings = config(recipe, f"reward.checkpoint_path={model}", "reward.audit.on_alarm=refresh")
    result = train(settings, quiet=True)
    assert seen.versions[0] == 1 < seen.versions[-1] == result["audit"]["version"]

    # It made a difference, in what was tried and in what was shown.
    first = managed(settings, model)
    last = managed(settings, Path(result["run"]) / "audit" / f"reward_v{seen.versions[-1]}")
    for where in (places(seen.buffer), torch.from_numpy(PLACES[1:])):
        assert rewards(first, where).sum() > rewards(last, where).sum() > 0
