"""Reward models made to be fooled: does the audit see it, and does a refresh mend it?

Each model is fitted without one kind of failure, so that it takes that kind for success, and PPO finds out. For each
kind and seed a policy is trained four times from scratch on PushCube: on that model; on that model with a refresh where
the audit raises an alarm, which also prolongs the training; on a model fitted to the same data and to as many failed
episodes more, chosen at random and labelled, as the refresh spent; and on an honest model. Ten honest runs show how
often the audit cries wolf.

    python benchmarks/fooled.py --folder outputs/fooled         all of it: hours; what is there is not made again
    python benchmarks/fooled.py --kinds hand --seeds 0         a part of it
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from measure import Row, machine, median_and_worst, say, table
from plaudit.data import EpisodeStore
from plaudit.data.episode import FAILURE, Episode
from plaudit.pipelines import fit, load, load_fit, load_run, train

RADIUS = 0.1
EPISODES = 1500
"""Of successes and of failures, that a model is fitted to."""

STEPS = 1000
"""Of a fit, as in the quickstart."""

SPARE = 200
"""Failures more that are collected, from which labels are given up front."""

MODELS = 3
"""Honest models, for however many honest runs."""

TAUGHT = 0.9
"""True success of a policy whose model was not fooled, whatever the audit said."""


@dataclass(frozen=True)
class Places:
    """Where things are in the frames (n,) of an episode, in metres.

    Attributes:
        moved: From where the cube was to where it is.
        across: From the cube to the straight way that it should go.
        hand: From the gripper to the goal.
    """

    moved: NDArray[np.float32]
    across: NDArray[np.float32]
    hand: NDArray[np.float32]

    @classmethod
    def of(cls, episode: Episode) -> Places:
        """Reads them off the state, which ends with five times (cube - hand), (push point - hand) and (goal - cube)."""
        state = episode.state_at(episode.frame_index)
        assert state is not None and episode.state is not None
        to_goal, to_cube, first = state[:, -2:] / 5, state[:, -8:-6] / 5, episode.state[0, -2:]
        way = first / np.linalg.norm(first)
        across = np.abs(to_goal[:, 0] * way[1] - to_goal[:, 1] * way[0])
        moved, hand = (np.linalg.norm(vector, axis=1) for vector in (first / 5 - to_goal, to_goal + to_cube))
        return cls(moved, across, hand)


KINDS: dict[str, Callable[[Places], NDArray[np.bool_]]] = {
    "moved": lambda at: at.moved > 0.3 * RADIUS,  # the cube was pushed, wherever that was
    "aside": lambda at: at.across > 0.3 * RADIUS,  # pushed, but off the straight way
    "hand": lambda at: at.hand < 1.5 * RADIUS,  # the gripper is there, the cube is not
}
"""Kinds of failure that a model is fitted without."""


def without(episodes: Iterator[Episode], kind: str) -> Iterator[Episode]:
    """Episodes without the failed frames of a kind; those that are of nothing else are left out."""
    for episode in episodes:
        kept = ~(KINDS[kind](Places.of(episode)) & (episode.labels == FAILURE))
        if kept.any():
            yield replace(
                episode,
                frames={camera: np.ascontiguousarray(pixels[kept]) for camera, pixels in episode.frames.items()},
                labels=episode.labels[kept],
                frame_index=episode.frame_index[kept],
                flags={name: values[kept] for name, values in episode.flags.items()},
            )


class Bench:
    """Data, models and policies, in a folder in which nothing is made twice."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self.folder, self.words = folder, words

    def all_data(self) -> tuple[Path, list[Episode]]:
        """What an honest model is fitted to, and failures that are left over: of a policy that learns on the env's own
        reward, as in the quickstart, so that the model has seen what policies do wrong.
        """
        note = self.folder / "data" / "all.txt"
        if not note.exists():
            keys = [f"runtime.output_dir={self.folder / 'collect'}", "runtime.video_episodes=0"]
            keys += [f"run.collect.reward.data_collection.max_negative_trajectories={EPISODES + SPARE}"]
            made = train(load_run("quickstart", keys).collect, quiet=True)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(str(Path(made["run"]) / "data"))
        place = Path(note.read_text())
        failures = [episode for episode in EpisodeStore(place) if not episode.positive]
        chosen = np.random.default_rng(0).permutation(len(failures))[:SPARE]
        return place, [failures[number] for number in chosen]

    def data(self, kind: str, more: int = 0) -> Path:
        """What a model is fitted to that a kind of failure is kept from, with some labelled episodes more."""
        whole, spare = self.all_data()
        place = self.folder / "data" / (f"{kind} and {more}" if more else kind)
        if not (place.with_suffix(".done")).exists():
            left_out = {episode.id for episode in spare}
            store, rest = EpisodeStore.create(place), (one for one in EpisodeStore(whole) if one.id not in left_out)
            chosen = [replace(episode, id=f"more-{episode.id}") for episode in spare[:more]]
            for batch in _batches([*chosen], rest if kind == "honest" else without(rest, kind)):
                store.add(batch)
            place.with_suffix(".done").touch()
        return place

    def model(self, kind: str, seed: int, more: int = 0) -> Path:
        """A fitted reward model."""
        place = self.folder / "models" / f"{kind} {more} {seed}"
        if not (place / "best_model").exists():
            keys = [f"reward.training.save_dir={json.dumps(str(place))}", f"runtime.seed={seed}"]
            keys += [f"reward.training.max_steps={STEPS}", "reward.training.figures=false", *self.words]
            fit(load_fit(None, keys, data=self.data(kind, more)), quiet=True)
        return place

    def policy(self, name: str, kind: str, seed: int, words: Sequence[str] = (), more: int = 0, model: int = -1) -> Any:
        """How a policy fared that was trained from scratch, on the model of its own seed unless `model` is another."""
        done = self.folder / "policies" / f"{name} {kind} {seed}.json"
        if not done.exists():
            home = done.with_suffix("")
            keys = [f"runtime.output_dir={json.dumps(str(home))}", f"runtime.seed={seed}", "runtime.video_episodes=0"]
            keys += [f"reward.checkpoint_path={json.dumps(str(self.model(kind, seed if model < 0 else model, more)))}"]
            keys += [f"reward.training.data.path={json.dumps(str(self.data(kind, more)))}", "runtime.eval_episodes=256"]
            result = train(load("push_cube_learned", [*keys, *words, *self.words]), quiet=True)
            if result["interrupted"]:
                raise KeyboardInterrupt
            audit = json.loads((Path(result["run"]) / "audit.json").read_text())
            done.parent.mkdir(parents=True, exist_ok=True)
            done.write_text(json.dumps({"test": result["test"], "steps": result["steps"], "audit": audit}))
        return json.loads(done.read_text())


