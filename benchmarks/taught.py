"""What policies that a reward model teaches reach in truth, beside the same algorithm on the simulator's own reward.

    python benchmarks/taught.py                 all parts, three seeds, about an hour on two cores
    python benchmarks/taught.py --parts run     `plaudit run quickstart` alone: seconds, memory, true success

`run`: all stages of the quickstart. `oracle`: its policy again, but on the simulator's sparse reward, same budget.
`pick`: a PickCube policy that was stopped half-way, brought to the end by a reward model alone (`runtime.resume`).
What is finished is kept in the folder and not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measure import Row, machine, median_and_worst, say, table
from plaudit.pipelines import collect, fit, load, load_fit, train

EPISODES = 256
STOPPED = (0.4, 0.6)
"""True success of a policy that is stopped half-way."""


def run_quickstart(folder: Path, seed: int) -> dict[str, Any]:
    """All stages in a process of its own, as a user starts them, with its wall clock and its peak memory."""
    command = [sys.executable, "-m", "plaudit", "run", "quickstart", "--json", "--quiet"]
    words = [f"runtime.seed={seed}", f"runtime.output_dir={folder}", f"run.episodes={EPISODES}"]
    started = time.perf_counter()
    child = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    lines = child.stdout.read().splitlines()
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"plaudit run ended with status {os.waitstatus_to_exitcode(status)}.")
    seconds = time.perf_counter() - started
    return {**json.loads(lines[-1]), "wall_seconds": seconds, "peak_gib": used.ru_maxrss / 2**20}


def run_oracle(folder: Path, seed: int) -> dict[str, Any]:
    """PushCube from scratch on the simulator's own sparse reward: all else as in the quickstart's last training."""
    words = [f"runtime.seed={seed}", f"runtime.output_dir={folder}", f"runtime.eval_episodes={EPISODES}"]
    result = train(load("push_cube_sparse", [*words, "runtime.video_episodes=0"]), quiet=True)
    return {"success": result["test"]["success_once"], "seconds": result["seconds"]}


def run_pick(folder: Path, seed: int) -> dict[str, Any]:
    """A policy on the dense reward, stopped half-way, and then on a reward model of scripted episodes alone."""
    common = [f"runtime.seed={seed}", f"runtime.eval_episodes={EPISODES}", "runtime.video_episodes=0"]
    data = folder / f"data{seed}"
    gathered = collect(
        load("pick_cube", [f"reward.data_collection.save_dir={data}", f"runtime.seed={seed}"]), quiet=True
    )
    fitted = fit(load_fit(None, [f"runtime.seed={seed}", f"runtime.output_dir={folder}"], data=data), quiet=True)
    start, before = _stopped(folder, seed, common)
    words = [f"runtime.resume={start}", f"reward.checkpoint_path={fitted['run']}", f"runtime.output_dir={folder}"]
    after = train(load("pick_cube_learned", [*common, *words]), quiet=True)
    return {
        "before": before,
        "success": after["test"]["success_at_end"],
        "model_success": after["test"]["model_success_at_end"],
        "seconds": after["seconds"],
        "seconds_to_collect": gathered["seconds"],
        "seconds_to_fit": fitted["seconds"],
    }


def _stopped(folder: Path, seed: int, words: Sequence[str]) -> tuple[Path, float]:
    """A dense training's checkpoint at the first evaluation that is good enough to stop at, and its true success."""
    keys = [f"runtime.output_dir={folder / 'dense'}", "runtime.iterations=200", f"runtime.stop_at={STOPPED[0]}"]
    keys += ["runtime.eval_freq=8000", f"runtime.exp_name=seed{seed}"]
    result = train(load("pick_cube", [*words, *keys]), quiet=True)
    return Path(result["run"]) / "checkpoints" / "best.pt", result["test"]["success_at_end"]


PARTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "run": run_quickstart,
    "oracle": run_oracle,
    "pick": run_pick,
}


def done(folder: Path, part: str, seed: int) -> dict[str, Any]:
    """A part's result, from the folder where it is there."""
    place = folder / f"{part}{seed}.json"
    if not place.exists():
        result = {**PARTS[part](folder / part, seed), "load": machine()["load"][0]}
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(result, default=str))
    found: dict[str, Any] = json.loads(place.read_text())
    return found


def rows_of(found: dict[str, list[dict[str, Any]]]) -> list[Row]:
    """The targets, with median and worst."""
    rows: list[Row] = []
    if "run" in found:
        runs = found["run"]
        learned = [run["true_success"]["learned_reward"] for run in runs]
        rows += median_and_worst("quickstart: true success on the learned reward", learned, 0.9)
        rows += median_and_worst(
            "quickstart: true success on the dense reward", [run["true_success"]["dense_reward"] for run in runs]
        )
        rows += median_and_worst(
            "quickstart: seconds in all", [run["wall_seconds"] for run in runs], 300, unit="s", lower=True
        )
        rows += median_and_worst(
            "quickstart: peak memory", [run["peak_gib"] for run in runs], 3, unit="GiB", lower=True
        )
    if "oracle" in found:
        oracle = [run["success"] for run in found["oracle"]]
        rows += median_and_worst("PushCube: true success on the simulator's sparse reward", oracle)
        if "run" in found:
            gaps = [100 * (theirs - ours) for theirs, ours in zip(oracle, learned, strict=True)]
            rows += median_and_worst("PushCube: points that the learned reward is behind", gaps, 3, lower=True)
    if "pick" in found:
        before = [run["before"] for run in found["pick"]]
        rows += median_and_worst("PickCube: true success where it was stopped", before)
        within = sum(STOPPED[0] <= value <= STOPPED[1] for value in before)
        rows.append(Row("PickCube: seeds stopped between 40 and 60 %", within, "", target=len(before)))
        rows += median_and_worst("PickCube: true success in the end", [run["success"] for run in found["pick"]], 0.9)
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, help="keep all here; what is there is not made again")
    args = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as scratch:
        for part in args.parts:
            for seed in args.seeds:
                found.setdefault(part, []).append(done(args.folder or Path(scratch), part, seed))
                say(f"{part}, seed {seed}: {found[part][-1]}")
    print(table(rows_of(found)))
    print(machine())


if __name__ == "__main__":
    main()
