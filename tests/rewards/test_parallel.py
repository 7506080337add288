"""Two processes on one model: they learn what one does, agree on everything, and hand over to each other."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from fit_samples import small_fit, small_model, square_splits
from test_fit import Diary

from plaudit.config.reward_schema import OptimConfig
from plaudit.data.split import Split
from plaudit.errors import ConfigError, NonFiniteError
from plaudit.reward_models.evaluation.scores import score
from plaudit.reward_models.training.batches import FeatureFeed, FrameFeed
from plaudit.reward_models.training.distributed import Alone, Backend, Ranks, Seat, join
from plaudit.reward_models.training.trainer import Fit, saved_checkpoints

torch.set_num_threads(1)

BACKENDS: tuple[Backend, ...] = ("ddp", "fsdp")
# 31 frames do not divide by two; of parts of five one process would have three and the other four, which must not be.
# The gradient is longer than it may be.
SETTINGS: dict[str, Any] = {
    "global_batch_size": 31,
    "micro_batch_size": 5,
    "optim": OptimConfig(lr=1e-2, clip_grad=0.1),
    "max_steps": 8,
    "val_check_interval": 4,
    "log_interval": 2,
}


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    return square_splits(tmp_path_factory.mktemp("squares"), 48)


def together(folder: Path, backend: Backend, work: Callable[[Ranks], Any]) -> list[Any]:
    """What `work` returns in each of two processes."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("fork")  # Without importing torch anew.
    meeting = (folder / "meeting").as_uri()

    def run(rank: int) -> None:
        with join(Seat(meeting, rank, 2, rank, 2), backend, cuda=False) as ranks:
            torch.save(work(ranks), folder / f"{rank}.pt")

    processes = [context.Process(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def plain_model(seed: int = 0, **changes: Any) -> Any:
    """No dropout: its masks differ between one process and two."""
    return small_model(seed, dropout=0.0, heads=2, **changes)


def shown(fit: Fit, diary: Diary) -> dict[str, Any]:
    """All that two fits must agree on."""
    skip = "train/frames_per_second"
    metrics = {step: {k: float(v) for k, v in seen.items() if k != skip} for step, seen in diary.metrics.items()}
    evals = {step: {k: float(v) for k, v in seen.items()} for step, seen in diary.evals.items()}
    state = fit.state()
    return {
        "weights": state["model_state_dict"],
        "optimizer": state["optimizer_state_dict"],
        "best": state["best"],
        "metrics": metrics,
        "evals": evals,
    }


def assert_close(ours: Any, theirs: Any) -> None:
    """Equal but for rounding."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_close(ours[key], theirs[key])
    elif isinstance(ours, torch.Tensor):
        assert type(ours) is type(theirs) is torch.Tensor
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-4, nan_ok=True)
    elif isinstance(ours, list):
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other)
    else:
        assert ours == theirs


def fitted(
    splits: dict[str, Split], ranks: Ranks, more: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    diary = Diary()
    model = changes.pop("model", None) or plain_model(seed=0 if ranks.leads else 7)  # The leader's weights are used.
    fit = small_fit(
        splits, model, more={"listeners": [diary], "ranks": ranks, **(more or {})}, **{**SETTINGS, **changes}
    )
    fit.run()
    return shown(fit, diary)


@pytest.mark.parametrize("clip", [0.1, 0.0])  # A shortened gradient would hide one that is twice as long.
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes_learn_what_one_does(
    splits: dict[str, Split], tmp_path: Path, backend: Backend, clip: float
) -> None:
    changes = {"optim": OptimConfig(lr=1e-2, clip_grad=clip), "max_steps": 8 if clip else 4}
    alone = fitted(splits, Alone(), **changes)
    first, second = together(tmp_path, backend, lambda ranks: fitted(splits, ranks, **changes))
    assert_close(first, alone)
    assert all(torch.equal(first["weights"][name], second["weights"][name]) for name in first["weights"])
    start = plain_model().state_dict()
    moved = {name: float((alone["weights"][name] - start[name]).abs().max()) for name in start}
    assert min(moved.values()) > 1e-3  # Every weight has changed by more than they may differ.


def test_one_backend_goes_on_where_another_stopped(splits: dict[str, Split], tmp_path: Path) -> None:
    whole = fitted(splits, Alone())
    here = tmp_path / "fit"

    def stops_at(step: int, ranks: Ranks, load: bool) -> None:
        # Only the second process is asked to stop, and both do.
        calls = iter(range(100))
        fit = small_fit(
            splits,
            plain_model(seed=3),
            more={"folder": here, "ranks": ranks, "stop": lambda: next(calls) == step and ranks.rank == ranks.size - 1},
            **SETTINGS,
        )
        if load:
            fit.load(saved_checkpoints(here)[-1])
        else:
            fit.learner.net.load(plain_model().state_dict(), "the start")
        fit.run()
        assert fit.interrupted

    together(tmp_path / "one", "fsdp", lambda ranks: stops_at(1, ranks, load=False))
    together(tmp_path / "two", "ddp", lambda ranks: stops_at(1, ranks, load=True))
    stops_at(0, Alone(), load=True)
    assert [path.parent.name for path in saved_checkpoints(here)] == ["step_2", "step_4", "step_5"]

    def goes_on(ranks: Ranks) -> dict[str, Any]:
        diary = Diary()
        fit = small_fit(splits, plain_model(seed=4), more={"listeners": [diary], "ranks": ranks}, **SETTINGS)
        fit.load(saved_checkpoints(here)[-1])
        fit.run()
        return shown(fit, diary)

    last, _ = together(tmp_path / "three", "fsdp", goes_on)
    for key in ("weights", "optimizer", "best"):
        assert_close(last[key], whole[key])
    assert_close(last["metrics"], {step: seen for step, seen in whole["metrics"].items() if step > 5})


def test_batch_norm_is_of_what_goes_through_the_net_together(splits: dict[str, Split], tmp_path: Path) -> None:
    changes: dict[str, Any] = {"global_batch_size": 32, "micro_batch_size": None, "max_steps": 3}

    def work(ranks: Ranks) -> dict[str, Any]:
        return fitted(splits, ranks, model=plain_model(norm="batch"), **changes)

    first, second = together(tmp_path, "ddp", work)
    halves = fitted(splits, Alone(), model=plain_model(norm="batch"), **{**changes, "micro_batch_size": 16})
    running = [name for name in first["weights"] if "running_" in name]
    assert running and all(torch.equal(first["weights"][name], second["weights"][name]) for name in running)
    learned = {name: value for name, value in halves["weights"].items() if value.is_floating_point()}
    assert_close(
        {k: first["weights"][k] for k in learned if k not in running},
        {k: learned[k] for k in learned if k not in running},
    )


def test_a_loss_that_is_no_number_in_one_process_stops_both(splits: dict[str, Split], tmp_path: Path) -> None:
    class Broken(FrameFeed):
        def logits(self, model: Any, batch: Any, random: Any = None) -> torch.Tensor:
            logits = super().logits(model, batch, random)
            return logits / 0 if random is not None and dist.get_rank() == 1 else logits

    def work(ranks: Ranks) -> str:
        fit = small_fit(splits, plain_model(), more={"ranks": ranks}, **SETTINGS)
        fit.train = Broken(fit.train.dataset)
        with pytest.raises(NonFiniteError) as error:
            fit.run()
        return str(error.value)

    first, second = together(tmp_path, "ddp", work)
    assert first == second and "at step 0, for frames of the episodes square-" in first


def test_what_processes_tell_each_other(splits: dict[str, Split], tmp_path: Path) -> None:
    made = tmp_path / "made"
    feed = small_fit(splits).val
    model = plain_model()
    alone = score(model, feed)

    def work(ranks: Ranks) -> dict[str, Any]:
        with ranks.first("a file"):
            if ranks.leads:
                made.write_text("whole")
            text = made.read_text()  # The second one does not get here before it is there.
        scores = score(model, feed, ranks)
        assert scores.spread is not None and alone.spread is not None
        return {
            "text": text,
            "gathered": ranks.gather([ranks.rank, 0.1]),
            "told": ranks.told(lambda: f"by {ranks.rank}"),
            "shares": [ranks.share(5).start, ranks.share(5).stop, ranks.local_size, ranks.gpu(3)],
            "scores": bool((scores.logits == alone.logits).all() and (scores.spread == alone.spread).all()),
        }

    both = together(tmp_path / "meet", "ddp", work)
    common = {"text": "whole", "gathered": [[0.0, 0.1], [1.0, 0.1]], "told": "by 0", "scores": True}
    assert both == [{**common, "shares": [0, 2, 2, 0]}, {**common, "shares": [2, 5, 2, 1]}]


def test_one_process_is_a_group_too() -> None:
    ranks = Alone()
    assert ranks.leads and ranks.share(7) == slice(0, 7) and ranks.gpu(3) == 3 and ranks.told(lambda: 5) == 5
    assert ranks.gather([1.0, 2.0]) == [[1.0, 2.0]]


class Rank(Alone):
    """One of several, as far as it divides things."""

    cuts = Ranks.cuts

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size


@pytest.mark.parametrize(
    ("count", "most", "lengths"),
    [
        (65, 32, [[16, 16], [16, 17]]),
        (31, 5, [[3, 4, 4, 4], [4, 4, 4, 4]]),
        (64, 32, [[32], [32]]),
        (31, 31, [[15], [16]]),
        (3, 1, [[1], [2]]),  # No part may be empty.
    ],
)
def test_all_processes_have_as_many_parts(count: int, most: int, lengths: list[list[int]]) -> None:
    for rank, expected in enumerate(lengths):
        cuts = Rank(rank, 2).cuts(count, most)
        assert [cut.stop - cut.start for cut in cuts] == expected
        assert [cut.start for cut in cuts] == [
            0,
            *[cut.stop for cut in cuts][:-1],
        ]  # One after the other, without gaps.


def test_every_process_needs_a_frame(splits: dict[str, Split]) -> None:
    class Crowd(Alone):
        size = 40

    with pytest.raises(ConfigError, match="a step has 31 frames, too few for 40 processes"):
        small_fit(splits, more={"ranks": Crowd()}, **SETTINGS)


def test_a_share_is_read_with_the_draws_of_the_whole_batch(splits: dict[str, Split]) -> None:
    dataset = small_fit(splits).train.dataset
    features = np.arange(len(dataset) * 5, dtype=np.float16).reshape(len(dataset), 5, 1)
    feed, rows = FeatureFeed(dataset, features), np.arange(9)
    whole = feed.read(rows, np.random.default_rng(1))
    shares = [feed.read(rows, np.random.default_rng(1), slice(*ends)) for ends in ((0, 4), (4, 9))]
    assert [(share.start, share.whole, len(share.labels)) for share in shares] == [(0, 9, 4), (4, 9, 5)]
    assert torch.equal(torch.cat([share.inputs for share in shares]), whole.inputs)  # type: ignore[misc, arg-type]


def test_torchrun_gives_a_seat() -> None:
    meeting = {"MASTER_ADDR": "here", "MASTER_PORT": "1"}
    assert Seat.from_environment({"RANK": "1", "WORLD_SIZE": "4"}) is None
    assert Seat.from_environment({**meeting, "RANK": "1", "WORLD_SIZE": "4"}) == Seat("env://", 1, 4, 1, 4)
    local = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    assert Seat.from_environment({**meeting, **local, "RANK": "2", "WORLD_SIZE": "4"}) == Seat("env://", 2, 4, 0, 2)
