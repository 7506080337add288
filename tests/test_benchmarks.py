"""The benchmarks' own parts: tables, the peers' envs, the learning table. Nothing is timed."""

from __future__ import annotations

import json
import math
import mmap
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import asynchronous
import demonstrated
import learn
import measure
import suite
import ticking
from plaudit import pipelines as stages
from plaudit.config.structured import to_dict
from plaudit.envs.registry import build_env
from plaudit.errors import ConfigError, MissingDependencyError


def test_targets_are_lower_or_upper_bounds() -> None:
    assert measure.Row("a", 9.0, "x", "peer", 10.0, 0.9, target=0.85).met is True
    assert measure.Row("a", 9.0, "x", "peer", 10.0, 0.9, target=0.95).met is False
    assert measure.Row("a", 9.0, "x", "peer", 10.0, 0.9, target=0.85, lower_is_better=True).met is False
    assert measure.Row("a", 0.4, "s", target=0.5, lower_is_better=True).met is True
    assert measure.Row("a", 0.4, "s").met is None


def test_table_shows_value_peer_ratio_and_verdict() -> None:
    row = measure.Row("stepping", 12345.6, "steps/s", "limit", 14000.0, 0.88, target=0.8, note="two threads")
    lines = measure.table([row]).splitlines()
    assert " ".join(lines[1].split()) == "stepping 12,346 steps/s 14,000 steps/s (limit) 0.88 >= 0.8 met"
    assert lines[2].strip() == "two threads"


def test_runs_take_turns_and_ratios_are_paired() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return float(len(order))

    seen = measure.take_turns({"a": lambda: run("a"), "b": lambda: run("b")}, rounds=2)
    assert order == ["a", "b", "a", "b"]
    assert seen == {"a": [1.0, 3.0], "b": [2.0, 4.0]}
    assert measure.paired_ratio([1.0, 4.0, 9.0], [1.0, 2.0, 3.0]) == 2.0


def test_an_unknown_benchmark_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'rendr'.*'render'"):
        suite.run(["rendr"])


def test_a_benchmark_without_its_peer_is_refused_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(suite, "_installed", lambda module: module != "mani_skill")
    monkeypatch.setattr(suite, "_run_one", lambda name, quick: ran.append(name) or [])
    with pytest.raises(MissingDependencyError, match="'maniskill' needs its peer: make maniskill"):
        suite.run(["maniskill"])
    suite.run()
    assert ran == [name for name in suite.BENCHMARKS if name != "maniskill"]


def test_every_benchmark_of_the_suite_is_a_script() -> None:
    for name in suite.BENCHMARKS:
        assert Path(suite.__file__).with_name(f"{name}.py").is_file()


def test_single_env_is_the_same_task_as_the_batched_env() -> None:
    """Same episodes, observations, rewards and success, up to the solver's warm start and float32."""
    from single_env import SinglePushCube

    batch: Any = build_env("PushCube", {"num_envs": 3})
    single = SinglePushCube(index=2, seed=0)
    obs, _ = batch.reset(0)
    alone, _ = single.reset()
    np.testing.assert_allclose(alone, obs["state"][2], atol=1e-5)
    for t in range(51):
        action = batch.expert_action()
        step = batch.step(action)
        alone, reward, _, truncated, info = single.step(action[2].numpy())
        expected = step.obs["state"][2] if step.final_obs is None else step.final_obs["state"][2]
        np.testing.assert_allclose(alone, expected, atol=0.05, err_msg=f"step {t}")
        assert reward == pytest.approx(step.reward[2].item(), abs=0.01)
        assert info["success"] == step.success[2].item()
        assert truncated == step.truncated[2].item() == (t == 49)
        if truncated:
            alone, _ = single.reset()
            np.testing.assert_allclose(alone, step.obs["state"][2], atol=1e-5)
    batch.close()


