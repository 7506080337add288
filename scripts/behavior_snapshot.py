"""Record what users rely on, so that a refactoring can be compared with the code before it.

    python scripts/behavior_snapshot.py /tmp/before.json --tree ../before
    python scripts/behavior_snapshot.py /tmp/after.json
    python scripts/behavior_snapshot.py --compare /tmp/before.json /tmp/after.json

Everything is observed through the command line, so module and class names may differ between the two trees: resolved
configs of all recipes, fields of every `--json` result, metric names, exit codes, files of each kind of folder, the id
of a fitted artifact, and hashes of the weights after short PPO, SAC, RLPD and fit runs with fixed seeds. Weights depend
on the machine: compare only snapshots that were taken on the same one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

SHORT_COLLECT = [
    "reward.data_collection.max_positive_trajectories=40",
    "reward.data_collection.max_negative_trajectories=40",
    "env.cfg.num_envs=32",
]
SHORT_FIT = ["reward.training.max_steps=20", "reward.training.save_interval=10"]
SHORT_PPO = ["runtime.iterations=3", "env.cfg.num_envs=32", "runtime.eval_freq=512", "runtime.eval_episodes=8"]
SHORT_SAC = ["runtime.iterations=30", "runtime.eval_freq=1000", "runtime.eval_episodes=8"]
SHORT_SAC += ["algorithm.cfg.learning_starts=512", "runtime.save_freq=1000"]

WRONG_CALLS = {
    "unknown command": ["trian"],
    "unknown recipe": ["train", "push_cub"],
    "unknown key": ["train", "push_cube", "algorithm.cfg.gama=0.9"],
    "wrong type": ["train", "push_cube", "runtime.seed=soon"],
    "unknown option": ["doctor", "data", "--speed"],
    "missing data set": ["doctor", "nowhere"],
    "missing run": ["eval", "nowhere"],
    "missing model": ["train", "push_cube_learned"],
}


class Snapshot:
    """Run commands of one source tree and note what they return.

    Args:
        tree: Root of the source tree under test.
        folder: Working directory for all commands.
    """

    def __init__(self, tree: Path, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "120", "CUDA_VISIBLE_DEVICES": ""}
        self.notes: dict[str, Any] = {}

    def call(self, name: str, *words: str) -> dict[str, Any]:
        """Run `plaudit WORDS --json`; note its exit code and the fields of its result."""
        command = [sys.executable, "-m", "plaudit", *words, "--json"]
        process = subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True)
        lines = process.stdout.strip().splitlines()
        result = json.loads(lines[-1]) if lines else {}
        self.notes[f"exit code: {name}"] = process.returncode
        self.notes[f"json fields: {name}"] = sorted(field_names(result))
        if process.returncode and "error" not in name:
            print(f"{name}: exit code {process.returncode}: {process.stderr[-500:]}", file=sys.stderr)
        return dict(result)

    def take(self) -> dict[str, Any]:
        """Run everything and return the notes."""
        # Configs, listings and errors.
        for row in self.call("recipes", "recipes")["recipes"]:
            recipe = row["name"]
            self.notes[f"config: {recipe}"] = self.call(f"recipe {recipe}", "recipes", recipe).get("config")
        self.call("envs", "envs")
        self.notes["env keys: PushCube"] = self.call("env", "envs", "PushCube")
        for name, words in WRONG_CALLS.items():
            self.call(f"error, {name}", *words)

        # The three stages, each as short as possible. Every policy's weights are compared by hash.
        self.train("ppo", "push_cube", *SHORT_PPO)
        self.train("sac", "sac_push_cube", *SHORT_SAC)
        self.call("collect", "collect", "push_cube", *SHORT_COLLECT, "reward.data_collection.save_dir=data", "--quiet")
        self.note_files("collect", self.folder / "data")
        self.call("process", "process", "data")
        self.call("doctor", "doctor", "data", "--quiet")
        self.call("convert", "convert", "data", "npy", "--format", "npy", "--quiet")

        fit = self.call("fit", "fit", "data", *SHORT_FIT, "runtime.output_dir=out", "runtime.exp_name=fit", "--quiet")
        artifact = str(fit.get("artifact", ""))
        self.notes["artifact id"] = fit.get("artifact_id")
        self.note_files("fit", self.folder / str(fit.get("run", "out")))
        self.note_weights("fit", Path(artifact))
        model = [f"reward.checkpoint_path={artifact}", "reward.reward_threshold=0.5"]
        self.train("ppo on the model", "push_cube_learned", *SHORT_PPO, *model)
        self.train(
            "rlpd",
            "rlpd_pick_cube",
            *SHORT_SAC,
            "env.id=PushCube",
            "algorithm.cfg.demonstrations=data",
            "algorithm.cfg.num_demonstrations=5",
            *model,
        )
        return self.notes

    def train(self, name: str, recipe: str, *overrides: str) -> None:
        """Train shortly, evaluate and report; note files, metric names and weights."""
        slug = name.replace(" ", "_")
        place = ["runtime.output_dir=out", f"runtime.exp_name={slug}", "runtime.seed=3"]
        result = self.call(f"train {name}", "train", recipe, *overrides, *place, "--quiet")
        if "run" not in result:
            return
        run = self.folder / result["run"]
        self.note_files(f"train {name}", run)
        self.note_metrics(name, run)
        self.note_weights(name, run / "checkpoints" / "latest.pt")
        self.call(f"eval {name}", "eval", str(run), "--episodes", "4", "--quiet")
        self.call(f"report {name}", "report", str(run), "--quiet")

    def note_files(self, name: str, folder: Path) -> None:
        """Note the kinds of files in a folder: numbers and hashes in names are left out."""
        paths = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        self.notes[f"files: {name}"] = sorted({re.sub(r"[0-9a-f]{8,}|\d+", "#", path) for path in paths})

    def note_metrics(self, name: str, run: Path) -> None:
        """Note the names of all logged metrics."""
        for path in sorted(run.glob("*.csv")):
            rows = path.read_text(encoding="utf-8").splitlines()
            self.notes[f"metrics: {name}, {path.name}"] = sorted(rows[0].split(",")) if rows else []
        for path in sorted(run.glob("*.jsonl")):
            rows = [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
            self.notes[f"metrics: {name}, {path.name}"] = sorted({key for row in rows for key in row})

    def note_weights(self, name: str, path: Path) -> None:
        """Note a hash of all weights of a checkpoint or an artifact."""
        import torch

        if (self.folder / path).is_dir():
            files = sorted((self.folder / path).rglob("*.safetensors"))
            digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        elif (self.folder / path).is_file():
            policy = torch.load(self.folder / path, weights_only=False)["policy"]
            digest = hashlib.sha256(
                b"".join(key.encode() + value.cpu().numpy().tobytes() for key, value in sorted(policy.items()))
            ).hexdigest()
        else:
            digest = "missing"
        self.notes[f"weights: {name}"] = digest[:16]


def field_names(value: Any, prefix: str = "") -> set[str]:
    """Return the dotted names of all fields in a JSON value; those of list items are joined."""
    if isinstance(value, dict):
        return {name for key, item in value.items() for name in field_names(item, f"{prefix}.{key}")} or {prefix}
    if isinstance(value, list):
        return {name for item in value for name in field_names(item, f"{prefix}[]")} or {prefix}
    return {prefix}


def differences(before: Any, after: Any, prefix: str = "") -> list[str]:
    """List the places at which two JSON values differ, one line each."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            line
            for key in sorted(set(before) | set(after))
            for line in differences(before.get(key, "(absent)"), after.get(key, "(absent)"), f"{prefix} > {key}")
        ]
    if isinstance(before, list) and isinstance(after, list):
        removed = [item for item in before if item not in after]
        added = [item for item in after if item not in before]
        return [f"{prefix}: - {item}" for item in removed] + [f"{prefix}: + {item}" for item in added]
    return [] if before == after else [f"{prefix}: {before!r} -> {after!r}"]


def main() -> int:
    """Take a snapshot, or compare two."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="where to write the snapshot")
    parser.add_argument("--tree", type=Path, default=ROOT, help="source tree; default this one")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    args = parser.parse_args()

    if args.compare:
        before, after = (json.loads(path.read_text(encoding="utf-8")) for path in args.compare)
        lines = differences(before, after)
        print("\n".join(lines) or "no differences")
        return int(bool(lines))

    with tempfile.TemporaryDirectory() as folder:
        notes = Snapshot(args.tree.resolve(), Path(folder)).take()
    args.out.write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
