"""What a learned reward adds to 20 demonstrations: RLPD on it, beside cloning the same 20, and SAC without any.

    python benchmarks/demonstrated.py --folder outputs/demonstrated             all of it: some four hours
    python benchmarks/demonstrated.py --tasks pick_cube --parts bc --seeds 0    a part of it
    python benchmarks/demonstrated.py --demonstrations 5                        with fewer

Every seed has demonstrations of its own, and a reward model fitted to scripted episodes of its own. `rlpd` and `sac`
learn on that model alone, in every step, and differ in nothing but the demonstrations; `oracle` is `rlpd` on the
simulator's own verdict; `plain` is `rlpd` whose actor does not clone beside. `bc` clones: first with all settings of a
sweep on two other seeds, with demonstrations and test episodes of their own, then with the best of them on the seeds
that are told. How many steps are best is left to evaluations on the way, for which cloning is given the truth, while
the others have their model's word.

The success told is the true one, of 256 episodes that nothing else has seen. When RLPD got to its target is told by the
evaluations on the way, of 128 episodes. Seconds are of collecting and updating.
What is finished is kept in the folder, and made again only where its settings have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from learn import read_log
from measure import Row, machine, median_and_worst, say, table
from plaudit.config.schema import Config
from plaudit.config.structured import to_dict
from plaudit.pipelines import collect, evaluate, fit, load, load_fit, train
from plaudit.utils.atomic_io import whole_file

TARGETS: dict[str, float | None] = {"pick_cube": 0.9, "peg_insertion": None}
"""Tasks, and the true success that RLPD should reach in `STEPS` and `SECONDS`; `None` where it is only told."""

STEPS, SECONDS = 60_000, 180

HEADLINE = "success_at_end"
"""What success is in both."""

EPISODES = 256

VALIDATION = (100, 101)
"""Seeds that cloning is tuned on."""

SWEEP = [
    [
        f"algorithm.cfg.learning_rate={rate}",
        f"policy.actor.hidden_sizes=[{width},{width}]",
        f"algorithm.cfg.noise={noise}",
    ]
    for rate, width, noise in itertools.product((3e-4, 1e-3, 3e-3), (128, 256), (0.0, 0.03))
]
"""Settings of cloning that are tried, all with the recipe's loss, `mse`: four with `likelihood` came to 15 % at most
(docs/sac.md). The number of steps is the best of each run's evaluations.
"""

_SHORT = ["runtime.iterations=5", "runtime.eval_episodes=8", "env.eval.num_envs=8"]

QUICK = {
    "collect": [
        "reward.data_collection.max_positive_trajectories=40",
        "reward.data_collection.max_negative_trajectories=40",
    ],
    "fit": ["reward.training.max_steps=20", "reward.training.figures=false"],
    "rlpd": [*_SHORT, "algorithm.cfg.learning_starts=64"],
    "bc": [*_SHORT, "algorithm.cfg.updates=20"],
}
"""What makes each stage short, and its result worthless."""

Result = dict[str, Any]

Curve: TypeAlias = Sequence[tuple[float, float, float]]
"""Evaluations of a run: env steps and seconds so far, and true success."""


class Bench:
    """Data, models and policies, in a folder in which nothing is made twice.

    Args:
        folder: Where all is kept.
        words: Overrides for everything.
        quick: Whether to see only that it works.
        demonstrations: How many are learned from.
    """

    def __init__(self, folder: Path, words: Sequence[str], quick: bool, demonstrations: int = 20) -> None:
        self.folder, self.words, self.quick, self.demonstrations = folder.absolute(), list(words), quick, demonstrations
        self.episodes = 8 if quick else EPISODES
        self.sweep = SWEEP[:2] if quick else SWEEP

    def data(self, recipe: str, seed: int) -> Path:
        """Episodes that a recipe collects: a task's own for its reward model, RLPD's as demonstrations."""
        words = [f"runtime.seed={seed}", *self.words, *(QUICK["collect"] if self.quick and recipe in TARGETS else [])]
        whole = to_dict(load(recipe, words))
        decide = [seed, whole["env"], whole["reward"]["data_collection"]]
        place = self.folder / "data" / f"{recipe}-{seed}-{self._key(decide)}"
        config = load(recipe, [*words, f"reward.data_collection.save_dir={_quoted(place)}"])
        self._once(f"{recipe}-data-{seed}", decide, lambda: collect(config, quiet=True))
        return place

    def model(self, task: str, seed: int) -> Path:
        """A reward model for a task."""
        words = [f"runtime.seed={seed}", *self.words, *(QUICK["fit"] if self.quick else [])]
        words += [f"reward.training.data.path={_quoted(self.data(task, seed))}"]
        reward = to_dict(load_fit(f"rlpd_{task}", words))["reward"]
        decide = [seed, reward["model"], reward["training"]]
        place = self.folder / "models" / f"{task}-{seed}-{self._key(decide)}"
        config = load_fit(f"rlpd_{task}", [*words, f"reward.training.save_dir={_quoted(place)}"])
        self._once(f"{task}-model-{seed}", decide, lambda: fit(config, quiet=True))
        return place

    def policy(self, name: str, recipe: str, seed: int, words: Sequence[str]) -> Result:
        """How a policy fared: `success` in truth, `env_steps`, `seconds`, `best_step`, at which it was saved, and its
        `curve`: env steps, seconds and true success of the evaluations on the way.
        """
        home = self.folder / "runs" / f"{name}-{seed}"
        keys = [f"runtime.output_dir={_quoted(home)}", f"runtime.seed={seed}", "runtime.video_episodes=0", *self.words]
        config = load(recipe, [*keys, *words, *(QUICK[recipe.partition("_")[0]] if self.quick else [])])
        found = self._once(f"{name}-{seed}", to_dict(config), lambda: self._trained(config))
        log = read_log(home / Path(found["run"]).name / "logs" / "metrics.jsonl", HEADLINE)
        return {**found, "curve": [(step, 60 * minutes, value) for step, minutes, value in log]}

    def _trained(self, config: Config) -> Result:
        result = train(config, quiet=True)
        if result["interrupted"]:
            raise KeyboardInterrupt
        truth = evaluate(Path(result["run"]), episodes=self.episodes, quiet=True)["eval"]
        return {
            "success": truth[HEADLINE],
            "env_steps": result["steps"] if result["counted"] == "env steps" else 0,
            **{key: result[key] for key in ("seconds", "best", "best_step", "run")},
        }

    def _once(self, name: str, settings: Any, make: Callable[[], Result]) -> Result:
        """What comes of some settings, from the folder where it is there."""
        place = self.folder / "results" / f"{name}-{self._key(settings)}.json"
        if not place.exists():
            made = {**make(), "load": machine()["load"][0]}
            if made.get("interrupted"):
                raise KeyboardInterrupt
            with whole_file(place) as temporary:
                temporary.write_text(json.dumps(made, default=str))
            say(f"{name}: {_told(made)}")
        found: Result = json.loads(place.read_text())
        return found

    def _key(self, settings: Any) -> str:
        """A name for settings, wherever the folder is."""
        text = json.dumps(settings, sort_keys=True, default=str).replace(str(self.folder), "")
        return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

    def shown(self, task: str, seed: int) -> list[str]:
        """The overrides that name a seed's demonstrations."""
        data = self.data(f"rlpd_{task}", seed)
        return [
            f"algorithm.cfg.demonstrations={_quoted(data)}",
            f"algorithm.cfg.num_demonstrations={self.demonstrations}",
        ]

    def taught(self, task: str, seed: int) -> str:
        """The override that names a seed's reward model."""
        return f"reward.checkpoint_path={_quoted(self.model(task, seed))}"

    def rlpd(self, task: str, seed: int) -> Result:
        """RLPD on a learned reward."""
        words = [*self.shown(task, seed), self.taught(task, seed)]
        return self.policy(f"{task}-rlpd", f"rlpd_{task}", seed, words)

    def plain(self, task: str, seed: int) -> Result:
        """RLPD as its paper has it: the actor climbs the critics and does not clone beside."""
        words = [*self.shown(task, seed), self.taught(task, seed), "algorithm.cfg.cloning=0"]
        return self.policy(f"{task}-plain", f"rlpd_{task}", seed, words)

    def sac(self, task: str, seed: int) -> Result:
        """The same without demonstrations."""
        words = [f"algorithm.cfg.{key}" for key in ("demonstrations=null", "num_demonstrations=null", "cloning=0")]
        words.append(self.taught(task, seed))
        return self.policy(f"{task}-sac", f"rlpd_{task}", seed, words)

    def oracle(self, task: str, seed: int) -> Result:
        """RLPD on the simulator's own verdict."""
        words = [*self.shown(task, seed), "reward.use_reward_model=false"]
        return self.policy(f"{task}-oracle", f"rlpd_{task}", seed, words)

    def bc(self, task: str, seed: int) -> Result:
        """Cloning, with the best settings of the sweep."""
        words = [*self.shown(task, seed), *self.best_cloning(task)[0]]
        return self.policy(f"{task}-bc", f"bc_{task}", seed, words)

    def best_cloning(self, task: str) -> tuple[list[str], float]:
        """The settings of the sweep that do best on the validation seeds, in the mean, and that mean."""
        found = []
        for number, words in enumerate(self.sweep):
            tried = [
                self.policy(f"{task}-sweep{number:02d}", f"bc_{task}", seed, [*self.shown(task, seed), *words])[
                    "success"
                ]
                for seed in VALIDATION[: 1 if self.quick else None]
            ]
            found.append((statistics.mean(tried), -number))
        best, number = max(found)
        return self.sweep[-number], best


