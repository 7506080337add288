"""The artifact is one folder that says the same wherever it is, and says so if it is not whole."""

import dataclasses
import json
import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from artifact_samples import CALIBRATION, TEST, VALIDATION, make_artifact, make_model
from score_samples import make_scores

from plaudit.config.structured import to_dict
from plaudit.errors import CheckpointError, DataError, NonFiniteError, OutputError
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.evaluation.calibration import Calibration
from plaudit.reward_models.evaluation.metrics import evaluate
from plaudit.reward_models.evaluation.success_decision import Decision
from plaudit.reward_models.evaluation.threshold import pick_threshold


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that nobody changes."""
    path = make_artifact(tmp_path_factory.mktemp("whole") / "best_model").path
    assert path is not None
    return path


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "elsewhere"))


def same(one: Any, other: Any) -> bool:
    """Equal, with NaN equal to NaN."""
    return json.dumps(to_dict(one), sort_keys=True) == json.dumps(to_dict(other), sort_keys=True)


def test_a_copy_elsewhere_is_the_same(whole: Path, copied: Path) -> None:
    made, read = make_artifact(copied.parent / "again"), RewardArtifact.load(copied)
    assert read.id == made.id == RewardArtifact.load(whole).id
    assert read.config == made.config and read.calibration == CALIBRATION
    assert read.choice == made.choice == pick_threshold(VALIDATION, CALIBRATION, 0.4)
    assert same(read.metrics, made.metrics) and same(read.metrics, evaluate(TEST, CALIBRATION, read.decision))
    assert read.measured_on == "test"
    assert (read.data, read.training) == ({"episodes": 5, "share": None}, {"steps": 100})
    assert read.label_sources == {"simulator": 8}
    assert read.versions["torch"] == str(torch.__version__)
    for ours, theirs in ((read.validation, VALIDATION), (read.test, TEST)):
        assert ours is not None and all(
            np.array_equal(getattr(ours, name), getattr(theirs, name))
            for name in ("logits", "labels", "episode", "instant")
        )
    assert read.sample is not None and made.sample is not None
    np.testing.assert_array_equal(read.sample.frames["base_camera"], made.sample.frames["base_camera"])
    np.testing.assert_array_equal(read.sample.labels, made.sample.labels)
    weights = make_model().state_dict()
    assert list(read.model().state_dict()) == list(weights)
    assert all(torch.equal(value, weights[name]) for name, value in read.model().state_dict().items())
    assert not read.model().training


def test_the_document_says_what_a_reader_asks(whole: Path) -> None:
    said = json.loads((whole / "artifact.json").read_text())
    assert said["model"]["image_keys"] == ["base_camera"] and said["model"]["image_size"] == [3, 16, 24]
    assert said["normalisation"] == {"scale": 255.0, "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    assert (said["labels"]["success"], said["labels"]["failure"], said["labels"]["unknown"]) == (1, 0, -1)
    threshold = said["threshold"]
    assert (threshold["target"], threshold["hold"], threshold["mode"]) == (0.4, 1, "per_step")
    assert threshold["false_positive_rate"] == 0.0 and threshold["supported"] is False
    assert "Too few episodes" in threshold["note"]
    assert said["metrics"]["episodes"] == 2


def test_numbers_that_could_not_be_measured_stay_nan(tmp_path: Path) -> None:
    failures = make_scores(([-2, -1], [0, 0]))
    make_artifact(tmp_path / "a", test=failures)
    assert math.isnan(RewardArtifact.load(tmp_path / "a").metrics["recall"])


@pytest.mark.parametrize(
    ("changes", "moves"),
    [
        ({"calibration": Calibration(0.8, -0.2)}, True),
        ({"choice": pick_threshold(VALIDATION, CALIBRATION, 0.4, hold=2)}, True),
        ({"model": make_model(1)}, True),
        ({"model": make_model(normalize=False)}, True),
        ({"model": make_model(image_keys=["wrist_camera"])}, True),
        ({"data": {}, "training": {}, "test": None, "sample": None, "label_sources": {}}, False),
        ({"figures": lambda folder: (folder.mkdir(), (folder / "roc.png").touch())}, False),
        ({"model": make_model(pretrained_encoder_path="/somebody/s/own.pt")}, False),
    ],
)
def test_the_id_is_of_what_decides_scores(whole: Path, tmp_path: Path, changes: dict[str, Any], moves: bool) -> None:
    other = make_artifact(tmp_path / "other", **changes)
    assert (other.id != RewardArtifact.load(whole).id) is moves
    assert RewardArtifact.load(tmp_path / "other").id == other.id


def test_an_artifact_is_replaced_whole(copied: Path) -> None:
    def draw(folder: Path) -> None:
        folder.mkdir()
        (folder / "roc.png").write_bytes(b"picture")

    make_artifact(copied, figures=draw)
    assert (copied / "figures" / "roc.png").exists()
    make_artifact(copied, make_model(1), test=None, sample=None)
    names = ["artifact.json", "model.safetensors", "validation_scores.npz"]
    assert sorted(path.name for path in copied.iterdir()) == names
    assert RewardArtifact.load(copied).measured_on == "validation"
    assert list(copied.parent.iterdir()) == [copied]


def test_a_failed_write_leaves_the_old_artifact(copied: Path) -> None:
    before = RewardArtifact.load(copied).id

    def draw(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="No space left"):
        make_artifact(copied, make_model(1), figures=draw)
    assert RewardArtifact.load(copied).id == before and list(copied.parent.iterdir()) == [copied]


def test_what_is_no_artifact_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(OutputError, match="is no reward artifact: it is not replaced"):
        make_artifact(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    make_artifact(tmp_path / "empty")


def test_diverged_weights_are_not_written(tmp_path: Path) -> None:
    model = make_model()
    with torch.no_grad():
        model.get_parameter("encoder.nets.0.conv1.weight")[0, 0, 0, 0] = math.nan
    with pytest.raises(NonFiniteError, match=r"encoder\.nets\.0\.conv1\.weight"):
        make_artifact(tmp_path / "a", model)
    assert not (tmp_path / "a").exists()


def edit(**changes: Any) -> Callable[[Path], None]:
    """A change of fields in the document; a value of `None` removes the field."""

    def change(folder: Path) -> None:
        file = folder / "artifact.json"
        data = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({name: value for name, value in data.items() if value is not None}))

    return change


def cut(name: str, end: int) -> Callable[[Path], None]:
    """A file of which only the beginning is there."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:end])  # type: ignore[return-value]


