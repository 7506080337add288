"""The long learning runs: each task with three seeds, and a table of when the target was reached. `make learn` runs it.

Results are kept in `outputs/learn` after every run, so that what was stopped goes on where it was. Minutes are of
training (collecting and updating) only; evaluations, checkpoints and logs are not counted, for us or for the peer.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import machine, say
from plaudit import pipelines as stages
from plaudit.config.schema import Config
from plaudit.errors import ConfigError, PlauditError, nearest

FOLDER = Path("outputs/learn")


@dataclass(frozen=True)
class Goal:
    """What a task must reach.

    Attributes:
        target: Value of the task's own metric: success of its headline, or return.
        eval_freq: Env steps between evaluations.
        peer: Whether the peer can be trained on it too: its adapter knows no pictures.
    """

    target: float
    eval_freq: int
    peer: bool = True


GOALS = {
    "pendulum": Goal(-250.0, 10_000),
    "push_cube": Goal(0.95, 25_000),
    "push_cube_cnn": Goal(0.90, 50_000, peer=False),
    "pick_cube": Goal(0.95, 50_000),
    "peg_insertion": Goal(0.80, 50_000),
    "sac_pendulum": Goal(-200.0, 1_000, peer=False),
    "sac_push_cube": Goal(0.95, 10_000, peer=False),
    "sac_pick_cube": Goal(0.95, 10_000, peer=False),
}


@dataclass(frozen=True)
class Outcome:
    """One run.

    Attributes:
        metric: What was measured in evaluations.
        reached: Env steps at the first evaluation that met the target, or `None`.
        minutes: Minutes of training up to then, or `None`.
        final: The last evaluation.
        best: The best evaluation.
        steps: Env steps of the whole run.
        total_minutes: Minutes of training of the whole run.
        load: The machine's load average when it started; one run alone makes about its number of cores.
        run: Its folder.
    """

    metric: str
    reached: int | None
    minutes: float | None
    final: float
    best: float
    steps: int
    total_minutes: float
    load: float
    run: str = ""


Results = dict[str, dict[str, Outcome]]
"""Name of a task, with ` (SB3)` after it for the peer, to seed to outcome."""


def read_log(path: Path, metric: str) -> list[tuple[int, float, float]]:
    """Evaluations in a run's `metrics.jsonl`: (env steps, minutes of training so far, value of `metric`)."""
    found, minutes, before = [], 0.0, 0
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if "charts/steps_per_second" in row:
            minutes += (row["step"] - before) / row["charts/steps_per_second"] / 60
            before = row["step"]
        if f"eval/{metric}" in row:
            found.append((row["step"], minutes, row[f"eval/{metric}"]))
    return found


def outcome(
    evaluations: Sequence[tuple[int, float, float]], target: float, metric: str, load: float, run: str = ""
) -> Outcome:
    """Sums up a run from its evaluations, as `read_log` gives them."""
    reached, so_far = next(((step, minutes) for step, minutes, value in evaluations if value >= target), (None, None))
    steps, total, final = evaluations[-1]
    best = max(value for _, _, value in evaluations)
    return Outcome(metric, reached, so_far, final, best, steps, total, load, run)


def config_of(task: str, seed: int, folder: Path) -> Config:
    """The task's recipe with this seed."""
    changes = [f"runtime.seed={seed}", f"runtime.output_dir={folder}", f"runtime.exp_name={task}_seed{seed}"]
    return stages.load(task, [*changes, f"runtime.eval_freq={GOALS[task].eval_freq}", "runtime.video_episodes=0"])


def run_ours(task: str, seed: int, folder: Path) -> Outcome:
    """Trains with our PPO, as `plaudit train` does."""
    load = machine()["load"][0]
    result = stages.train(config_of(task, seed, folder), quiet=True)
    if result["interrupted"]:
        raise KeyboardInterrupt
    metric = result["best_metric"]
    evaluations = read_log(Path(result["run"]) / "logs" / "metrics.jsonl", metric)
    return outcome(evaluations, GOALS[task].target, metric, load, result["run"])


