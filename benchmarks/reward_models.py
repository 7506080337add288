"""How good reward models are on actors that their training data has not seen, and what that depends on.

    python benchmarks/reward_models.py            the recipes as they are, three seeds: against the targets
    python benchmarks/reward_models.py --study    one seed, and one thing changed at a time: the table in docs/study.md

The test episodes are those of policies that PPO trained on the dense reward, stopped at several points, with other
noise than the experts of the training data have. Successes are taken as these policies make them; failures are chosen
hard: at least half come within twice the tolerance. Every frame of theirs is scored.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from measure import Row, machine, say, table
from plaudit.data import EpisodeStore
from plaudit.pipelines import collect, fit, load, load_fit, train
from plaudit.utils.threads import wait_quietly

COLLECTION, TRAINING = "reward.data_collection", "reward.training"
POLICY_SEED = 7
SUCCESSES, FAILURES = 300, 400


@dataclass(frozen=True)
class Task:
    """What is measured.

    Attributes:
        recipe: Its name.
        steps: At which of the policy's checkpoints it acts: one that mostly fails, one on the way, one that succeeds.
        axes: Numbers at the end of `state` that are five times the way from the object to the goal.
        tolerance: Metres.
        accuracy: What the balanced accuracy should be.
        noise: Of the successes' actors and of the failures'; other than in the recipe.
        drift: Of the failures' actors.
    """

    recipe: str
    steps: tuple[int, int, int]
    axes: int
    tolerance: float
    accuracy: float
    noise: tuple[float, float]
    drift: float


TASKS = {
    "push_cube": Task("push_cube", (53_248, 102_400, 151_552), 2, 0.1, 0.98, (0.25, 0.3), 0.8),
    "pick_cube": Task("pick_cube", (303_104, 352_256, 503_808), 3, 0.025, 0.96, (0.1, 0.12), 0.6),
}

STUDY: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "as the recipe": ((), ()),
    "375 + 375 episodes": ([f"{COLLECTION}.max_{kind}_trajectories=375" for kind in ("positive", "negative")], ()),
    "750 + 750 episodes": ([f"{COLLECTION}.max_{kind}_trajectories=750" for kind in ("positive", "negative")], ()),
    "450 + 450 episodes, all frames": (
        [f"{COLLECTION}.frames_per_episode=null"]
        + [f"{COLLECTION}.max_{kind}_trajectories=450" for kind in ("positive", "negative")],
        (),
    ),
    "4 frames an episode": ([f"{COLLECTION}.frames_per_episode=4"], ()),
    "128 x 128 pixels": (["env.cfg.camera_size=[128,128]"], ()),
    "base camera": ([f"{COLLECTION}.image_keys=[base_camera]"], ()),
    "wrist camera": ([f"{COLLECTION}.image_keys=[wrist_camera]"], ()),
    "both cameras": ([f"{COLLECTION}.image_keys=[base_camera,wrist_camera]"], ()),
    "width 32": ((), ["reward.model.width=32"]),
    "stem 3x3": ((), ["reward.model.stem=3x3"]),
    "EfficientNet-lite0, frozen": (
        (),
        [f"reward.model.{key}" for key in ("model_type=resnet_reward", "arch=efficientnet_lite0", "pooling=conv")]
        + ["reward.model.freeze_encoder=true"],
    ),
    "4,000 steps": ((), [f"{TRAINING}.max_steps=4000"]),
    "no augmentation": ((), [f"{TRAINING}.augment.enabled=false"]),
    "strong augmentation": (
        (),
        [f"{TRAINING}.augment.{key}" for key in ("shift=4", "brightness=0.3", "contrast=0.3", "colour=0.2")],
    ),
    "randomised renders": (["env.cfg.randomize=1.0"], ()),
}
"""What is changed, to the words for `collect` and for `fit`. With randomised renders, those of the test are too."""


class Bench:
    """Data sets and fits, in a folder in which nothing is made twice."""

    def __init__(self, folder: Path, task: Task, words: Sequence[str] = ()) -> None:
        self.folder, self.task, self.words = folder / task.recipe, task, words

    def data(self, name: str, words: Sequence[str]) -> tuple[Path, dict[str, Any]]:
        """Training data, and what `collect` says of it."""
        place = self.folder / "data" / name
        config = load(self.task.recipe, [f"{COLLECTION}.save_dir={json.dumps(str(place))}", *words, *self.words])
        return place, _once(place.with_suffix(".json"), lambda: collect(config, quiet=True))

    def policies(self) -> list[Path]:
        """The checkpoints at `task.steps` of a policy trained on the dense reward."""
        home = self.folder / "policy"
        if not (home / "done").exists():
            rounds = self.task.steps[-1] // (256 * 16) + 1
            words = [f"runtime.output_dir={home}", f"runtime.seed={POLICY_SEED}", f"runtime.iterations={rounds}"]
            words += ["runtime.keep_checkpoints=0", "runtime.eval_freq=0", "runtime.eval_episodes=8"]
            words += ["runtime.save_freq=50000", "runtime.video_episodes=0", *self.words]
            train(load(self.task.recipe, words), quiet=True)
            (home / "done").touch()
        return [next(home.glob(f"*/checkpoints/step_{step}.pt")) for step in self.task.steps]

    def test(self, name: str, words: Sequence[str]) -> Path:
        """Test data of other actors: successes as they come, failures of which half are near misses."""
        place = self.folder / "test" / name
        if place.with_suffix(".done").exists():
            return place
        bad, middling, good = ({"kind": "policy", "checkpoint": str(path)} for path in self.policies())
        expert, (calm, rough), drift = {"kind": "expert"}, self.task.noise, self.task.drift
        succeeding = [{**middling, "noise": calm}, {**good, "noise": 0.5 * calm}, {**expert, "noise": calm}]
        failing = [
            {**bad, "weight": 0.5},
            {**good, "noise": rough, "drift": drift, "weight": 4.0},
            {**middling, "noise": calm},
            {**expert, "noise": rough, "drift": drift, "weight": 4.0},
        ]
        for failures, actors, seed in ((0, succeeding, 98), (FAILURES, failing, 99)):
            keys = [f"{COLLECTION}.save_dir={json.dumps(str(place))}", f"{COLLECTION}.actors={_hydra(actors)}"]
            keys += [f"runtime.seed={seed}", *self.words]
            keys += [f"{COLLECTION}.frames_per_episode=null", f"{COLLECTION}.max_positive_trajectories={SUCCESSES}"]
            keys += [f"{COLLECTION}.max_negative_trajectories={failures}"]
            collect(load(self.task.recipe, [*words, *keys]), quiet=True)
        place.with_suffix(".done").touch()
        return place

    def near_misses(self, place: Path) -> float:
        """Share of the failures that come within twice the tolerance."""
        near = [
            np.linalg.norm(episode.state[:, -self.task.axes :] / 5, axis=1).min() < 2 * self.task.tolerance
            for episode in EpisodeStore(place)
            if not episode.positive and episode.state is not None
        ]
        return float(np.mean(near))

    def fit(self, name: str, words: Sequence[str], data: Path, test: Path, seed: int) -> dict[str, Any]:
        """What a fit says, and where it is."""
        place = self.folder / "fits" / f"{name}, seed {seed}"
        keys = [f"{TRAINING}.save_dir={json.dumps(str(place))}", f"{TRAINING}.data.test_path={json.dumps(str(test))}"]
        config = load_fit(None, [*keys, f"runtime.seed={seed}", *words, *self.words], data=data)
        return _once(place / "result.json", lambda: fit(config, quiet=True))


def _once(done: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What something says, with the CPU time that it took, from the file where it was made before."""
    if not done.exists():
        started = time.process_time()
        result = make()
        done.write_text(json.dumps({**result, "cpu_seconds": time.process_time() - started}, default=str))
    found: dict[str, Any] = json.loads(done.read_text())
    return found


