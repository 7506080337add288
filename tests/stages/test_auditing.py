"""The audit of whole training runs: it tells, it stops, and it changes nothing that is learned."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from audit_samples import config, policy_of, prepare, same
from score_samples import make_scores

from plaudit.cli import main
from plaudit.errors import ConfigError, DataError
from plaudit.pipelines import evaluate, report, resume, train
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.rewards.audit.label_sheet import LIST, read_labels


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a run that was never stopped; tests may read it and no more."""
    return train(config(prepare(tmp_path_factory.mktemp("whole"))), quiet=True)


def audit_of(result: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(result["run"]) / "audit.json").read_text())
    return content


def rows(result: dict[str, Any]) -> list[dict[str, float]]:
    lines = (Path(result["run"]) / "logs" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_model_that_is_fooled_is_told_of_once_and_all_is_logged(
    recipe: Path, caplog: pytest.LogCaptureFixture
) -> None:
    result = train(config(recipe, "reward.audit.window=256"), quiet=True)
    said = [text for text in caplog.messages if text.startswith("audit, step")]
    assert len(said) == 1 and "is being fooled: of " in said[0] and "worst.png" in said[0]
    assert result["stopped_by"] is None and result["steps"] == 6 * 128
    assert result["audit"]["alarms"] == 1 and result["audit"]["labels"] == 0
    logged = rows(result)
    names = {"agreement", "claimed", "true_success", "fooled", "early", "missed"}
    assert {f"audit/{name}" for name in names} <= set(logged[1])
    (first, *_) = [row for row in logged if "eval/success_once" in row]
    assert {f"eval/audit_{name}" for name in names - {"missed"}} <= set(first)
    assert first["eval/audit_true_success"] == first["eval/success_once"]
    assert first["eval/audit_claimed"] == first["eval/model_success_once"]
    record = audit_of(result)
    assert record["mood"] == "bad" and record["summary"].startswith(f"Alarm at step {record['alarms'][0]['step']:,}:")
    assert len(record["evaluations"]) == 3 and record["test"]["counts"]["episodes"] == 16
    assert record["test"]["true_success"] == result["test"]["success_once"]
    assert record["labels"] == {"spent": 0, "budget": 200}
    assert "early" in record["head"] and all(len(row) == len(record["head"]) for row in record["rows"])
    (picture,) = record["pictures"]
    assert (Path(result["run"]) / picture["file"]).exists()


def test_it_changes_nothing_that_is_learned_and_nor_does_its_truth(recipe: Path) -> None:
    watched, alone, poisoned = (
        train(config(recipe, "reward.audit.min_claims=1", word), quiet=True)
        for word in ("reward.audit.enabled=true", "reward.audit.enabled=false", "env.cfg.poison=true")
    )
    assert not (Path(alone["run"]) / "audit.json").exists()
    assert audit_of(watched)["evaluations"] != audit_of(poisoned)["evaluations"]
    for other in (alone, poisoned):
        for name in ("latest.pt", "best.pt"):
            assert same(policy_of(watched["run"], name), policy_of(other["run"], name))
        assert watched["best_step"] == other["best_step"]


def test_stop_ends_a_run_in_good_order(recipe: Path, whole: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    result = train(config(recipe, "reward.audit.on_alarm=stop"), quiet=True)
    assert result["stopped_by"] == "audit" and not result["interrupted"]
    assert result["steps"] < 6 * 128
    assert "Training ends here (reward.audit.on_alarm=stop)" in caplog.text
    assert (Path(result["run"]) / "result.json").exists() and "test" in result
    # Whoever has looked and resumes it means it to go on.
    again = resume(Path(result["run"]), ["reward.audit.on_alarm=warn"], quiet=True)
    assert again["steps"] == 6 * 128 and again["exact_resume"] is True
    assert same(policy_of(again["run"]), policy_of(whole["run"]))


def test_a_resumed_audit_counts_on(recipe: Path, whole: dict[str, Any]) -> None:
    half = train(config(recipe, "runtime.iterations=3"), quiet=True)
    path = Path(half["run"]) / "config.yaml"
    path.write_text(path.read_text().replace("iterations: 3", "iterations: 6"))
    again = resume(Path(half["run"]), quiet=True)
    assert audit_of(again)["window"] == audit_of(whole)["window"]
    assert audit_of(again)["alarms"] == audit_of(whole)["alarms"]
    shown = [{k: v for k, v in row.items() if "audit" in k} for row in (rows(again)[-2], rows(whole)[-2])]
    assert shown[0] == shown[1] and shown[0]


def test_without_truth_a_person_is_asked(recipe: Path) -> None:
    result = train(config(recipe, "env.cfg.truth=false"), quiet=True)
    record = audit_of(result)
    assert record["mood"] == "look" and "no ground truth" in record["summary"]
    assert "agreement" not in record["window"] and "audit/fooled" not in rows(result)[-2]
    folder = Path(result["run"]) / "audit" / "to_label"
    with (folder / LIST).open(newline="") as file:
        asked = list(csv.DictReader(file))
    assert {row["verdict"] for row in asked} == {"success", "failure"}
    assert all((folder / row["file"]).exists() and row["success"] == "" for row in asked)
    assert len({row["episode"] for row in asked}) <= 64
    assert read_labels(folder) == []


def test_an_alarm_names_no_picture_that_is_not_there(recipe: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Every score is out of range, and the threshold is where success begins in truth, so that there is no mistake.
    model = RewardArtifact.load(recipe.parent / "model")
    object.__setattr__(model, "validation", make_scores(([90.0, 91.0], [0, 1])))
    model.save(recipe.parent / "model")
    words = ["reward.reward_threshold=0.8776", "runtime.iterations=2"]
    result = train(config(recipe, *words), quiet=True)
    (said,) = [text for text in caplog.messages if text.startswith("audit, step")]
    assert "sees what it was not fitted to" in said
    assert not (Path(result["run"]) / "audit" / "worst.png").exists() and "Look at" not in said


def test_the_report_has_an_audit(whole: dict[str, Any], tmp_path: Path) -> None:
    page = Path(report(Path(whole["run"]), tmp_path / "page.html", quiet=True)["report"]).read_text()
    assert "is being fooled" in page and "last 64 training episodes" in page and "test of the best policy" in page


def test_eval_takes_the_model_of_the_checkpoint(whole: dict[str, Any]) -> None:
    assert evaluate(Path(whole["run"]), quiet=True)["eval"] == whole["test"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("reward.audit.window=0", "reward.audit.window: must be at least 1"),
        ("reward.audit.min_claims=65", "reward.audit.min_claims: must not be more than window"),
        ("reward.audit.max_fooled=1.5", "reward.audit.max_fooled: must be greater than 0 and less than 1"),
        ("reward.audit.max_out_of_range=0", "reward.audit.max_out_of_range: must be greater than 0"),
        ("reward.audit.max_labels=0", "reward.audit.max_labels: must be at least 1"),
        ("reward.audit.prolong=2", "reward.audit.prolong: must be between 0 and 1"),
        ("reward.audit.on_alarm=refres", "refresh"),
        ("reward.audit.on_allarm=warn", "on_alarm"),
    ],
)
def test_wrong_keys_are_named(recipe: Path, word: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config(recipe, word)
    assert message in str(caught.value)


def test_an_audit_that_is_off_cannot_act(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"reward.audit.on_alarm: needs an audit"):
        config(recipe, "reward.audit.enabled=false", "reward.audit.on_alarm=stop")


def test_a_refresh_without_its_data_is_refused_before_any_work(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reward.audit.on_alarm=refresh", f"reward.training.data.path={recipe.parent / 'nothing'}"]
    with pytest.raises(DataError, match=r"on_alarm is refresh.*nothing.*Set reward.training.data.path"):
        train(config(recipe, *words), quiet=True)
    assert not (recipe.parent / "out").exists()
    code = main(["train", str(recipe), *words, "--quiet", "--json"])
    assert code == 1
    assert "on_alarm is refresh" in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