def test_sb3_adapter_hands_on_what_the_env_says() -> None:
    pytest.importorskip("stable_baselines3")
    from sb3_adapter import Sb3Adapter

    cfg = {"num_envs": 4, "episode_length": 6}
    env, adapter = build_env("PushCube", cfg), Sb3Adapter(build_env("PushCube", cfg), seed=3)
    expected, _ = env.reset(3)
    env.stagger()
    np.testing.assert_array_equal(adapter.reset(), expected["state"])
    generator = torch.Generator().manual_seed(0)
    endings = 0
    for _ in range(14):
        action = 2 * torch.rand(4, 4, generator=generator) - 1
        step = env.step(action)
        obs, reward, done, infos = adapter.step(action.numpy())
        np.testing.assert_array_equal(obs, step.obs["state"])
        np.testing.assert_array_equal(reward, step.reward)
        np.testing.assert_array_equal(done, step.done)
        ended = step.ended.tolist()
        assert [index for index, info in enumerate(infos) if info] == ended
        for row, index in enumerate(ended):
            np.testing.assert_array_equal(infos[index]["terminal_observation"], step.final_obs["state"][row])
            assert infos[index]["TimeLimit.truncated"] is bool(step.truncated[index])
            endings += 1
    assert endings >= 8
    env.close()
    adapter.close()


def test_sb3_adapter_tells_termination_from_truncation() -> None:
    pytest.importorskip("stable_baselines3")
    from sb3_adapter import Sb3Adapter

    # A goal as wide as the table: every first step is a success and ends the episode.
    cfg = {"num_envs": 4, "terminate_on_success": True, "success_threshold": 5.0}
    adapter = Sb3Adapter(build_env("PushCube", cfg))
    adapter.reset()
    _, _, done, infos = adapter.step(np.zeros((4, 4), np.float32))
    assert done.all()
    assert [info["TimeLimit.truncated"] for info in infos] == [False] * 4
    adapter.close()


