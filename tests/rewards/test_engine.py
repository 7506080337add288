"""Frames are scored the same by every backend, in any number, and as the process that fitted the model did."""

import logging
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from artifact_samples import CALIBRATION, SIZE, make_artifact, make_frames, make_model
from torch import nn

from plaudit.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from plaudit.reward_models.inference import onnx_cache as graph_cache
from plaudit.reward_models.inference import onnx_graphs
from plaudit.reward_models.training import bf16_probe as precision
from plaudit.rewards import RewardArtifact, RewardEngine

FRAMES = make_frames(40, seed=5)
CAMERAS = ["base_camera", "wrist_camera"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of two cameras and three heads, exported."""
    path = make_artifact(tmp_path_factory.mktemp("made") / "best_model", two_cameras()).path
    assert path is not None
    assert RewardEngine(path).backend == "onnx"
    return path


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    """A copy of it, export and all."""
    return Path(shutil.copytree(made, tmp_path / "elsewhere"))


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RewardArtifact:
    """An artifact of one camera that was not exported, and a user's cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make_artifact(tmp_path / "one")


def two_cameras() -> Any:
    return make_model(image_keys=CAMERAS, heads=3)


def both(count: int) -> dict[str, Any]:
    return {camera: make_frames(count, seed) for seed, camera in enumerate(CAMERAS, start=8)}


def logits_of(model: nn.Module, frames: dict[str, Any]) -> Any:
    with torch.inference_mode():
        return model({camera: torch.from_numpy(pixels) for camera, pixels in frames.items()}).numpy()


def test_a_copy_scores_as_the_process_that_fitted_it(copied: Path) -> None:
    """Bit for bit, in a process of its own that is only given the folder."""
    frames = both(40)
    expected = logits_of(two_cameras(), frames)
    np.savez(copied.parent / "frames.npz", **frames)
    code = (
        "import sys, numpy as np, torch; torch.set_num_threads(1)\n"
        "from plaudit.rewards import RewardEngine\n"
        "scored = RewardEngine(sys.argv[1], 'torch').score(dict(np.load(sys.argv[2])))\n"
        "np.savez(sys.argv[3], logits=scored.logits, probabilities=scored.probabilities, spread=scored.spread)\n"
    )
    paths = [str(copied), *(str(copied.parent / name) for name in ("frames.npz", "scored.npz"))]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
    scored = np.load(copied.parent / "scored.npz")
    np.testing.assert_array_equal(scored["logits"], expected.mean(1))
    np.testing.assert_array_equal(scored["spread"], expected.std(1))
    probabilities = CALIBRATION.probabilities(expected.mean(1))
    np.testing.assert_array_equal(scored["probabilities"], probabilities)  # In float64, as thresholds are chosen.
    assert np.ptp(scored["probabilities"]) > 0.01


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_the_number_of_frames_in_a_call_does_not_matter(made: Path, backend: Any) -> None:
    engine, frames = RewardEngine(made, backend, threads=2), both(75)
    assert engine.backend == backend
    whole = engine.score(frames)
    assert len(whole) == 75
    for size in (1, 7, 64):
        parts = [
            engine.score({camera: pixels[start : start + size] for camera, pixels in frames.items()})
            for start in range(0, 75, size)
        ]
        for name in ("logits", "probabilities", "spread"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_allclose(joined, getattr(whole, name), rtol=0, atol=1e-5)


def test_onnx_says_what_torch_says(made: Path) -> None:
    ours, exact = (RewardEngine(made, backend).score(both(64)) for backend in ("onnx", "torch"))
    for name in ("logits", "probabilities", "spread"):
        np.testing.assert_allclose(getattr(ours, name), getattr(exact, name), rtol=0, atol=1e-5)
    assert (ours.spread > 0).all()


def test_a_frame_has_one_score_however_it_is_given(one: RewardArtifact) -> None:
    engine = RewardEngine(one, "torch")
    expected = engine.score(FRAMES).logits
    unit = torch.from_numpy(FRAMES).permute(0, 3, 1, 2) / 255
    read_only = FRAMES.copy()
    read_only.flags.writeable = False
    for frames in (unit, unit.numpy(), (unit * 255).double(), {"base_camera": read_only, "other": 3}):
        np.testing.assert_array_equal(engine.score(frames).logits, expected)


def test_no_frames_have_no_scores(made: Path) -> None:
    for backend in ("torch", "onnx"):
        scored = RewardEngine(made, backend).score({camera: np.zeros((0, *SIZE, 3), np.uint8) for camera in CAMERAS})
        assert (len(scored), scored.probabilities.dtype) == (0, np.float64)


@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_frames_that_do_not_fit_are_named(made: Path, backend: Any) -> None:
    engine, frames = RewardEngine(made, backend), both(2)
    with pytest.raises(DataError, match="needs the camera 'wrist_camera'; got base_camera"):
        engine.score({"base_camera": FRAMES})
    with pytest.raises(DataError, match=r"'wrist_camera'.*16x24 pixels.*got uint8 \(2, 64, 64, 3\)"):
        engine.score({**frames, "wrist_camera": make_frames(2, size=(64, 64))})
    with pytest.raises(DataError, match=r"'wrist_camera': has values that are not numbers"):
        engine.score({**frames, "wrist_camera": np.full((2, *SIZE, 3), np.nan)})


def test_an_export_is_used_again(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_graphs, "export", refuse)
    assert RewardEngine(copied).backend == "onnx"
    assert RewardEngine(RewardArtifact.load(copied).rechoose(hold=2)).backend == "onnx"


def refuse(*args: object) -> bytes:
    raise RuntimeError("no such operator\nand much more")


def test_a_network_that_cannot_be_exported_is_scored_by_torch(
    one: RewardArtifact, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(onnx_graphs, "export", refuse)
    engine = RewardEngine(one)
    assert engine.backend == "torch"
    np.testing.assert_array_equal(engine.score(FRAMES).logits, RewardEngine(one, "torch").score(FRAMES).logits)
    warning = caplog.records[-1]
    assert warning.levelno == logging.WARNING
    assert warning.getMessage().endswith("scored by torch, not ONNX: it cannot be exported (no such operator).")


def test_an_export_that_differs_is_not_used(
    made: Path, copied: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if the exporter had a fault: the graph is that of other weights."""
    wrong = next((made / ".cache").glob("*.onnx")).read_bytes()
    artifact = make_artifact(copied, make_model(1, image_keys=CAMERAS, heads=3))
    monkeypatch.setattr(onnx_graphs, "export", lambda model: wrong)
    engine = RewardEngine(artifact)
    assert engine.backend == "torch" and not (copied / ".cache").exists()
    assert "differ from torch's by up to" in caplog.text


@pytest.fixture
def exports(made: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Exports without the wait; the number of them so far."""
    content = next((made / ".cache").glob("*.onnx")).read_bytes()
    calls: list[object] = []

    def export(model: object) -> bytes:
        calls.append(model)
        return content

    monkeypatch.setattr(onnx_graphs, "export", export)
    return lambda: len(calls)


def test_a_damaged_export_is_made_again(
    copied: Path, exports: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    (file,) = (copied / ".cache").glob("*.onnx")
    whole = file.read_bytes()
    for damaged in (whole[:1000], whole[:-1] + b"x", b""):
        file.write_bytes(damaged)
        before = exports()
        RewardEngine(copied)
        assert exports() == before + 1 and file.read_bytes() == whole
        assert "is damaged; exporting the reward model again" in caplog.text
        caplog.clear()


def test_an_export_by_other_versions_is_made_again(
    copied: Path, exports: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    RewardEngine(copied)
    assert exports() == 0
    monkeypatch.setattr(graph_cache.importlib.metadata, "version", lambda package: "9.9")
    RewardEngine(copied)
    RewardEngine(copied)
    assert exports() == 1


def test_other_weights_are_exported_anew(copied: Path, exports: Callable[[], int]) -> None:
    cache = Path(shutil.move(copied / ".cache", copied.parent / "kept"))
    make_artifact(copied, make_model(1, image_keys=CAMERAS, heads=3))
    shutil.move(cache, copied / ".cache")
    assert RewardEngine(copied).backend == "torch"  # The export is of the old weights here, and is seen to differ.
    assert exports() == 1


def test_an_artifact_that_cannot_be_written_to_is_exported_to_the_user_s_cache(
    copied: Path, exports: Callable[[], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.rmtree(copied / ".cache")
    (copied / ".cache").write_text("in the way, as a folder of another user's would be")
    for _ in range(2):
        assert RewardEngine(copied).backend == "onnx"
    assert exports() == 1
    assert len(list((tmp_path / "cache" / "plaudit" / "graphs").iterdir())) == 1


def test_an_export_that_can_be_kept_nowhere_is_used_all_the_same(
    copied: Path,
    exports: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    shutil.rmtree(copied / ".cache")
    (copied / ".cache").touch()
    assert RewardEngine(copied).backend == "onnx" and exports() == 1
    assert "cannot be kept, and is made anew each time" in caplog.text


def test_old_exports_do_not_pile_up(copied: Path, monkeypatch: pytest.MonkeyPatch, exports: Callable[[], int]) -> None:
    monkeypatch.setattr(graph_cache, "KEPT", 2)
    for version in ("1", "2", "3"):
        monkeypatch.setattr(graph_cache.importlib.metadata, "version", lambda package, version=version: version)
        RewardEngine(copied)
    assert len(list((copied / ".cache").glob("*.onnx"))) == 2


def test_int8_says_what_it_loses(made: Path, copied: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "plaudit"):
        engine = RewardEngine(copied, "onnx_int8")
    assert engine.backend == "onnx_int8" and engine.loss is not None
    assert engine.loss.frames == 6  # Those of the sample that it was not made with.
    assert "int8: on 6 frames, probabilities differ by" in caplog.text
    frames, labels = both(50), np.array([1, 0, -1, 0, 1] * 10)
    loss = engine.loss_on(frames, labels)
    exact, ours = (RewardEngine(copied, name).score(frames).probabilities for name in ("torch", "onnx_int8"))
    assert loss.largest == pytest.approx(np.abs(ours - exact).max()) and 1e-5 < loss.largest < 0.2
    assert loss.mean == pytest.approx(np.abs(ours - exact).mean())
    known, threshold = labels >= 0, engine.artifact.decision.threshold
    assert loss.accuracy == ((ours > threshold) == labels)[known].mean()
    assert loss.exact_accuracy == ((exact > threshold) == labels)[known].mean()
    assert np.isnan(engine.loss_on(frames).accuracy)
    kinds = {file.name.partition("-")[0] for file in (copied / ".cache").iterdir()}
    assert kinds == {"f32", "int8"}


def test_int8_needs_frames_to_be_made_with(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"made with sample frames.*use backend 'onnx'"):
        RewardEngine(make_artifact(tmp_path / "a", sample=None), "onnx_int8")


@pytest.fixture
def untried() -> Any:
    """A machine whose bf16 was not tried before."""
    precision.bf16_works.cache_clear()
    yield
    precision.bf16_works.cache_clear()


def test_bf16_is_not_used_where_a_trial_ends_badly(
    one: RewardArtifact, untried: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision, "_TRIAL", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    engine = RewardEngine(one, precision="bf16")
    assert engine.backend == "onnx"  # As without bf16.
    exact = RewardEngine(one, "torch").score(FRAMES).logits
    np.testing.assert_allclose(engine.score(FRAMES).logits, exact, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(RewardEngine(one, "torch", precision="bf16").score(FRAMES).logits, exact)
    assert "cannot calculate with bf16 (a trial ended with signal 4)" in caplog.text


def test_bf16_is_used_where_a_trial_ends_well(
    one: RewardArtifact, untried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = precision.bf16_works("cpu")
    precision.bf16_works.cache_clear()
    monkeypatch.setattr(precision, "_TRIAL", "")
    engine = RewardEngine(one, precision="bf16")
    assert engine.backend == "torch"
    if works:  # Elsewhere it would end this process.
        assert 1e-5 < engine.loss_on(FRAMES).largest < 0.05


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "onx"}, "unknown backend 'onx'.*'onnx'"),
        ({"precision": "fp16"}, "precision must be one of f32, bf16, not 'fp16'"),
        ({"backend": "onnx", "precision": "bf16"}, "backend 'onnx' is for device 'cpu' and precision 'f32'"),
        ({"backend": "onnx_int8", "device": "cuda"}, "use backend 'torch'"),
    ],
)
def test_settings_that_cannot_work_are_named(made: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RewardEngine(made, **settings)


def test_a_folder_without_an_artifact_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in the folder"):
        RewardEngine(tmp_path)


def test_a_broken_network_is_named(one: RewardArtifact) -> None:
    engine = RewardEngine(one, "torch")
    with torch.no_grad():
        for parameter in engine._backend.model.parameters():  # type: ignore[attr-defined]
            parameter.fill_(1e30)
    with pytest.raises(NonFiniteError, match=r"says .*nan.* of frame 0"):
        engine.score(FRAMES)


def test_every_thread_takes_frames_of_its_own(made: Path) -> None:
    engine = RewardEngine(made, threads=3)
    options = engine._backend.session.get_session_options()  # type: ignore[attr-defined]
    assert isinstance(options, onnxruntime.SessionOptions)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert engine.threads == 3 and RewardEngine(made).threads >= 1