def _batches(first: list[Episode], rest: Iterator[Episode]) -> Iterator[list[Episode]]:
    batch = first
    for episode in rest:
        batch.append(episode)
        if len(batch) >= 200:
            yield batch
            batch = []
    if batch:
        yield batch


def against_the_fooled(bench: Bench, kind: str, seed: int) -> dict[str, Any]:
    """All four policies of one kind and seed."""
    alone = bench.policy("alone", kind, seed)
    refreshed = bench.policy("refreshed", kind, seed, ["reward.audit.on_alarm=refresh"])
    spent = refreshed["audit"]["labels"]["spent"]
    upfront = bench.policy("up front", kind, seed, more=spent) if spent else alone
    honest = bench.policy("honest", "honest", seed, model=seed % MODELS)
    alarms = alone["audit"]["alarms"]
    found = {
        "alarm": alarms[0]["step"] / alone["steps"] if alarms else 1.0,
        "said": alone["test"]["model_success_once"],
        "alone": alone["test"]["success_once"],
        "refreshed": refreshed["test"]["success_once"],
        "up front": upfront["test"]["success_once"],
        "honest": honest["test"]["success_once"],
        "labels": spent,
        "steps": refreshed["steps"] / alone["steps"],
    }
    say(f"{kind}, seed {seed}: {', '.join(f'{name} {value:.3g}' for name, value in found.items())}")
    return found


def rows_of(kind: str, found: Sequence[dict[str, Any]]) -> list[Row]:
    """Median and worst of a kind."""
    behind = [100 * (one["honest"] - one["refreshed"]) for one in found]
    return [
        *median_and_worst(
            f"{kind}: share of training until the alarm", [one["alarm"] for one in found], 0.2, lower=True
        ),
        *median_and_worst(f"{kind}: success that the fooled model claims", [one["said"] for one in found]),
        *median_and_worst(f"{kind}: true success without a refresh", [one["alone"] for one in found]),
        *median_and_worst(f"{kind}: true success with it", [one["refreshed"] for one in found]),
        *median_and_worst(f"{kind}: points behind an honest model with it", behind, 5, lower=True),
        *median_and_worst(f"{kind}: true success with as many labels up front", [one["up front"] for one in found]),
        *median_and_worst(f"{kind}: labelled episodes spent", [one["labels"] for one in found], lower=True),
        *median_and_worst(
            f"{kind}: steps with a refresh, over those without", [one["steps"] for one in found], lower=True
        ),
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--honest", type=int, default=10, help="how many honest runs are counted")
    parser.add_argument("--threads", type=int, default=0, help="of each run; 0 takes every core")
    parser.add_argument("--folder", type=Path, help="keep all here; what is there is not made again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as scratch:
        bench = Bench(args.folder or Path(scratch), [f"runtime.threads={args.threads}"])
        rows = []
        for kind in args.kinds:
            rows += rows_of(kind, [against_the_fooled(bench, kind, seed) for seed in args.seeds])
        honest = [bench.policy("honest", "honest", seed, model=seed % MODELS) for seed in range(args.honest)]
        if honest:
            success = [one["test"]["success_once"] for one in honest]
            alarmed = [value for one, value in zip(honest, success, strict=True) if one["audit"]["alarms"]]
            note = f"true success {', '.join(f'{value:.3f}' for value in success)}"
            rows.append(Row(f"alarms in {len(honest)} honest runs", len(alarmed), "", note=note))
            false = sum(value >= TAUGHT for value in alarmed)
            rows.append(Row("of them false: the policy succeeds nevertheless", false, ""))
    print(table(rows))
    print(machine())


if __name__ == "__main__":
    main()
