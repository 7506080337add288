"""What collecting costs: the loop of 64 PickCubes with the writer and without it, memory, and late rendering.

Both sides of the first row step, act, render and build the same episodes; on one of them they go to a store on the
disk, on the other nowhere. The time ends when all of them are on the disk.
"""

from __future__ import annotations

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import Row, main, paired_ratio, say, take_turns
from plaudit.data import Counts, Episode, EpisodeStore
from plaudit.data.background_writer import BackgroundWriter
from plaudit.data.behaviors import Behavior, BehaviorMixture
from plaudit.data.recorder import RewardDataCollector
from plaudit.data.recording_env import DataCollectorWrapper
from plaudit.envs.base import VecEnv
from plaudit.envs.registry import build_env
from plaudit.utils.threads import claim_threads

NUM_ENVS, LENGTH, FRAMES = 64, 50, 12
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 2**20


class Nowhere:
    """A writer's shape, and nothing in it."""

    counts = Counts()

    def put(self, episode: Episode) -> None:
        """Forgets it."""

    def __contains__(self, item: object) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close."""


class Always(DataCollectorWrapper):
    """A wrapper that has every frame rendered when it happens, as it must where an env takes no snapshots."""

    def __init__(self, env: VecEnv, collector: RewardDataCollector) -> None:
        env.can_snapshot = False
        super().__init__(env, collector)
        env.can_snapshot = True


class Loop:
    """A collection that goes on and on.

    Args:
        env: The env.
        writer: Where episodes go.
        wrapper: What is put around the env.
    """

    def __init__(self, env: Any, writer: Any, wrapper: type[DataCollectorWrapper] = DataCollectorWrapper) -> None:
        self.writer = writer
        self.crew = BehaviorMixture(
            [Behavior("expert", lambda obs: env.expert_action(), drift=1.0, noise=0.05)], env, 0
        )
        self.collector = RewardDataCollector(NUM_ENVS, writer, name="bench", frames_per_episode=FRAMES)
        self.env = wrapper(env, self.collector)
        self.obs, _ = self.env.reset(0)
        self.env.stagger()  # Else all episodes end together, and the last ones are written when nothing else is done.

    def step(self, count: int) -> None:
        """Takes some steps."""
        for _ in range(count):
            step = self.env.step(self.crew.act(self.obs))
            self.crew.begin(step.ended.cpu().numpy())
            self.obs = step.obs


def timed(env: VecEnv, steps: int, writer: Callable[[Path], Any], **options: Any) -> float:
    """Env steps/s of a collection into a new folder, until all is written."""
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        loop = Loop(env, writer(Path(folder)), **options)
        started = time.perf_counter()
        loop.step(steps)
        loop.writer.close()
        return steps * NUM_ENVS / (time.perf_counter() - started)


def writers_share(env: VecEnv, steps: int) -> float:
    """Share of all CPU time that the writer's thread takes; unlike speed, others on the machine hardly change it."""
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        loop = Loop(env, stored(Path(folder)))
        thread = Path(f"/proc/self/task/{loop.writer._thread.native_id}/schedstat")
        started = time.process_time()
        loop.step(steps)
        loop.writer.flush()
        share = int(thread.read_text().split()[0]) / 1e9 / (time.process_time() - started)
        loop.writer.close()
    return share


def stored(folder: Path) -> BackgroundWriter:
    """A writer into a new store."""
    return BackgroundWriter(EpisodeStore.create(folder / "data"))


def memory(env: VecEnv, episodes: int) -> tuple[float, float]:
    """Resident bytes after a quarter of some episodes and after all of them."""
    steps = LENGTH * episodes // NUM_ENVS
    with tempfile.TemporaryDirectory(prefix="plaudit-bench-") as folder:
        loop = Loop(env, stored(Path(folder)))
        loop.step(steps // 4)
        early = resident(loop.writer)
        loop.step(steps - steps // 4)
        late = resident(loop.writer)
        loop.writer.close()
    return early, late


def resident(writer: BackgroundWriter) -> float:
    """Bytes of this process, once nothing waits to be written."""
    writer.flush()
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def benchmark(quick: bool) -> list[Row]:
    """Measures in turns."""
    claim_threads()
    steps, rounds, episodes = (100, 3, 500) if quick else (300, 9, 4000)
    env = build_env("PickCube", {"num_envs": NUM_ENVS})
    timed(env, 50, stored)  # Once for nothing: the first touch of memory and of the GL contexts is slow.
    say(f"env steps/s of {NUM_ENVS} envs, {FRAMES} of {LENGTH + 1} frames kept, two cameras of 64x64")
    runs = {"stored": lambda: timed(env, steps, stored), "nowhere": lambda: timed(env, steps, lambda _: Nowhere())}
    speeds = take_turns(runs, rounds)
    say("the same with every frame rendered when it happens")
    ways = {"late": lambda: timed(env, steps, stored), "always": lambda: timed(env, steps, stored, wrapper=Always)}
    renders = take_turns(ways, max(2, rounds // 3))
    share = writers_share(env, steps)
    early, late = memory(env, episodes)
    env.close()
    value, bare = (statistics.median(speeds[name]) for name in ("stored", "nowhere"))
    return [
        Row(
            "collecting, with the writer",
            value,
            "steps/s",
            "without it",
            bare,
            paired_ratio(speeds["stored"], speeds["nowhere"]),
            target=0.95,
            note=f"{value / LENGTH * FRAMES:,.0f} frames/s kept; the writer takes {share:.1%} of all CPU time",
        ),
        Row(
            "collecting, frames rendered late",
            statistics.median(renders["late"]),
            "steps/s",
            "all rendered",
            statistics.median(renders["always"]),
            paired_ratio(renders["late"], renders["always"]),
        ),
        Row(
            "memory growth while collecting",
            (late - early) / MIB,
            "MiB",
            target=round(0.02 * late / MIB, 1),
            lower_is_better=True,
            note=f"from {episodes // 4:,} to {episodes:,} episodes; flat is up to 2 % of {late / MIB:.0f} MiB",
        ),
    ]


if __name__ == "__main__":
    main(benchmark)
