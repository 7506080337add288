"""The fit: it learns, stops, goes on exactly where it was stopped, and says what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_samples import small_fit, small_model, square_splits

from plaudit.compat.checkpoints import find_checkpoint
from plaudit.config.reward_schema import AugmentConfig, OptimConfig
from plaudit.data.dataset import FrameDataset
from plaudit.data.split import Split
from plaudit.errors import CheckpointError, NonFiniteError
from plaudit.reward_models.evaluation.metrics import evaluate
from plaudit.reward_models.evaluation.scores import score
from plaudit.reward_models.evaluation.validation import Aim, validate
from plaudit.reward_models.training.batches import FrameBatch, FrameFeed
from plaudit.reward_models.training.trainer import DEFAULT_STEPS, VALIDATIONS, Fit, frame_losses, saved_checkpoints

torch.set_num_threads(1)


class Diary:
    """A listener that notes everything."""

    def __init__(self) -> None:
        self.metrics: dict[int, Mapping[str, float]] = {}
        self.evals: dict[int, Mapping[str, float]] = {}
        self.calls: list[tuple[Any, ...]] = []

    def on_start(self, step: int, total_steps: int) -> None:
        self.calls.append(("start", step, total_steps))

    def on_resume(self, step: int) -> None:
        self.calls.append(("resume", step))

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.metrics[step] = metrics

    def on_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        self.evals[step] = metrics

    def close(self) -> None:
        self.calls.append(("close",))


@pytest.fixture(scope="module")
def splits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    return square_splits(tmp_path_factory.mktemp("squares"))


def weights(fit: Fit) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in fit.model.state_dict().items()}


def assert_equal(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_it_learns_what_success_looks_like(splits: dict[str, Split]) -> None:
    diary = Diary()
    fit = small_fit(splits, small_model(heads=2), more={"listeners": [diary]})
    fit.run()
    verdict = validate(score(fit.model, fit.val), Aim())
    test = score(fit.model, FrameFeed(FrameDataset(splits["test"])))
    metrics = evaluate(test, verdict.calibration, verdict.choice.decision)
    assert metrics["balanced_accuracy"] > 0.95 and metrics["roc_auc"] > 0.99
    assert test.spread is not None and len(test) == 64 and test.instant[0] == 1
    assert fit.best is not None and fit.best.score == -min(seen["val/log_loss"] for seen in diary.evals.values())
    steps = fit.sampler.steps_per_epoch
    assert list(diary.evals) == [steps * epoch for epoch in range(1, 9)]
    assert list(diary.metrics) == [*range(5, fit.total_steps, 5), fit.total_steps]
    assert diary.calls == [("start", 0, 8 * steps), ("close",)]
    assert diary.metrics[5]["train/loss"] > diary.metrics[fit.total_steps]["train/loss"]
    assert diary.metrics[5]["train/lr"] == pytest.approx(1e-2, rel=0.05)
    assert diary.metrics[fit.total_steps]["train/lr"] == 0.0


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"num_epochs": None}, DEFAULT_STEPS),
        ({"num_epochs": None, "max_steps": 5000}, 5000),
        ({"num_epochs": 3, "max_steps": 5000}, None),
        ({"num_epochs": 3, "max_steps": 2}, 2),
    ],
)
def test_how_long_it_is(splits: dict[str, Split], keys: dict[str, int | None], steps: int | None) -> None:
    fit = small_fit(splits, **keys)
    assert fit.total_steps == (3 * fit.sampler.steps_per_epoch if steps is None else steps)
    often = -(-fit.total_steps // VALIDATIONS)
    assert fit.val_interval == (fit.sampler.steps_per_epoch if keys["num_epochs"] else often)


def test_a_second_camera_takes_half_of_the_steps(splits: dict[str, Split]) -> None:
    model = small_model(image_keys=["base_camera", "wrist_camera"])
    assert small_fit(splits, model, num_epochs=None).total_steps == DEFAULT_STEPS // 2


def test_the_model_ends_with_the_best_weights(splits: dict[str, Split]) -> None:
    diary = Diary()
    fit = small_fit(splits, num_epochs=4, best_metric="roc_auc", more={"listeners": [diary]})
    fit.run()
    assert fit.best is not None
    first = next(step for step, seen in diary.evals.items() if seen["val/roc_auc"] == fit.best.score)
    assert fit.best.step == first and fit.best.score == max(seen["val/roc_auc"] for seen in diary.evals.values())
    assert_equal(fit.model.state_dict(), fit.best.weights)
    assert not fit.model.training


def test_a_fit_that_was_stopped_goes_on_bit_for_bit(splits: dict[str, Split], tmp_path: Path) -> None:
    changes = {"num_epochs": 3, "micro_batch_size": 12, "balance": "weight"}
    whole_diary, diary = Diary(), Diary()
    whole = small_fit(splits, small_model(dropout=0.3), more={"listeners": [whole_diary]}, **changes)
    whole.run()

    calls = iter(range(100))
    first = small_fit(
        splits, small_model(dropout=0.3), more={"folder": tmp_path, "stop": lambda: next(calls) == 10}, **changes
    )
    first.run()
    assert (
        first.interrupted and first.step == 11 and saved_checkpoints(tmp_path) == [tmp_path / "step_11/checkpoint.pt"]
    )

    torch.rand(7)  # What else draws numbers must not matter.
    second = small_fit(
        splits, small_model(seed=5, dropout=0.3), more={"folder": tmp_path, "listeners": [diary]}, **changes
    )
    second.load(find_checkpoint(tmp_path))
    second.run()
    assert not second.interrupted and second.step == whole.step
    assert whole.best is not None and second.best is not None and second.best.step == whole.best.step
    assert_equal(weights(second), weights(whole))
    assert_equal(second.state()["optimizer_state_dict"]["state"][0], whole.state()["optimizer_state_dict"]["state"][0])
    assert {step: seen["train/loss"] for step, seen in diary.metrics.items()} == {
        step: seen["train/loss"] for step, seen in whole_diary.metrics.items() if step > 11
    }
    assert diary.evals == {step: seen for step, seen in whole_diary.evals.items() if step > 11}
    assert diary.calls[0] == ("resume", 11)

    third = small_fit(splits, small_model(seed=6, dropout=0.3), **changes)
    third.load(find_checkpoint(tmp_path))
    third.run()  # Nothing is left to do.
    assert third.step == whole.step
    assert_equal(weights(third), weights(whole))


def test_checkpoints_have_the_keys_of_workflow_guide(splits: dict[str, Split], tmp_path: Path) -> None:
    fit = small_fit(splits, num_epochs=2, save_interval=4, keep_checkpoints=2, more={"folder": tmp_path})
    fit.run()
    found = saved_checkpoints(tmp_path)
    last = fit.total_steps // 4 * 4
    assert [path.parent.name for path in found] == [f"step_{last}", f"step_{fit.total_steps}"]
    assert not (tmp_path / "step_4").exists()
    content = torch.load(found[-1], weights_only=True)
    assert set(content) >= {"epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc"}
    assert content["epoch"] == 2 and 0 < content["train_acc"] <= 1


@pytest.mark.parametrize("keep", [0, 1])
def test_going_back_to_an_earlier_step_leaves_later_ones(splits: dict[str, Split], tmp_path: Path, keep: int) -> None:
    changes: dict[str, Any] = {"max_steps": 6, "save_interval": 2}
    small_fit(splits, keep_checkpoints=0, more={"folder": tmp_path}, **changes).run()
    (tmp_path / "step_6" / "notes.txt").write_text("mine")
    again = small_fit(splits, keep_checkpoints=keep, more={"folder": tmp_path, "stop": lambda: True}, **changes)
    again.load(tmp_path / "step_2" / "checkpoint.pt")
    again.run()
    expected = ["step_3"] if keep else ["step_2", "step_3"]
    assert [path.parent.name for path in saved_checkpoints(tmp_path)] == expected
    assert [path.name for path in (tmp_path / "step_6").iterdir()] == ["notes.txt"]


def test_a_new_checkpoint_is_kept_whatever_else_is_there(splits: dict[str, Split], tmp_path: Path) -> None:
    fit = small_fit(splits, keep_checkpoints=1, max_steps=2, more={"folder": tmp_path})
    (tmp_path / "step_9").mkdir()
    (tmp_path / "step_9" / "checkpoint.pt").write_text("of another fit")
    fit.run()
    assert (tmp_path / "step_2" / "checkpoint.pt").exists()


@pytest.mark.parametrize("kind", ["damaged", "other data", "other validation", "other model", "foreign"])
def test_what_cannot_be_gone_on_from_is_said(splits: dict[str, Split], tmp_path: Path, kind: str) -> None:
    more = {"folder": tmp_path, "data": "these", "val_data": "these too"}
    small_fit(splits, num_epochs=1, more=more).run()
    path = find_checkpoint(tmp_path)
    again = small_fit(splits, num_epochs=1, more=more)
    if kind == "damaged":
        path.write_bytes(path.read_bytes()[:1000])
    elif kind == "other data":
        again.data = "those"
    elif kind == "other validation":
        again.val_data = "those"
    elif kind == "other model":
        again = small_fit(splits, small_model(width=12), num_epochs=1, more=more)
    else:
        torch.save({"model_state_dict": again.model.state_dict()}, path)
    message = {
        "damaged": "damaged",
        "other data": "other data.* training split",
        "other validation": "other data.* validation split",
        "other model": "another network",
        "foreign": "'epoch'",
    }
    with pytest.raises(CheckpointError, match=message[kind]) as error:
        again.load(path)
    assert str(path) in str(error.value)


def test_early_stopping(splits: dict[str, Split]) -> None:
    fit = small_fit(splits, num_epochs=50, val_check_interval=2, patience=2, optim=OptimConfig(lr=1e-9))
    scores = iter([-0.5, -0.3, -0.4, -0.3, -0.2])
    fit._rank = lambda verdict: next(scores)  # type: ignore[method-assign]
    fit.run()
    assert fit.step == 8 and fit.best is not None and fit.best.step == 4 and not fit.interrupted


def test_steps_and_seconds_end_a_fit(splits: dict[str, Split]) -> None:
    fit = small_fit(splits, max_steps=3)
    fit.run()
    assert fit.step == 3
    late = small_fit(splits, max_seconds=1e-6)
    late.run()
    assert late.step == 1 and late.best is not None


def test_accumulated_gradients_are_those_of_the_whole_batch(splits: dict[str, Split]) -> None:
    fits = [
        small_fit(
            splits, small_model(dropout=0.0), micro_batch_size=size, augment=AugmentConfig(enabled=False), max_steps=1
        )
        for size in (None, 5)
    ]
    for fit in fits:
        fit._learn(fit.train.read(fit.sampler[0]))
    grads = [[parameter.grad for parameter in fit.model.trainable()] for fit in fits]
    for ours, theirs in zip(*grads, strict=True):
        assert ours is not None and theirs is not None
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert fits[0].window == pytest.approx(fits[1].window)


def test_every_head_has_a_loss_of_its_own() -> None:
    logits = torch.tensor([[0.0, 2.0], [1.0, -1.0]])
    # log(1 + exp(z)) - y z for each; their mean is not the loss of the mean logit.
    each = [np.log1p(np.exp(z)) - y * z for z, y in ((0.0, 1), (2.0, 1), (1.0, 0), (-1.0, 0))]
    losses = frame_losses(logits, torch.tensor([1.0, 0.0]))
    assert losses.tolist() == pytest.approx([np.mean(each[:2]), np.mean(each[2:])])


def test_weights_balance_the_classes(splits: dict[str, Split]) -> None:
    fit = small_fit(splits, balance="weight", success_share=0.5)
    labels = fit.train.dataset.labels
    share = (labels == 1).mean()
    assert fit.learner.class_weights.tolist() == pytest.approx([0.5 / (1 - share), 0.5 / share])
    assert small_fit(splits, balance="none").learner.class_weights.tolist() == [1.0, 1.0]


def test_a_loss_that_is_not_a_number_names_step_and_episodes(splits: dict[str, Split]) -> None:
    class Broken(FrameFeed):
        def logits(self, model: Any, batch: FrameBatch, random: Any = None) -> torch.Tensor:
            return super().logits(model, batch, random) / (0.0 if self.count() == 2 else 1.0)

        seen = 0

        def count(self) -> int:
            self.seen += 1
            return self.seen - 1

    fit = small_fit(splits)
    fit.train = Broken(fit.train.dataset)
    with pytest.raises(NonFiniteError, match=r"at step 2, for frames of the episodes square-0.*optim\.lr"):
        fit.run()


def test_only_the_head_of_a_frozen_model_learns(splits: dict[str, Split]) -> None:
    model = small_model(freeze_encoder=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit = small_fit(splits, model, max_steps=3)
    fit.run()
    changed = {name.split(".")[0] for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"pooling", "head"}