def _hydra(actors: Sequence[dict[str, Any]]) -> str:
    return "[" + ",".join("{" + ",".join(f"{key}:{value}" for key, value in one.items()) + "}" for one in actors) + "]"


def against_the_targets(bench: Bench, seeds: Sequence[int]) -> list[Row]:
    """The recipe as it is, with several seeds."""
    name, task = bench.task.recipe, bench.task
    data, gathered = bench.data("as the recipe", ())
    test = bench.test("as the recipe", ())
    rows = [
        Row(f"{name}: seconds to collect", gathered["seconds"], "s", target=120, lower_is_better=True),
        Row(f"{name}: failed test episodes", EpisodeStore(test).counts.negative, "", target=300),
        Row(f"{name}: share of near misses among them", bench.near_misses(test), "", target=0.5),
    ]
    found = []
    for seed in seeds:
        found.append(bench.fit("as the recipe", (), data, test, seed))
        say(f"{name}, seed {seed}: {_words(found[-1])}")
    for what, goal, lower in (
        ("balanced_accuracy", task.accuracy, False),
        ("episode_false_positive_rate", 0.02, True),
        ("ece", 0.03, True),
    ):
        values = [one["metrics"][what] for one in found]
        note = f"by seed: {', '.join(f'{value:.4f}' for value in values)}"
        for which, value in (("median", statistics.median(values)), ("worst", (max if lower else min)(values))):
            rows.append(Row(f"{name}: {what}, {which}", value, "", target=goal, lower_is_better=lower, note=note))
    slowest = max(one["seconds"] for one in found)
    return [*rows, Row(f"{name}: seconds of the slowest fit", slowest, "s", target=90, lower_is_better=True)]


