"""Kills a collection from 64 envs at 50 random moments, and looks at what is left each time.

Every committed episode must load and match its checksum, none may be gone, half-written or there twice, and the next
start must go on. Prints a table; the exit code is 1 where something was wrong.

    python benchmarks/kill_collect.py [--kills 50] [--seed 0]
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from plaudit.data import EpisodeStore
from plaudit.data import serialization as tensors
from plaudit.errors import DataError

KEYS = "reward.data_collection"
LONGEST = 3.0
"""Seconds of collecting after which a run is killed at the latest."""


@dataclass(frozen=True)
class Kill:
    """What one kill left.

    Attributes:
        seconds: How long the run had collected.
        episodes: Episodes that are there.
        new: How many of them the killed run had written.
        unfinished: Files that it had not finished, under their temporary names.
        damaged: Committed episodes that do not load, or differ from their checksum.
        lost: Episodes of earlier runs that are gone.
        twice: Episodes that show the same as another.
    """

    seconds: float
    episodes: int
    new: int
    unfinished: int
    damaged: int
    lost: int
    twice: int

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.damaged or self.lost or self.twice)


def kill_once(folder: Path, after: float, before: set[str]) -> Kill:
    """Starts a collection, kills it after some seconds, and looks."""
    options = [f"{KEYS}.save_dir={folder}", f"{KEYS}.num_envs=64", f"{KEYS}.frames_per_episode=4"]
    options += [f"{KEYS}.max_positive_trajectories=null", f"{KEYS}.max_negative_trajectories=null"]
    command = [
        sys.executable,
        "-m",
        "plaudit",
        "collect",
        "pick_cube",
        "env.cfg.episode_length=20",
        *options,
        "--quiet",
    ]
    child = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for_start(folder, child)
    time.sleep(after)
    child.send_signal(signal.SIGKILL)
    child.wait()
    return look(folder, after, before)


def wait_for_start(folder: Path, child: subprocess.Popen[bytes]) -> None:
    """Returns when the run has taken its number, which is right before the first step."""
    numbers, started = folder / "writers", time.time()
    while not numbers.exists() or numbers.stat().st_mtime < started:
        if child.poll() is not None:
            raise RuntimeError(f"the collection ended by itself, with exit code {child.returncode}")
        time.sleep(0.005)


def look(folder: Path, after: float, before: set[str]) -> Kill:
    """What there is, as nobody has touched it since the kill."""
    there = folder / "episodes"
    names = [path.name for path in there.iterdir()] if there.is_dir() else []
    unfinished = sum(name.startswith(".") for name in names)
    ids = {name.removesuffix(".safetensors") for name in names if not name.startswith(".")}
    damaged, starts = 0, set()
    for id in ids:
        try:
            episode = tensors.verify(there / f"{id}.safetensors")
            assert episode.state is not None and episode.actions is not None
            starts.add(episode.state.tobytes() + episode.actions.tobytes())
        except DataError as error:
            print(error)
            damaged += 1
    return Kill(
        after, len(ids), len(ids - before), unfinished, damaged, len(before - ids), len(ids) - damaged - len(starts)
    )


def main() -> int:
    """Kills, prints, and says how it went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    moments = random.Random(args.seed)
    fine = True
    with tempfile.TemporaryDirectory(prefix="plaudit-kill-") as name:
        folder, ids = Path(name) / "data", set[str]()
        print("kill  after s  episodes   new  unfinished  damaged  lost  twice")
        for number in range(1, args.kills + 1):
            found = kill_once(folder, moments.uniform(0, LONGEST), ids)
            fine &= found.fine
            print(
                f"{number:4d}  {found.seconds:7.2f}  {found.episodes:8d}  {found.new:4d}  {found.unfinished:10d}  "
                f"{found.damaged:7d}  {found.lost:4d}  {found.twice:5d}",
                flush=True,
            )
            if folder.is_dir():
                ids = {path.stem for path in (folder / "episodes").glob("*.safetensors") if path.name[0] != "."}
        store = EpisodeStore.create(folder)
        index = (folder / "index.jsonl").read_text().splitlines()
        left = [path for path in (folder / "episodes").iterdir() if path.name.startswith(".")]
        fine &= len(index) == len(store) == len(ids) and not left
    print(f"{args.kills} kills, {len(store)} episodes, index {'whole' if fine else 'or episodes NOT whole'}.")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