def test_learning_log_gives_steps_and_minutes_to_target(tmp_path: Path) -> None:
    rows = [
        {"step": 600, "charts/steps_per_second": 10.0},  # one minute
        {"step": 600, "eval/success_once": 0.5},
        {"step": 1200, "charts/steps_per_second": 5.0},  # two minutes
        {"step": 1200, "eval/success_once": 0.96},
        {"step": 1800, "charts/steps_per_second": 10.0},  # one minute
        {"step": 1800, "eval/success_once": 0.9},
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = learn.outcome(learn.read_log(path, "success_once"), 0.95, "success_once", load=0.0)
    assert (run.reached, run.minutes, run.final, run.best) == (1200, 3.0, 0.9, 0.96)
    assert (run.steps, run.total_minutes) == (1800, 4.0)


def test_learning_table_counts_a_run_that_never_got_there_as_the_worst(tmp_path: Path) -> None:
    def run(reached: int | None, final: float) -> learn.Outcome:
        minutes = None if reached is None else reached / 100_000
        return learn.Outcome("success_once", reached, minutes, final, final, 500_000, 5.0, 0.0)

    results = {"push_cube": {"0": run(200_000, 0.99), "2": run(None, 0.5), "1": run(300_000, 0.97)}}
    row = learn.markdown(results).splitlines()[2]
    assert row == (
        "| push_cube | success_once 95.0% | 200k, 300k, never | 300k | never | 3.00 (never) | 99.0%, 97.0%, 50.0% |"
    )
    learn.save_results(results, tmp_path)
    assert learn.load_results(tmp_path / "results.json") == results
    assert (tmp_path / "table.md").read_text() == learn.markdown(results)


def test_what_a_kill_has_left_is_counted(tmp_path: Path) -> None:
    from samples import make_episode

    from kill_collect import Kill, look
    from plaudit.data import EpisodeStore

    store = EpisodeStore.create(tmp_path)
    first, again = make_episode("a"), replace(make_episode("a"), id="b")
    store.add([first, again, make_episode("c")])
    store.file("c").write_bytes(store.file("c").read_bytes()[:-9])
    (store.folder / ".123.d").write_bytes(b"")
    found = look(tmp_path, 1.0, {"a", "x"})
    assert found == Kill(1.0, episodes=3, new=2, unfinished=1, damaged=1, lost=1, twice=1) and not found.fine


def test_what_a_learned_reward_adds_is_counted_seed_by_seed() -> None:
    def runs(*success: float, steps: int = 59_968, seconds: float = 200.0) -> list[dict[str, Any]]:
        curve = [(10_000, 40.0, 0.2), (20_000, 80.0, 0.9), (30_000, 120.0, 0.8)]
        return [{"success": one, "env_steps": steps, "seconds": seconds, "curve": curve} for one in success]

    found = {"rlpd": runs(0.95, 0.85, 0.92), "bc": runs(0.8, 0.84, 0.7, steps=0, seconds=9.0)}
    rows = {row.name: row for row in demonstrated.rows_of("pick_cube", found, 0.9)}
    of_rlpd = "pick_cube: RLPD on a learned reward: true success"
    assert (rows[f"{of_rlpd}, median"].value, rows[f"{of_rlpd}, median"].met) == (0.92, True)
    assert (rows[f"{of_rlpd}, worst"].value, rows[f"{of_rlpd}, worst"].met) == (0.85, False)
    told = rows["pick_cube: RLPD on a learned reward: seconds, worst"]
    assert told.value == 200.0 and told.met is None  # Of the whole run; what counts is when it got there.
    arrived = [rows[f"pick_cube: RLPD on a learned reward: {what} to 90%, worst"] for what in ("env steps", "seconds")]
    assert [(row.value, row.met) for row in arrived] == [(20_000, True), (80.0, True)]
    assert (
        rows["pick_cube: cloning: env steps, worst"].value == 0
        and rows["pick_cube: cloning: seconds, worst"].met is None
    )
    gain = "pick_cube: points that the learned reward adds to cloning"
    assert rows[f"{gain}, median"].value == pytest.approx(15) and rows[f"{gain}, worst"].value == pytest.approx(1)


def test_a_target_that_is_never_met_is_not_reached_in_time() -> None:
    rows = demonstrated.arrival("a", [[(10_000, 40.0, 0.95)], [(10_000, 40.0, 0.5)]], 0.9)
    assert [row.value for row in rows] == [math.inf] * 4 and not any(row.met for row in rows)


def test_what_is_there_is_made_again_only_with_other_settings(tmp_path: Path) -> None:
    bench, made = demonstrated.Bench(tmp_path, [], quick=True), []

    def make(seed: int) -> Any:
        config = stages.load("bc_pick_cube", [f"runtime.seed={seed}", f"runtime.output_dir={tmp_path}"])
        return bench._once("a", to_dict(config), lambda: made.append(seed) or {"success": seed / 10})["success"]

    assert [make(1), make(2), make(1)] == [0.1, 0.2, 0.1] and made == [1, 2]
    moved = tmp_path.rename(tmp_path.with_name("elsewhere"))
    bench, tmp_path = demonstrated.Bench(moved, [], quick=True), moved
    assert make(2) == 0.2 and made == [1, 2]


def test_cloning_is_tuned_on_the_mean_of_other_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = demonstrated.Bench(Path(), [], quick=False)
    asked = []

    def policy(name: str, recipe: str, seed: int, words: list[str]) -> dict[str, float]:
        asked.append(seed)
        return {"success": 0.9 if "sweep03" in name else (0.95 if seed == 100 else 0.1)}

    monkeypatch.setattr(bench, "shown", lambda task, seed: [f"demonstrations of {seed}"])
    monkeypatch.setattr(bench, "policy", policy)
    assert bench.best_cloning("pick_cube") == (demonstrated.SWEEP[3], 0.9)
    assert set(asked) == set(demonstrated.VALIDATION) and not set(asked) & {0, 1, 2}


class Clock:
    """One that only goes on when somebody sleeps, or thinks."""

    def __init__(self) -> None:
        self.now = self.worked = self.lined_up = 0.0
        self.waits = 0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waits += seconds > 0


def test_an_action_that_is_not_there_at_its_tick_is_a_deadline_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(asynchronous, "time", clock)
    monkeypatch.setattr(asynchronous, "used", lambda: ticking.Used(clock.worked, clock.lined_up, clock.waits, 0))
    arm = asynchronous.Clocked(build_env("probe/Timeout", {"num_envs": 1}))
    assert arm.real_time
    arm.reset(0)
    # Seconds between an observation and the action, and how many ticks were missed by then: at 0.32 s that of 0.3, and
    # at 0.75 s those of 0.5, 0.6 and 0.7.
    for thinks, missed, at in ((0.0, 0, 0.0), (0.05, 0, 0.1), (0.09, 0, 0.2), (0.12, 1, 0.4), (0.35, 4, 0.8)):
        clock.now += thinks
        clock.worked += 3 * thinks / 8  # And for an eighth it stands in line, and for half it stands still.
        clock.lined_up += thinks / 8
        clock.waits += thinks > 0.3
        arm.step(torch.zeros(1, 1))
        assert arm.missed == missed and clock.now == pytest.approx(at)
    assert arm.longest == pytest.approx(0.35) and arm.busiest == pytest.approx(0.175) and arm.waits == 1
    assert [(late.seconds, late.acting, late.used.work, late.used.line, late.used.waits) for late in arm.late] == [
        (pytest.approx(0.12), pytest.approx(0.12), pytest.approx(0.045), pytest.approx(0.015), 0),
        (pytest.approx(0.35), pytest.approx(0.35), pytest.approx(0.13125), pytest.approx(0.04375), 1),
    ]
    told = "120 ms after the tick before, 120 ms of them acting; at work for 45 ms, in line for a core for 15 ms"
    assert str(arm.late[0]).startswith(told)


USED = ticking.Used(0.05, 0.01, 0, 0)
LATE = asynchronous.Late(0.12, 0.1, USED, 0.07)
"""By 20 ms; 60 ms were its own, and the host took more than the other 60."""


@pytest.mark.parametrize(
    ("late", "by_host"),
    [
        (LATE, True),
        (LATE._replace(taken=0.05), False),  # 10 ms are nobody's.
        (LATE._replace(used=USED._replace(waits=1)), False),  # For what it waited, nobody knows.
        (LATE._replace(used=USED._replace(line=0.06)), False),  # It would have been late all the same.
        (LATE._replace(seconds=0.35, taken=0.3), True),
        (LATE._replace(seconds=0.35, taken=0.2), False),
    ],
)
def test_which_late_actions_are_the_hosts(late: asynchronous.Late, by_host: bool) -> None:
    assert late.by_host == by_host


def test_several_of_the_last_policies_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = torch.nn.Linear(1, 1).requires_grad_(False)
    snapshots = asynchronous.Snapshots(policy, 1000)
    for step in (500, 790, 860, 940, 999, 1004, 1010):  # At 860 it is past 800 and 850, at 1004 past 1,000.
        policy.weight.data.fill_(step)
        snapshots.on_metrics(step, {})
    assert [int(weights["weight"]) for weights in snapshots.kept] == [860, 940, 999, 1004]
    judged = []

    def evaluate(policy: torch.nn.Linear, env: Any, episodes: int, seed: int) -> Any:
        judged.append((int(policy.weight), seed))
        return SimpleNamespace(metrics={"success_at_end": float(policy.weight) / 1000})

    monkeypatch.setattr(asynchronous, "evaluate", evaluate)
    monkeypatch.setattr(asynchronous, "arms", lambda count: SimpleNamespace(close=lambda: None))
    assert snapshots.success(7) == pytest.approx((0.86 + 0.94 + 0.999 + 1.004) / 4)
    assert judged == [(860, 7), (940, 7), (999, 7), (1004, 7)]


def test_deadlines_are_told_with_whose_they_were() -> None:
    nothing = asynchronous.Outcome(asynchronous.Meter(), 0.0, 0)
    lates = [[LATE], [LATE._replace(used=USED._replace(waits=1)), LATE._replace(seconds=0.35)]]
    found = [
        asynchronous.Live(missed, late, 0.1, 0.06, 2, ticking.Ticking(10.0), 0.0, nothing, nothing)
        for missed, late in zip((1, 4), lates, strict=True)
    ]
    missed, unexplained, work = asynchronous.deadlines(found)
    assert (missed.value, missed.met) == (5, False)
    assert (unexplained.value, unexplained.peer, unexplained.met) == (2, 3, False)
    assert unexplained.note.count("late: ") == 2
    assert work.value == pytest.approx(60.0) and "waited 4 times" in work.note
    assert [row.met for row in asynchronous.deadlines([found[0]._replace(missed=0, late=[])])] == [True, True, None]


def test_what_a_process_that_only_sleeps_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    oversleeps = iter((0.0, 0.09, 0.0, 0.25, 0.0))
    ended = threading.Event()

    class Drowsy(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds + next(oversleeps, 0.0))
            if self.now > 0.95:
                ended.set()

    monkeypatch.setattr(ticking, "time", Drowsy())
    missed, longest = ticking.tick(10.0, ended)
    assert missed == 2 and longest == pytest.approx(0.25)  # Due at 0.4 s and awake at 0.65 s: those of 0.5 and 0.6.


def test_a_process_that_only_sleeps_tells_when_it_is_ended() -> None:
    with ticking.Ticking(100.0) as bare:
        assert bare.longest == 0
    assert bare.longest > 0
    with pytest.raises(KeyError), ticking.Ticking(100.0) as bare:  # What went wrong meanwhile is what is told.
        bare._process.kill()
        raise KeyError


def test_what_the_host_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticking.os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    (tmp_path / "stat").write_text("cpu  2942350 303584 113172 2223767 9318 0 2349 20659 0 0\ncpu0 1 2 3\n")
    assert ticking.stolen(tmp_path / "stat") == 206.59
    assert ticking.stolen(tmp_path / "none") == 0.0


def test_what_a_thread_has_had_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticking.time, "thread_time", lambda: 1.5)
    (tmp_path / "schedstat").write_text("1499000000 250000000 12\n")
    found = ticking.used(tmp_path / "schedstat")
    assert (found.work, found.line) == (1.5, 0.25)
    assert ticking.used(tmp_path / "none").line == 0.0
    assert ticking.Used(2.0, 0.5, 7, 4).since(ticking.Used(1.5, 0.25, 2, 4)) == (0.5, 0.25, 5, 0)


