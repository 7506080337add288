"""Which frames are drawn for being hard, that a fit goes on with the same ones, and when it draws any."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_samples import small_fit, small_model, square, square_splits
from test_parallel import plain_model, together

from plaudit.config.reward_schema import TrainingConfig
from plaudit.data import EpisodeStore
from plaudit.data.dataset import FrameDataset
from plaudit.data.split import Split
from plaudit.errors import NonFiniteError
from plaudit.reward_models.training.batches import FeatureFeed, FrameBatch, FrameFeed
from plaudit.reward_models.training.distributed import Alone, Ranks
from plaudit.reward_models.training.samplers import AHEAD, BatchSampler, HardFrames, share_for
from plaudit.reward_models.training.trainer import Fit, saved_checkpoints

torch.set_num_threads(1)

LABELS = np.array([0] * 30 + [1] * 10 + [-1] * 5, np.int8)
# Thirty steps: looks are taken after every second one, and hard frames are drawn from step 6 on.
STEPS: dict[str, Any] = {"max_steps": 30, "num_epochs": None, "hard_share": 0.5}


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    return square_splits(tmp_path_factory.mktemp("squares"), 48)


def told(losses: dict[int, float], *, share: float = 0.5, success_share: float | None = 0.5) -> BatchSampler:
    """A sampler of batches of 16 that knows these losses of some rows, and draws hard ones from step 6 on."""
    sampler = BatchSampler(LABELS, 16, seed=0, success_share=success_share)
    sampler.hard = HardFrames(sampler.groups, len(LABELS), share, 0, total_steps=30)
    sampler.hard.note(1, np.array(list(losses), np.int64), np.array(list(losses.values()), np.float32))
    return sampler


def counts(batches: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return np.bincount(np.concatenate(batches), minlength=len(LABELS))


def test_frames_are_drawn_by_their_losses() -> None:
    hard = HardFrames([np.arange(10, 14), np.arange(5)], 14, 0.5, 0, total_steps=30)
    # Row 13 was not seen; a loss above 2 counts as 2. In the other group only row 4 was seen.
    hard.note(1, np.array([10, 11, 12, 4]), np.array([0.5, 9.0, 1.5, 0.1], np.float32))
    drawn = np.concatenate([hard.draw(step, 0, 4) for step in range(6, 1006)])
    shares = np.bincount(drawn, minlength=14)[10:] / 4000
    np.testing.assert_allclose(shares, [0.125, 0.5, 0.375, 0.0], atol=0.01)
    # One from each quarter of the sum: row 11, which is half of it, is two of four at all times, but for the edges.
    assert {int((hard.draw(step, 0, 4) == 11).sum()) for step in range(6, 106)} <= {1, 2, 3}
    assert hard.draw(6, 1, 3).tolist() == [4, 4, 4] and len(hard.draw(6, 1, 0)) == 0


def test_all_are_alike_where_nothing_is_known_to_be_hard() -> None:
    for losses in ({}, {0: 0.0, 1: 0.0}):
        sampler = told(losses)
        assert sampler.hard is not None
        drawn = np.concatenate([sampler.hard.draw(step, 0, 30) for step in range(6, 206)])
        assert set(drawn) == set(range(30)) and (np.bincount(drawn) == 200).all()


def test_a_later_loss_replaces_an_earlier_one() -> None:
    hard = HardFrames([np.arange(2)], 2, 0.5, 0, total_steps=30)
    hard.note(1, np.array([0, 1]), np.array([1.0, 0.0], np.float32))
    assert set(hard.draw(6, 0, 50)) == {0}
    hard.note(7, np.array([0, 1]), np.array([0.0, 1.0], np.float32))
    assert set(hard.draw(8 + AHEAD, 0, 50)) == {1}
    # The steps that were being read when this became known.
    assert all(set(hard.draw(step, 0, 50)) == {0} for step in range(8, 8 + AHEAD))


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_batches_keep_their_share_of_successes(share: float) -> None:
    sampler = told({0: 1.0, 30: 1.0}, share=share)
    batches = [sampler[step] for step in range(206)]
    assert all(len(rows) == 16 and (LABELS[rows] == 1).sum() == 8 for rows in batches)
    taken = counts(batches)
    # In 200 steps 1,600 frames of a class, of which this share are the hard one; the rest are taken in turn.
    for kind, hard in ((0, 0), (1, 30)):
        rest = np.delete(taken[kind == LABELS], 0)
        assert rest.max() - rest.min() <= 1
        assert taken[hard] - rest.mean() == pytest.approx(1600 * share, abs=1.5)
    assert (taken[LABELS == -1] == 0).all()


@pytest.mark.parametrize("balance", ["weight", "none"])
def test_without_a_balance_each_class_is_drawn_as_often_as_it_comes(splits: dict[str, Split], balance: str) -> None:
    fit = small_fit(splits, **{**STEPS, "balance": balance})
    labels = fit.train.dataset.labels
    natural = (labels == 1).sum() / (labels >= 0).sum()
    late = np.concatenate([fit.sampler[step] for step in range(fit.total_steps)])
    assert (labels[late] == 1).mean() == pytest.approx(natural, abs=1 / len(late))


def test_before_its_start_every_frame_is_taken_in_turn() -> None:
    sampler, plain = told({0: 1.0, 30: 1.0}), BatchSampler(LABELS, 16, seed=0, success_share=0.5)
    assert sampler.hard is not None and sampler.hard.start == 6
    assert all(sampler[step].tolist() == plain[step].tolist() for step in range(6))
    assert sampler[6].tolist() != plain[6].tolist()


def test_rows_follow_from_seed_step_and_losses_alone() -> None:
    ours, theirs = told({0: 1.0, 1: 0.5, 30: 1.0}), told({0: 1.0, 1: 0.5, 30: 1.0})
    for step in range(6, 12):
        ours[step]
    assert ours[12].tolist() == theirs[12].tolist() != theirs[13].tolist()
    assert ours.hard is not None and theirs.hard is not None
    theirs.hard.seed = 1
    assert ours[12].tolist() != theirs[12].tolist()


@pytest.mark.parametrize("backs_off", [0, 1, 2])
def test_a_sampler_goes_on_between_two_looks(backs_off: int) -> None:
    ours = told({0: 1.0, 30: 1.0})
    assert ours.hard is not None
    ours.hard.note(9, np.array([1, 31]), np.ones(2, np.float32))
    ours.hard.note(10, np.array([2]), np.ones(1, np.float32))  # No look has seen this yet.
    theirs = BatchSampler(LABELS, 16, seed=0, success_share=0.5)
    theirs.hard = HardFrames(theirs.groups, len(LABELS), 0.5, 0, total_steps=30)
    theirs.hard.load(ours.hard.state(), 11)
    for sampler in (ours.hard, theirs.hard):
        sampler.note(11, np.array([32]), np.ones(1, np.float32))
    steps = range(11 + backs_off, 20)
    assert [ours[step].tolist() for step in steps] == [theirs[step].tolist() for step in steps]
    assert 2 in theirs.hard.draw(14, 0, 60) and 2 not in theirs.hard.draw(13, 0, 60)


def rows_of(fit: Fit) -> dict[int, list[int]]:
    """The rows that a fit reads for each step from now on, filled as it runs."""
    seen: dict[int, list[int]] = {}
    read = fit.train.read

    def note(rows: Any, *args: Any) -> FrameBatch:
        seen[fit.step + len(seen) if not seen else max(seen) + 1] = rows.tolist()
        return read(rows, *args)

    fit.train.read = note  # type: ignore[method-assign]
    return seen


def test_a_fit_goes_on_with_the_same_frames(splits: dict[str, Split], tmp_path: Path) -> None:
    changes = {**STEPS, "max_steps": 16, "val_check_interval": 100, "micro_batch_size": 12}
    kept = {"save_interval": 1, "keep_checkpoints": 0}
    whole = small_fit(splits, small_model(dropout=0.3), more={"folder": tmp_path}, **changes, **kept)
    expected = rows_of(whole)
    whole.run()
    plain = small_fit(splits, **{**changes, "hard_share": 0.0})
    assert [step for step in range(16) if expected[step] == plain.sampler[step].tolist()] == [0, 1, 2, 3]
    for step in (3, 8, 9, 10):  # Before the start; at a look, when it does not count yet, and when it does.
        again = small_fit(splits, small_model(seed=5, dropout=0.3), **changes)
        again.load(tmp_path / f"step_{step}" / "checkpoint.pt")
        rows = rows_of(again)
        again.run()
        assert rows == {number: expected[number] for number in range(step, 16)}
        ours, theirs = again.model.state_dict(), whole.model.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_earlier_checkpoint_has_no_losses(
    splits: dict[str, Split], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls = iter(range(100))
    small_fit(splits, more={"folder": tmp_path, "stop": lambda: next(calls) == 10}, **STEPS).run()
    path = saved_checkpoints(tmp_path)[-1]
    content = torch.load(path, weights_only=True)
    del content["hard"]
    torch.save(content, path)
    again = small_fit(splits, **STEPS)
    with caplog.at_level(logging.INFO, "plaudit"):
        again.load(path)
    assert "has no losses of frames: hard ones are drawn from step 17 on" in caplog.text
    rows, plain = rows_of(again), small_fit(splits, **{**STEPS, "hard_share": 0.0}).sampler
    again.run()
    assert all(rows[step] == plain[step].tolist() for step in range(11, 17)) and rows[17] != plain[17].tolist()


def test_the_losses_are_those_of_the_frames(splits: dict[str, Split]) -> None:
    fits = [small_fit(splits, plain_model(), micro_batch_size=size, **STEPS) for size in (None, 5)]
    for fit in fits:
        fit.train = FrameFeed(fit.train.dataset)  # Not varied, so that we can say what a loss is.
        fit._learn(fit.train.read(fit.sampler[0]))
    rows = fits[0].sampler[0]
    model = plain_model().train()
    with torch.no_grad():
        batch = fits[0].train.read(rows)
        logits = fits[0].train.logits(model, batch)
    # log(1 + exp(-z)) of a success, log(1 + exp(z)) of a failure, the mean over both heads.
    signs = 1 - 2 * batch.labels[:, None]
    expected = torch.log1p(torch.exp(signs * logits)).mean(1)
    for fit in fits:
        assert fit.sampler.hard is not None
        losses = fit.sampler.hard.state()["losses"]
        torch.testing.assert_close(losses[torch.from_numpy(rows)], expected, rtol=1e-4, atol=1e-5)
        assert int(losses.isnan().sum()) == len(losses) - len(rows)


def test_all_processes_take_the_same_frames_as_one(splits: dict[str, Split], tmp_path: Path) -> None:
    # Few steps at a small rate: what rounding does to the losses must not grow to what changes a lot.
    changes: dict[str, Any] = {**STEPS, "global_batch_size": 15, "micro_batch_size": 4, "max_steps": 12}

    def work(ranks: Ranks) -> dict[str, Any]:
        fit = small_fit(splits, plain_model(), more={"ranks": ranks}, **changes)
        rows = rows_of(fit)
        fit.run()
        assert fit.sampler.hard is not None
        return {"rows": rows, "losses": fit.sampler.hard.state()["losses"]}

    alone = work(Alone())
    first, second = together(tmp_path, "ddp", work)
    assert first["rows"] == second["rows"] == alone["rows"]
    assert torch.equal(first["losses"].nan_to_num(-1), second["losses"].nan_to_num(-1))
    torch.testing.assert_close(first["losses"], alone["losses"], rtol=1e-3, atol=1e-4, equal_nan=True)


def test_features_are_drawn_likewise(splits: dict[str, Split]) -> None:
    model = small_model(freeze_encoder=True)
    fit = small_fit(splits, model, **STEPS)
    dataset = fit.train.dataset
    with torch.no_grad():
        images = model.prepare(dataset.batch(range(len(dataset)))["frames"])
        features = model.encode(images).numpy().astype(np.float16)
    fit.train = FeatureFeed(dataset, features[:, None].repeat(3, 1))
    rows = rows_of(fit)
    fit.run()
    losses = fit.sampler.hard.state()["losses"] if fit.sampler.hard is not None else torch.zeros(0)
    assert {row for some in rows.values() for row in some} == set(np.flatnonzero(~losses.isnan().numpy()))


def test_a_loss_that_is_no_number_names_the_episode_of_the_frame(splits: dict[str, Split]) -> None:
    class Broken(FrameFeed):
        names: list[str]

        def logits(self, model: Any, batch: FrameBatch, random: Any = None) -> torch.Tensor:
            logits = super().logits(model, batch, random)
            if fit.step == 9:
                self.names = [self.dataset.source[int(self.dataset.episodes[batch.rows[3]])].id]
                logits = torch.where(torch.arange(len(logits))[:, None] == 3, torch.nan, logits)
            return logits

    fit = small_fit(splits, **STEPS)
    fit.train = feed = Broken(fit.train.dataset)
    with pytest.raises(NonFiniteError, match="the loss is nan at step 9") as error:
        fit.run()
    assert f"for frames of the episodes {feed.names[0]}. Lower" in str(error.value)


@pytest.mark.parametrize(
    ("sources", "share", "words"),
    [
        (["simulator"], 0.75, "75 % of each batch are drawn by how hard frames are, since all labels are a sim"),
        (["simulator", "person"], 0.0, "drawn alike: labels are of origin person"),
        (["rule", "unknown"], 0.0, "drawn alike: labels are of origin rule, unknown"),
    ],
)
def test_labels_that_may_be_wrong_are_not_dwelt_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sources: list[Any], share: float, words: str
) -> None:
    store = EpisodeStore.create(tmp_path / "data")
    store.add([dataclasses.replace(square(i), label_source=sources[i % len(sources)]) for i in range(4)])
    # Frames without a label are not learned from, whoever has not given it.
    blank = dataclasses.replace(square(4), labels=np.full(8, -1, np.int8), label_source="unknown")
    store.add([blank])
    dataset = FrameDataset(store)
    with caplog.at_level(logging.INFO, "plaudit"):
        assert share_for(None, dataset) == share
    assert words in caplog.text
    assert share_for(0.25, dataset) == 0.25 and share_for(0.0, dataset) == 0.0


def test_a_fit_asks_who_gave_the_labels(splits: dict[str, Split]) -> None:
    assert small_fit(splits).sampler.hard is None  # A rule did.
    given = small_fit(splits, hard_share=0.25).sampler.hard
    assert given is not None and given.share == 0.25


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_is_less_than_all(share: float) -> None:
    with pytest.raises(ValueError, match="hard_share"):
        TrainingConfig(hard_share=share)