def flip(name: str) -> Callable[[Path], None]:
    """A file with one bit changed."""

    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[-5] ^= 1
        (folder / name).write_bytes(bytes(content))

    return change


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (cut("model.safetensors", 1000), r"model\.safetensors: is damaged: 1,000 bytes, but [\d,]+ were written"),
        (flip("model.safetensors"), r"model\.safetensors: is damaged: sha256"),
        (flip("validation_scores.npz"), r"validation_scores\.npz: is damaged: sha256"),
        (cut("sample.safetensors", 0), r"sample\.safetensors: is damaged: 0 bytes"),
        (lambda folder: (folder / "test_scores.npz").unlink(), r"test_scores\.npz: cannot be read \(No such file"),
        (lambda folder: (folder / "artifact.json").unlink(), r"elsewhere' is not whole: it lacks artifact\.json"),
        (cut("artifact.json", 200), r"artifact\.json: is damaged"),
        (lambda folder: (folder / "artifact.json").write_text("[]"), r"artifact\.json: .* no field 'schema'"),
        (edit(schema=2), r"artifact\.json: schema is 2, and this Plaudit reads up to 1; upgrade"),
        (edit(files={}), r"artifact\.json: files: lacks 'model\.safetensors'"),
        (edit(calibration={"temperature": 2.0, "bias": 0.0}), r"artifact\.json: id does not match"),
        (edit(calibration={"temperature": "warm"}), r"artifact\.json: calibration\.temperature: expected float"),
        (edit(metrics=None), r"artifact\.json: metrics: missing required value"),
        (edit(normalisation={"scale": 1.0}), r"artifact\.json: normalisation is not what this Plaudit does"),
    ],
)
def test_damage_is_named(copied: Path, damage: Callable[[Path], None], words: str) -> None:
    damage(copied)
    with pytest.raises(CheckpointError, match=words):
        RewardArtifact.load(copied)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model_type", "brightness", "unknown reward model 'brightness'.*import the module that registers it"),
        ("norm", "layer", r"model\.norm: expected one of 'group', 'batch'"),
        ("arch", "resnet19", r"model\.arch: unknown key"),
    ],
)
def test_a_model_that_is_not_known_here_is_named(copied: Path, key: str, value: str, words: str) -> None:
    """As of a newer version, or of a user's own model: the id is right."""
    from plaudit.reward_models.artifact import read_document

    document = read_document(copied)
    document = dataclasses.replace(document, model={**document.model, key: value})
    dataclasses.replace(document, id=document.true_id()).write(copied)
    with pytest.raises(CheckpointError, match=words):
        RewardArtifact.load(copied)


def test_another_threshold_from_the_kept_scores(whole: Path) -> None:
    artifact = RewardArtifact.load(whole)
    other = artifact.rechoose(0.0, hold=2)
    assert other.choice == pick_threshold(VALIDATION, CALIBRATION, 0.0, hold=2)
    assert other.decision.hold == 2 and artifact.decision.hold == 1
    assert same(other.metrics, evaluate(TEST, CALIBRATION, other.decision))
    assert other.metrics["recall"] == 0.0 < artifact.metrics["recall"]
    assert other.id != artifact.id and other.model_id == artifact.model_id
    assert artifact.rechoose().choice == artifact.choice
    assert artifact.rechoose(mode="terminal").decision.mode == "terminal"