def study(bench: Bench, wanted: Sequence[str]) -> None:
    """One line for each change, in the order of `STUDY`."""
    header = "| changed | collect, CPU s | fit, CPU s | balanced accuracy | AUC | false positives by episode | ECE |"
    lines = [header, "|---|---|---|---|---|---|---|"]
    for name in wanted or STUDY:
        gather, words = STUDY[name]
        data, gathered = bench.data(name if gather else "as the recipe", gather)
        test = bench.test(
            name if any(word.startswith(("env.", COLLECTION + ".image")) for word in gather) else "as the recipe",
            [word for word in gather if "trajectories" not in word],
        )
        result = bench.fit(name, words, data, test, 0)
        found = result["metrics"]
        cells = [name, f"{gathered['cpu_seconds']:.0f}", f"{result['cpu_seconds']:.0f}"]
        cells += [f"{found['balanced_accuracy']:.1%}", f"{found['roc_auc']:.4f}"]
        cells += [f"{found['episode_false_positive_rate']:.1%}", f"{found['ece']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
        say(f"{bench.task.recipe}, {name}: {_words(result)}")
    print(f"\n## {bench.task.recipe}\n\n" + "\n".join(lines))


def _words(result: dict[str, Any]) -> str:
    found = result["metrics"]
    shown = ("balanced_accuracy", "roc_auc", "episode_false_positive_rate", "ece")
    return ", ".join(f"{name} {found[name]:.4f}" for name in shown) + f", {result['seconds']:.0f} s"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--study", nargs="*", metavar="CHANGE", choices=list(STUDY), help="all of them by default")
    parser.add_argument("--threads", type=int, default=0, help="of each collection and fit; 0 takes every core")
    parser.add_argument("--folder", type=Path, help="keep all here; what is there is not made again")
    args = parser.parse_args()
    wait_quietly()
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as scratch:
        benches = [
            Bench(args.folder or Path(scratch), TASKS[name], [f"runtime.threads={args.threads}"]) for name in args.tasks
        ]
        if args.study is not None:
            for bench in benches:
                study(bench, args.study)
            return
        rows = [row for bench in benches for row in against_the_targets(bench, args.seeds)]
    print(table(rows))
    print(machine())


if __name__ == "__main__":
    main()