def run_peer(task: str, seed: int, folder: Path) -> Outcome:
    """Trains with Stable-Baselines3's PPO on the same envs."""
    from learn_peer import train

    load = machine()["load"][0]
    metric, evaluations = train(config_of(task, seed, folder))
    return outcome(evaluations, GOALS[task].target, metric, load)


def markdown(results: Results) -> str:
    """The table: a line for each task and side."""
    lines = [
        "| task | target | steps to target, by seed | median | worst | minutes, median (worst) | final, by seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, by_seed in results.items():
        runs = [by_seed[seed] for seed in sorted(by_seed, key=int)]
        if not runs:
            continue
        target = GOALS[name.split(" ")[0]].target
        steps, minutes = [run.reached for run in runs], [run.minutes for run in runs]
        lines.append(
            f"| {name} | {runs[0].metric} {_value(target)} | {', '.join(map(_steps, steps))} "
            f"| {_steps(_median(steps))} | {_steps(_worst(steps))} "
            f"| {_minutes(_median(minutes))} ({_minutes(_worst(minutes))}) "
            f"| {', '.join(_value(run.final) for run in runs)} |"
        )
    return "\n".join(lines) + "\n"


def _median(values: Sequence[float | None]) -> float | None:
    """The median, where a run that never got there counts as later than any other."""
    middle = statistics.median_high([float("inf") if value is None else value for value in values])
    return None if middle == float("inf") else middle


def _worst(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return max(numbers) if len(numbers) == len(values) else None


def _steps(value: float | None) -> str:
    return "never" if value is None else f"{value / 1000:,.0f}k"


def _minutes(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"


def _value(value: float) -> str:
    return f"{value:.1%}" if 0 <= value <= 1 else f"{value:.0f}"


def load_results(path: Path) -> Results:
    """What earlier runs recorded."""
    if not path.exists():
        return {}
    saved: Mapping[str, Mapping[str, Any]] = json.loads(path.read_text())
    return {name: {seed: Outcome(**run) for seed, run in runs.items()} for name, runs in saved.items()}


def save_results(results: Results, folder: Path) -> None:
    """Writes `results.json`, in one move, and `table.md`."""
    plain = {name: {seed: asdict(run) for seed, run in runs.items()} for name, runs in results.items()}
    temporary = folder / ".results.json.tmp"
    temporary.write_text(json.dumps(plain, indent=1))
    temporary.replace(folder / "results.json")
    (folder / "table.md").write_text(markdown(results))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what is missing, one after the other, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(GOALS), metavar="TASK", help=", ".join(GOALS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="SEED")
    parser.add_argument("--fresh", action="store_true", help="run again what is already recorded")
    parser.add_argument("--peer", action="store_true", help="also train Stable-Baselines3's PPO on the same envs")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results go")
    args = parser.parse_args(arguments)
    for task in args.tasks:
        if task not in GOALS:
            raise ConfigError(f"unknown task '{task}'.{nearest(task, GOALS)}")
    args.folder.mkdir(parents=True, exist_ok=True)
    results = load_results(args.folder / "results.json")
    sides = {"": run_ours, **({" (SB3)": run_peer} if args.peer else {})}
    pairs = [(task, side) for task in args.tasks for side in sides if not side or GOALS[task].peer]
    todo = [(*pair, seed) for pair in pairs for seed in args.seeds]
    for task, side, seed in todo:
        done = results.setdefault(task + side, {})
        if str(seed) in done and not args.fresh:
            continue
        started = time.perf_counter()
        done[str(seed)] = run = sides[side](task, seed, args.folder)
        say(
            f"{task}{side}, seed {seed}: target at {_steps(run.reached)} steps, {_minutes(run.minutes)} minutes; "
            f"final {_value(run.final)}; {time.perf_counter() - started:.0f} s with everything"
        )
        save_results(results, args.folder)
    print(markdown(results))


if __name__ == "__main__":
    logging.basicConfig(format="plaudit: %(message)s", level=logging.WARNING)
    try:
        main()
    except PlauditError as error:
        raise SystemExit(f"learn: error: {error}") from error