def test_a_rechosen_artifact_can_be_kept(whole: Path, tmp_path: Path) -> None:
    other = RewardArtifact.load(whole).rechoose(hold=2).save(tmp_path / "held")
    read = RewardArtifact.load(tmp_path / "held")
    assert read.id == other.id and read.decision == other.decision and same(read.metrics, other.metrics)


def test_no_threshold_without_scores(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path / "a", validation=None, test=None, choice=None)
    assert RewardArtifact.load(tmp_path / "a").decision == Decision(threshold=0.5)
    assert (artifact.measured_on, artifact.metrics) == ("", {})
    with pytest.raises(DataError, match=r"without validation scores.*reward_threshold"):
        artifact.rechoose(0.02)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"image_size": [3, 64, 64]}, r"image_size is \[3, 64, 64\] in the config, but \[3, 16, 24\] in .*best_model"),
        ({"image_keys": ["wrist_camera"]}, r"image_keys is \['wrist_camera'\] in the config, but \['base_camera'\]"),
        ({"model_type": "resnet_reward"}, "model_type is resnet_reward in the config, but binary_classifier"),
        ({"width": 64}, "width is 64 in the config, but 8"),
        ({"normalize": False}, "normalize is False in the config, but True"),
    ],
)
def test_a_config_that_differs_is_named(whole: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        RewardArtifact.load(whole, given)


def test_what_only_training_needs_is_taken_from_the_artifact(whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "plaudit"):
        artifact = RewardArtifact.load(whole, {"use_pretrain": False, "image_size": (3, 16, 24), "width": 8})
    assert artifact.config == RewardArtifact.load(whole).config
    assert [record.message.split(" in the config")[0] for record in caplog.records] == ["use_pretrain is False"]


def test_cameras_that_do_not_fit_are_named(whole: Path) -> None:
    artifact = RewardArtifact.load(whole)
    artifact.check_against({}, cameras={"wrist_camera": (64, 64), "base_camera": (16, 24)})
    with pytest.raises(
        CheckpointError, match=r"image_keys: .*needs the camera 'base_camera', but there is wrist_camera"
    ):
        artifact.check_against({}, cameras={"wrist_camera": (16, 24)})
    with pytest.raises(CheckpointError, match=r"image_size: camera 'base_camera' has 24×16 pixels.*takes 16×24"):
        artifact.check_against({}, cameras={"base_camera": (24, 16)})


def test_the_folder_of_a_fit_and_files_in_an_artifact_lead_to_it(whole: Path) -> None:
    expected = RewardArtifact.load(whole).id
    for path in (whole.parent, whole / "artifact.json", whole / "model.safetensors", str(whole)):
        assert RewardArtifact.load(path).id == expected


def test_an_artifact_is_found_where_a_file_of_its_name_is_asked_for(
    whole: Path, copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """RLinf's ResNet guide names `best_model.pt`."""
    with caplog.at_level(logging.INFO, "plaudit"):
        artifact = RewardArtifact.load(whole.with_suffix(".pt"))
    assert artifact.path == whole and artifact.id == RewardArtifact.load(whole).id
    assert f"there is no '{whole}.pt'; the reward artifact '{whole}' beside it is loaded" in caplog.text
    copied.with_suffix(".pt").write_bytes(b"somebody's own")
    with pytest.raises(CheckpointError, match=r"elsewhere\.pt' is damaged"):
        RewardArtifact.load(copied.with_suffix(".pt"))


def test_nothing_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no reward artifact and no checkpoint at .*nowhere"):
        RewardArtifact.load(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match="no checkpoint in the folder"):
        RewardArtifact.load(tmp_path)


def test_a_foreign_checkpoint_has_no_calibration_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from test_foreign import TheirClassifier

    torch.manual_seed(0)
    torch.save({"epoch": 3, "model_state_dict": TheirClassifier().state_dict()}, tmp_path / "reward_model.pt")
    with caplog.at_level(logging.INFO, "plaudit"):
        artifact = RewardArtifact.load(tmp_path / "reward_model.pt")
    assert sum("no calibration: its threshold is 0.5" in record.message for record in caplog.records) == 1
    assert artifact.decision.threshold == 0.5 and artifact.calibration == Calibration() and artifact.choice is None
    assert artifact.id == RewardArtifact.load(tmp_path / "reward_model.pt").id
    kept = artifact.save(tmp_path / "kept")
    assert RewardArtifact.load(tmp_path / "kept").id == kept.id == artifact.id
    with pytest.raises(CheckpointError, match="hidden_dim is 99 in the config"):
        RewardArtifact.load(tmp_path / "reward_model.pt", {"hidden_dim": 99})


def test_loading_leaves_random_numbers_alone(whole: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    RewardArtifact.load(whole).model()
    assert torch.equal(torch.rand(3), expected)