PARTS: dict[str, str] = {
    "rlpd": "RLPD on a learned reward",
    "plain": "RLPD on it without cloning beside",
    "bc": "cloning",
    "sac": "SAC without demonstrations",
    "oracle": "RLPD on the simulator's verdict",
}
"""Methods of `Bench`, in words."""


def rows_of(task: str, found: dict[str, list[Result]], target: float | None) -> list[Row]:
    """Median and worst of a task, part after part; `target` is RLPD's."""
    rows: list[Row] = []
    success = {part: [run["success"] for run in runs] for part, runs in found.items()}
    for part, runs in found.items():
        name = f"{task}: {PARTS[part]}"
        aim = target if part == "rlpd" else None
        rows += median_and_worst(f"{name}: true success", success[part], aim)
        for key in ("env_steps", "seconds"):
            rows += median_and_worst(f"{name}: {key.replace('_', ' ')}", [run[key] for run in runs], lower=True)[-1:]
        if aim is not None:
            rows += arrival(name, [run["curve"] for run in runs], aim)
    if "rlpd" in success and "bc" in success:
        gains = [100 * (ours - theirs) for ours, theirs in zip(success["rlpd"], success["bc"], strict=True)]
        rows += median_and_worst(f"{task}: points that the learned reward adds to cloning", gains)
    return rows