def test_waits_and_new_pages_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(ticking.resource, "RUSAGE_THREAD"):
        before = ticking.used()
        time.sleep(0.01)
        with mmap.mmap(-1, 2**25) as fresh:  # 32 MiB, in pages of 2 at most.
            fresh.write(b"1" * 2**25)
        found = ticking.used().since(before)
        assert found.waits >= 1 and found.faults >= 16
    monkeypatch.delattr(ticking.resource, "RUSAGE_THREAD", raising=False)
    assert ticking.used()[2:] == (0, 0)


def test_what_the_parts_of_the_demonstrated_benchmark_differ_in(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = demonstrated.Bench(Path("/here"), [], quick=False, demonstrations=5)
    monkeypatch.setattr(bench, "data", lambda recipe, seed: Path("/shown"))
    monkeypatch.setattr(bench, "model", lambda task, seed: Path("/model"))
    monkeypatch.setattr(bench, "policy", lambda name, recipe, seed, words: {"recipe": recipe, "words": set(words)})
    shown = {'algorithm.cfg.demonstrations="/shown"', "algorithm.cfg.num_demonstrations=5"}
    rlpd, plain, sac = (getattr(bench, part)("pick_cube", 0) for part in ("rlpd", "plain", "sac"))
    assert rlpd["words"] == {*shown, 'reward.checkpoint_path="/model"'}
    assert plain["words"] - rlpd["words"] == {"algorithm.cfg.cloning=0"} and rlpd["words"] <= plain["words"]
    assert "algorithm.cfg.demonstrations=null" in sac["words"] and not sac["words"] & shown
    assert {part["recipe"] for part in (rlpd, plain, sac)} == {"rlpd_pick_cube"}
