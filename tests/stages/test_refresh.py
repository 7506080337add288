"""A model that is fooled, refreshed in the midst of a run: what it costs, what it is worth, and what a kill leaves."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_samples import config, policy_of, prepare, same
from score_samples import make_scores

from plaudit.data import EpisodeStore
from plaudit.data.episode import UNKNOWN
from plaudit.errors import CheckpointError
from plaudit.pipelines import evaluate, report, resume, train
from plaudit.pipelines.builders import StageDir
from plaudit.pipelines.refresh import Refresher, _judged
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.evaluation.scores import Scores
from plaudit.reward_models.evaluation.validation import Aim, ValidationResult, validate
from plaudit.rewards.audit.label_sheet import COLUMNS, LIST
from plaudit.rl import Trainer

REFRESH = "reward.audit.on_alarm=refresh"


class Killed(BaseException):
    """Nobody catches it."""


def audit_of(run: str | Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(run) / "audit.json").read_text())
    return content


def test_the_fooled_model_is_refreshed_and_the_truth_is_counted(recipe: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = train(config(recipe, REFRESH), quiet=True)
    run, record = Path(result["run"]), audit_of(result["run"])
    (refresh,) = record["refreshes"]
    assert refresh["version"] == 2 and refresh["step"] == record["alarms"][0]["step"]
    assert refresh["after"]["fooled"] <= 1 < 5 < refresh["before"]["fooled"]
    assert refresh["after"]["agreement"] > refresh["before"]["agreement"]
    assert record["mood"] == "look" and "was refreshed once" in record["summary"]

    store = EpisodeStore(run / "audit" / "labelled")
    assert len(store) == refresh["episodes"] == record["labels"]["spent"] == result["audit"]["labels"]
    known = sum(int((summary.labels != UNKNOWN).sum()) for summary in store.summaries())
    assert known == refresh["frames"] and {summary.label_source for summary in store.summaries()} == {"simulator"}
    assert store[0].meta["actor"] == "training" and store[0].meta["reward_version"] == 1
    assert store[0].meta["policy_step"] == refresh["step"]

    first, second = RewardArtifact.load(recipe.parent / "model"), RewardArtifact.load(run / "audit" / "reward_v2")
    assert result["reward_model"]["id"] == second.id == refresh["id"]
    about = second.data["refresh"]
    assert about["version"] == 2 and about["parent"] == first.id and about["labelled_episodes"] == len(store)
    # Beyond 0.5 is a success in truth, of which the logit was 2: that is where the line is now, and not at 0.
    scale = float(second.weights["scale"]) * 16
    p = second.calibration.probabilities(torch.tensor([1.6, 2.4]).numpy() * scale)
    assert p[0] < second.decision.threshold < p[1]
    assert second.label_sources["simulator"] > first.label_sources.get("simulator", 0)

    assert evaluate(run, quiet=True)["eval"] == result["test"]
    page = Path(report(run, quiet=True)["report"]).read_text()
    assert "refreshed model" in page and f"{refresh['before']['fooled']} of {refresh['before']['failures']}" in page
    assert "fooled_v1.png" in [Path(one["file"]).name for one in record["pictures"]]
    assert "It is refreshed now, with labels of the truth" in caplog.text


@pytest.mark.parametrize(("share", "rest"), [(1.0, 6), (0.8, 5), (0.0, 4)])
def test_training_goes_on_for_its_share_after_a_refresh(recipe: Path, share: float, rest: int) -> None:
    schedule = "algorithm.cfg.lr_schedule=linear"
    result = train(config(recipe, REFRESH, schedule, f"reward.audit.prolong={share}"), quiet=True)
    (refresh,) = audit_of(result["run"])["refreshes"]
    assert refresh["step"] == 2 * 128 and result["steps"] == refresh["step"] + rest * 128
    lines = [json.loads(line) for line in (Path(result["run"]) / "logs" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["train/learning_rate"] for line in lines if "train/learning_rate" in line]
    assert rates == pytest.approx([1e-3 * left / 6 for left in (6, 5, *range(rest, 0, -1))])


def test_the_best_policy_to_the_old_model_is_forgotten(recipe: Path) -> None:
    result = train(config(recipe, REFRESH, "runtime.eval_freq=128"), quiet=True)
    step = audit_of(result["run"])["refreshes"][0]["step"]
    first = [one for one in audit_of(result["run"])["evaluations"] if one["step"] < step]
    assert first and all(one["version"] == 1 for one in first)
    assert result["best_step"] >= step
    # To the old model it was better than any is to the new one.
    assert max(one["claimed"] for one in first) > result["best"]


@pytest.mark.parametrize(("frozen", "later"), [(True, 1), (False, 0)])
def test_a_run_that_is_killed_after_a_refresh_ends_as_an_unbroken_one(
    tmp_path: Path, frozen: bool, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = prepare(tmp_path, freeze_encoder=frozen)
    words = [REFRESH, "reward.audit.window=32"]
    whole = train(config(recipe, *words), quiet=True)
    record = audit_of(whole["run"])
    refreshed = record["refreshes"][0]["step"]

    def save(self: Trainer, *arguments: Any) -> None:
        # With `later` there was a checkpoint after the refresh; without, all of it is done again.
        if self.step == refreshed + 128 * later:
            raise Killed
        saved(self, *arguments)

    saved = Trainer._save
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_save", save)
        with pytest.raises(Killed):
            train(config(recipe, *words, f"runtime.output_dir={tmp_path / 'killed'}"), quiet=True)
    (run,) = (tmp_path / "killed").iterdir()
    assert (run / "audit" / "reward_v2").is_dir()
    kept = torch.load(run / "checkpoints" / "latest.pt")["listeners"]["Auditing"]["version"]
    assert (kept == 2) is bool(later)
    again = resume(run, quiet=True)
    assert again["exact_resume"] is True
    for name in ("latest.pt", "best.pt"):
        assert same(policy_of(run, name), policy_of(whole["run"], name))
    ours = audit_of(run)
    for name in ("window", "evaluations", "alarms", "labels", "test"):
        assert ours[name] == record[name], name
    assert [one["id"] for one in ours["refreshes"]] == [one["id"] for one in record["refreshes"]]


def test_the_budget_is_kept_and_its_end_is_said_once(
    recipe: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(self: Refresher, artifact: RewardArtifact, store: Any, ids: Any, path: Path) -> RewardArtifact:
        return artifact.save(path)  # It learns nothing, and is fooled again and again.

    monkeypatch.setattr(Refresher, "fit", fit)
    words = [
        REFRESH,
        "reward.audit.max_labels=45",
        "reward.audit.window=16",
        "runtime.iterations=14",
        "reward.audit.prolong=0",
    ]
    result = train(config(recipe, *words), quiet=True)
    record = audit_of(result["run"])
    assert record["labels"] == {"spent": 45, "budget": 45}
    assert len(EpisodeStore(Path(result["run"]) / "audit" / "labelled")) == 45
    assert len(record["alarms"]) > len(record["refreshes"]) + 1 > 2
    assert sum(one["episodes"] for one in record["refreshes"]) == 45
    assert (
        len([text for text in caplog.messages if "labels that reward.audit.max_labels allows are spent" in text]) == 1
    )
    assert result["steps"] == 14 * 128


def test_a_refresh_that_makes_things_worse_is_not_used(
    recipe: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*arguments: Any) -> None:
        raise CheckpointError("its threshold is 1.")

    monkeypatch.setattr(Refresher, "fit", fit)
    result = train(config(recipe, REFRESH), quiet=True)
    record = audit_of(result["run"])
    assert record["failed_refreshes"] and not record["refreshes"] and record["mood"] == "bad"
    assert "could not be refreshed, and stays as it is: its threshold is 1." in caplog.text
    assert record["labels"]["spent"] > 0 and result["audit"]["version"] == 1
    assert result["steps"] == 6 * 128


def test_what_a_failed_refresh_has_spent_is_not_spent_again_and_the_next_one_works(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []

    def fit(self: Refresher, artifact: RewardArtifact, store: Any, ids: Any, path: Path) -> RewardArtifact:
        given.append(list(ids))
        if len(given) < 3:
            raise CheckpointError("its threshold is 1.")
        return fitted(self, artifact, store, ids, path)

    fitted = Refresher.fit
    monkeypatch.setattr(Refresher, "fit", fit)
    words = [REFRESH, "reward.audit.window=16", "runtime.iterations=14", "reward.audit.max_labels=400"]
    result = train(config(recipe, *words), quiet=True)
    record = audit_of(result["run"])
    assert len(record["failed_refreshes"]) == 2 and record["refreshes"]
    assert all(len(set(ids)) == len(ids) for ids in given)
    assert given[1][: len(given[0])] == given[0] and len(given[1]) > len(given[0])
    assert record["labels"]["spent"] == len(EpisodeStore(Path(result["run"]) / "audit" / "labelled")) == len(given[-1])


@pytest.fixture
def untold(recipe: Path) -> Path:
    """A run without truth whose model sees what it was not fitted to, and that waits for labels."""
    # Scores of the fit's validation in a narrow range, so that the policy soon leaves it.
    model = RewardArtifact.load(recipe.parent / "model")
    narrow = make_scores(([-0.2, -0.1], [0, 0]), ([-0.1, 0.1], [0, 1]))
    object.__setattr__(model, "validation", narrow)
    model.save(recipe.parent / "model")
    words = [REFRESH, "env.cfg.truth=false", "runtime.iterations=3"]
    run = Path(train(config(recipe, *words), quiet=True)["run"])
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("iterations: 3", "iterations: 5"))
    return run


def fill_in(run: Path, word: Callable[[dict[str, str]], str]) -> list[str]:
    """Fills in what a person is asked for, row by row; returns the names of the episodes."""
    path = run / "audit" / "to_label" / LIST
    with path.open(newline="") as file:
        asked = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({**row, "success": word(row)} for row in asked)
    return sorted({row["episode"] for row in asked})


def sure(row: dict[str, str]) -> str:
    return "1" if float(row["score"]) > 2 else "0"


def test_without_truth_it_waits_for_a_person_and_reads_what_one_has_filled_in(
    untold: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert audit_of(untold)["alarms"][0]["reason"] == "out_of_range" and not audit_of(untold)["refreshes"]
    said = [record.getMessage() for record in caplog.get_records("setup")]
    assert any("Fill in the column success" in text for text in said)
    assert any("It is refreshed now, with the labels that a person has given" in text for text in said)
    names = fill_in(untold, lambda row: "")
    # Two episodes are left for later, and of two others the pictures tell nothing.
    words = {**dict.fromkeys(names[:2], ""), **dict.fromkeys(names[2:4], "?")}
    fill_in(untold, lambda row: words.get(row["episode"], sure(row)))
    again = resume(untold, quiet=True)
    (refresh,) = audit_of(untold)["refreshes"]
    assert refresh["episodes"] == len(names) - 4 == again["audit"]["labels"]
    assert {one.label_source for one in EpisodeStore(untold / "audit" / "labelled").summaries()} == {"person"}
    assert again["steps"] == (3 + 5) * 128  # Of which the last five, all that the config asks for, with the new model.


def test_a_new_model_has_its_say_of_a_run_that_is_over(untold: Path) -> None:
    path = untold / "config.yaml"
    path.write_text(path.read_text().replace("iterations: 5", "iterations: 3").replace("prolong: 1.0", "prolong: 0.0"))
    fill_in(untold, sure)
    result = resume(untold, quiet=True)
    assert result["steps"] == result["best_step"] == 3 * 128 and result["best"] is not None
    assert torch.load(untold / "checkpoints" / "best.pt")["trainer"]["version"] == 2


def test_what_was_good_enough_for_another_model_does_not_end_training(untold: Path) -> None:
    path = untold / "config.yaml"
    path.write_text(re.sub("stop_at: .*", "stop_at: 0.001", path.read_text()))
    fill_in(untold, sure)
    checkpoint = untold / "checkpoints" / "latest.pt"
    content = torch.load(checkpoint)
    content["trainer"]["best"] = 0.5
    torch.save(content, checkpoint)
    assert resume(untold, quiet=True)["steps"] > 3 * 128


@pytest.mark.parametrize(
    ("word", "message"), [("maybe", "stays as it is: .*success is 'maybe'"), ("?", "Fill in the column success")]
)
def test_a_list_that_tells_nothing_does_not_end_the_run(
    untold: Path, caplog: pytest.LogCaptureFixture, word: str, message: str
) -> None:
    caplog.clear()
    fill_in(untold, lambda row: word)
    again = resume(untold, quiet=True)
    assert again["steps"] == 5 * 128 and again["audit"]["labels"] == 0 and again["audit"]["version"] == 1
    assert re.search(message, caplog.text)
    fill_in(untold, sure)  # It still waits for labels.
    assert resume(untold, quiet=True)["audit"]["version"] == 2


def test_the_threshold_lets_few_of_the_labelled_failures_through_and_costs_no_more_successes_than_that() -> None:
    # Episodes of the data, and from number 40 on ten that were labelled: failures of 0.1 to 0.9, and of 3.
    data = [([-2, 2], [0, 1]), ([-1, 4], [0, 1])] * 20
    hard = [([value], [0]) for value in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 3.0)]
    scores = make_scores(*data, *hard)
    verdict = _judged(scores, Aim(target=0.0), first=40)
    logit = _logit(verdict, scores)
    # One in ten may fool it, so the line is above 0.9 and below the success of 2, not above the failure of 3.
    assert logit == pytest.approx((0.9 + 2) / 2)
    assert "at most 10% of the episodes that were labelled since" in verdict.choice.note
    # With labelled successes alone, or none, it is the line of the data.
    alone = validate(make_scores(*data), Aim(target=0.0))
    assert _logit(_judged(make_scores(*data), Aim(target=0.0), first=40), scores) == _logit(alone, scores)


def _logit(verdict: ValidationResult, scores: Scores) -> float:
    """The threshold as a logit of the model, before it is calibrated."""
    wanted = np.log(verdict.choice.decision.threshold / (1 - verdict.choice.decision.threshold))
    line = verdict.calibration.logits(np.array([0.0, 1.0], np.float32))
    return float((wanted - line[0]) / (line[1] - line[0]))


def test_the_feature_cache_serves_a_frozen_encoder(recipe: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    train(config(recipe, REFRESH), quiet=True)
    first = len(list((recipe.parent / "cache" / "features").glob("*.npy")))
    caplog.clear()
    train(config(recipe, REFRESH, "runtime.seed=1"), quiet=True)
    assert sum("found in" in text for text in caplog.messages) >= 2  # The data's training and validation frames.
    assert len(list((recipe.parent / "cache" / "features").glob("*.npy"))) > first


def test_a_refreshed_model_that_is_gone_or_another_one_is_an_error(recipe: Path) -> None:
    result = train(config(recipe, REFRESH), quiet=True)
    place = Path(result["run"]) / "audit" / "reward_v2"
    RewardArtifact.load(recipe.parent / "model").save(place)
    with pytest.raises(CheckpointError, match=r"reward_v2' is not the one that the checkpoint was saved with"):
        resume(Path(result["run"]), quiet=True)
    place.rename(place.with_name("gone"))
    with pytest.raises(CheckpointError, match=r"no reward artifact and no checkpoint at .*reward_v2"):
        resume(Path(result["run"]), quiet=True)


def test_without_an_audit_a_resumed_run_keeps_the_refreshed_model(recipe: Path) -> None:
    result = train(config(recipe, REFRESH), quiet=True)
    run = Path(result["run"])
    path, off = run / "config.yaml", ["reward.audit.enabled=false", "reward.audit.on_alarm=warn"]
    # Off, off still, so that the checkpoint knows of no audit, and on again.
    for iterations, words in ((6, off), (7, off), (8, ["reward.audit.enabled=true"])):
        path.write_text(path.read_text().replace(f"iterations: {iterations}", f"iterations: {iterations + 1}"))
        again = resume(run, words, quiet=True)
        assert again["reward_model"] == result["reward_model"]
        for name in ("latest.pt", "best.pt"):
            assert torch.load(run / "checkpoints" / name)["trainer"]["version"] == 2
        assert evaluate(run, quiet=True)["eval"] == again["test"]
    assert again["audit"]["version"] == 2


def test_a_folder_that_cannot_be_written_does_not_end_the_run(
    recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = StageDir(tmp_path / "run", "again")
    place.folder.mkdir()
    (place.folder / "audit").write_text("in the way")
    result = train(config(recipe, REFRESH), quiet=True, place=place)
    assert result["steps"] == 6 * 128 and result["audit"]["version"] == 1
    assert len([text for text in caplog.messages if "cannot be written down, and training goes on" in text]) == 1
    assert "the model could not be refreshed, and stays as it is" in caplog.text