def arrival(name: str, curves: Sequence[Curve], target: float) -> list[Row]:
    """Env steps and seconds of the first evaluations at a target; infinite where there was none."""
    never = (math.inf, math.inf, 0.0)
    firsts = [next((point for point in curve if point[2] >= target), never) for curve in curves]
    rows: list[Row] = []
    for what, limit, column in (("env steps", STEPS, 0), ("seconds", SECONDS, 1)):
        rows += median_and_worst(f"{name}: {what} to {target:.0%}", [one[column] for one in firsts], limit, lower=True)
    return rows


def _told(made: Result) -> str:
    keys = ("success", "best", "best_step", "env_steps", "seconds", "episodes", "load")
    return ", ".join(f"{key} {made[key]:.4g}" for key in keys if isinstance(made.get(key), (int, float)))


def _quoted(path: Path) -> str:
    return json.dumps(str(path))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--demonstrations", type=int, choices=range(1, 21), metavar="N", default=20, help="of 20")
    parser.add_argument("--threads", type=int, default=0, help="of each run; 0 takes every core")
    parser.add_argument("--quick", action="store_true", help="see that it works; the numbers say nothing")
    parser.add_argument("--folder", type=Path, help="keep all here; what is there is not made again")
    args = parser.parse_args()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as scratch:
        folder = (args.folder or Path(scratch)) / ("quick" if args.quick else "")
        bench = Bench(folder, [f"runtime.threads={args.threads}"], args.quick, args.demonstrations)
        for task in args.tasks:
            target = TARGETS[task] if args.demonstrations == 20 else None
            found = {part: [getattr(bench, part)(task, seed) for seed in args.seeds] for part in args.parts}
            rows += rows_of(task, found, target)
            if "bc" in found:
                words, best = bench.best_cloning(task)
                note = " ".join(word.removeprefix("algorithm.cfg.").removeprefix("policy.actor.") for word in words)
                rows.append(Row(f"{task}: cloning in the sweep, best of {len(bench.sweep)}", best, "", note=note))
    print(table(rows))
    print(machine())


if __name__ == "__main__":
    main()
