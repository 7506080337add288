"""Fitting from end to end, on small numbers: through the stages, the command line, and the commands of the seeds."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_samples import SIZE, square, square_store
from PIL import Image

from plaudit.cli import main
from plaudit.data import EpisodeStore
from plaudit.data.dataset import FrameDataset
from plaudit.data.formats import open_writer
from plaudit.data.split_files import load_splits, save_splits
from plaudit.reward_models.artifact import RewardArtifact
from plaudit.reward_models.training.trainer import saved_checkpoints
from plaudit.rewards import train_reward_model
from plaudit.utils.interrupts import GracefulInterrupt

KEYS = "reward.training"
SMALL = [
    "runtime.threads=1",
    "runtime.cuda=false",
    f"{KEYS}.num_epochs=6",
    f"{KEYS}.global_batch_size=32",
    f"{KEYS}.optim.lr=0.01",
    f"{KEYS}.augment.shift=1",
    "reward.model.width=8",
    "reward.model.encoder_stages=2",
    "reward.model.hidden_dim=16",
]
PLAIN = f"{KEYS}.figures=false"  # They take longer than all else here.
QUICK = ["runtime.threads=1", f"{KEYS}.max_steps=2", PLAIN]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object, and what people see."""
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out.splitlines()[-1]), err


def write(format: str, place: Path | None, count: int = 12, **options: Any) -> None:
    """Squares in another layout, as many positive as negative."""
    open_writer(place, format, **options).add([square(number) for number in range(count)])


def test_from_episodes_to_an_artifact(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square_store(here / "data", 40)
    code, result, shown = run(capsys, "fit", "data", *SMALL, f"{KEYS}.debug_save_dir=debug")
    assert code == 0 and not result["interrupted"] and result["measured_on"] == "test"
    assert result["metrics"]["balanced_accuracy"] > 0.95 and result["metrics"]["ece"] < 0.3
    assert result["metrics"]["episode_false_positive_rate"] <= 0.25
    assert "train, positive" in shown and "balanced accuracy" in shown
    assert "Too few episodes to support 1 %" in result["note"] and result["note"] in shown

    folder = Path(result["run"])
    artifact = RewardArtifact.load(result["artifact"])
    assert artifact.id == result["artifact_id"] == RewardArtifact.load(folder).id
    assert artifact.cameras == ("base_camera",) and artifact.image_size == (SIZE, SIZE)
    assert artifact.label_sources == {"rule": 320} and artifact.data["train"]["episodes"] == 28
    assert artifact.training["settings"]["num_epochs"] == 6 and "save_dir" not in artifact.training["settings"]
    assert artifact.sample is not None and set(artifact.sample.labels) == {0, 1}
    assert artifact.choice is not None and artifact.decision.threshold == result["threshold"]
    figures = {file.name for file in (Path(result["artifact"]) / "figures").iterdir()}
    assert {"roc.png", "reliability.png", "timelines.png", "false_positives.png"} <= figures

    lines = [json.loads(line) for line in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert any("train/loss" in line for line in lines) and any("val/log_loss" in line for line in lines)
    pictures = sorted((here / "debug").rglob("*.png"))
    assert len(pictures) == 48 and {file.parent.name for file in pictures} == {"resnet_success", "resnet_fail"}
    number, _, rest = pictures[0].stem.partition("_prob")
    assert len(number) == 6 and len(rest) == 6 and np.asarray(Image.open(pictures[0])).shape == (SIZE, SIZE, 3)

    code, again, _ = run(capsys, "fit", str(folder / "config.yaml"), "--quiet", "runtime.output_dir=again", PLAIN)
    assert code == 0 and again["artifact_id"] == result["artifact_id"]  # The same seed, data and settings.
    last = saved_checkpoints(folder)[-1]
    assert RewardArtifact.load(last).config == artifact.config


def test_a_fit_goes_on_exactly_from_any_checkpoint(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square_store(here / "data", 24)
    changes = [f"{KEYS}.save_dir=mine", f"{KEYS}.save_interval=4", f"{KEYS}.keep_checkpoints=0", PLAIN]
    _, whole, _ = run(capsys, "fit", "data", *SMALL, *changes, "--quiet")
    code, result, _ = run(capsys, "fit", "--resume", "mine/step_8/checkpoint.pt", "--quiet")
    assert code == 0 and result["artifact_id"] == whole["artifact_id"] and result["steps"] == whole["steps"] > 8
    last = saved_checkpoints(here / "mine")[-1]
    last.write_bytes(last.read_bytes()[:5000])
    code, result, _ = run(capsys, "fit", "--resume", "mine", "--quiet")
    assert code == 1 and "step_24/checkpoint.pt' is damaged" in result["error"]
    assert "plaudit fit --resume" in result["error"] and result["error"].endswith("step_20/checkpoint.pt")


def test_ctrl_c_saves_and_says_how_to_go_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square_store(here / "data", 24)
    changes = [f"{KEYS}.num_epochs=2000", f"{KEYS}.save_dir=mine", f"{KEYS}.log_interval=1", PLAIN]
    command = [sys.executable, "-m", "plaudit", "fit", "data", *SMALL, *changes]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    shown = []
    for line in process.stderr:
        shown.append(line)
        if line.startswith("step "):
            process.send_signal(signal.SIGINT)
            break
    shown += process.stderr.readlines()
    assert process.wait() == 130 and "go on with: plaudit fit --resume mine" in "".join(shown)
    assert not (here / "mine" / "best_model").exists()
    stopped = int(saved_checkpoints(here / "mine")[-1].parent.name.removeprefix("step_"))
    code, result, _ = run(capsys, "fit", "--resume", "mine", f"{KEYS}.max_steps={stopped + 2}", "--quiet")
    assert code == 0 and result["steps"] == stopped + 2 and (here / "mine" / "best_model").is_dir()


def test_data_that_changed_is_not_gone_on_with(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = square_store(here / "data", 24)
    run(capsys, "fit", "data", *SMALL, *QUICK, f"{KEYS}.save_dir=mine", "--quiet")
    store.add([square(number) for number in range(24, 48)])
    code, result, _ = run(capsys, "fit", "--resume", "mine", "--quiet")
    assert code == 1 and "was fitted to other data" in result["error"]
    code, result, _ = run(capsys, "fit", "--resume", "data")
    assert code == 1 and "is not a run" in result["error"]


def test_a_validation_split_that_changed_is_not_gone_on_with(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square_store(here / "data", 24)
    assert main(["process", "data"]) == 0
    capsys.readouterr()
    run(capsys, "fit", "data", *SMALL, *QUICK, f"{KEYS}.save_dir=mine", "--quiet")
    splits = load_splits(here / "data" / "splits" / "default")
    val = splits["val"]
    save_splits(here / "other", {**splits, "val": replace(val, rows=[rows[1:] for rows in val.rows])})
    words = [f"{KEYS}.data.path=null", f"{KEYS}.data.splits=other"]
    code, result, _ = run(capsys, "fit", "--resume", "mine", "--quiet", *words)
    assert code == 1 and "labels of the validation split have changed" in result["error"]


@pytest.mark.parametrize("name", ["config.yaml", "logs/metrics.jsonl", "step_5/checkpoint.pt", "best_model/notes.txt"])
def test_files_that_are_not_of_a_fit_are_never_overwritten(
    here: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    square_store(here / "data", 24)
    theirs = here / "mine" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("# theirs\nruntime: {}\n")
    before = sorted(here.glob("mine/**/*"))
    code, result, _ = run(capsys, "fit", "data", *SMALL, *QUICK, f"{KEYS}.save_dir=mine")
    assert code == 1 and "'mine' is not the folder of a fit, but has a " in result["error"]
    assert "reward.training.save_dir" in result["error"]
    assert theirs.read_text().startswith("# theirs") and sorted(here.glob("mine/**/*")) == before


def stop_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits end after a step, as by Ctrl-C."""

    def enter(interrupt: GracefulInterrupt) -> GracefulInterrupt:
        interrupt.requested = True
        return interrupt

    monkeypatch.setattr(GracefulInterrupt, "__enter__", enter)


def test_a_second_fit_replaces_the_first_from_its_start(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    square_store(here / "data", 24)
    words = ["fit", "data", *SMALL, PLAIN, f"{KEYS}.save_dir=mine", f"{KEYS}.max_steps=4", "--quiet"]
    assert run(capsys, *words, f"{KEYS}.save_interval=2")[0] == 0
    notes = here / "mine" / "step_2" / "notes.txt"
    notes.write_text("mine")
    events = set((here / "mine" / "logs").glob("events*"))
    stop_at_once(monkeypatch)
    code, result, shown = run(capsys, *words)
    assert code == 130 and result["steps"] == 1 and "what an earlier fit has left in mine is replaced" in shown
    assert [path.parent.name for path in saved_checkpoints(here / "mine")] == ["step_1"] and notes.exists()
    assert not (here / "mine" / "best_model").exists()
    assert events and not events & set((here / "mine" / "logs").iterdir())
    assert not (here / "mine" / "logs" / "metrics.jsonl").exists()  # One step is not logged.


def test_stopped_after_going_back_it_says_what_best_model_is(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    square_store(here / "data", 24)
    words = [f"{KEYS}.save_dir=mine", f"{KEYS}.max_steps=4", f"{KEYS}.save_interval=2", PLAIN, "--quiet"]
    assert run(capsys, "fit", "data", *SMALL, *words)[0] == 0
    stop_at_once(monkeypatch)
    code, _, shown = run(capsys, "fit", "--resume", "mine/step_2/checkpoint.pt")
    assert code == 130 and "best_model is from before" in shown
    assert [path.parent.name for path in saved_checkpoints(here / "mine")] == ["step_2", "step_3"]


def test_a_frozen_encoder_is_run_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square_store(here / "data", 40)
    words = ["fit", "data", *SMALL, "reward.model.freeze_encoder=true", f"{KEYS}.cache_views=2", PLAIN]
    code, result, shown = run(capsys, *words)
    assert code == 0 and shown.count("encoded in") == 2 and result["metrics"]["roc_auc"] > 0.9
    assert "frames are not varied" not in shown
    code, again, shown = run(capsys, *words)
    assert shown.count("found in") == 2 and "encoded" not in shown and again["artifact_id"] == result["artifact_id"]
    assert len(list((here / "cache" / "plaudit" / "features").iterdir())) == 2
    code, _, shown = run(capsys, *words, f"{KEYS}.feature_cache=false", f"{KEYS}.max_steps=2")
    assert code == 0 and "encoded" not in shown and "found in" not in shown and "not varied" not in shown
    code, _, shown = run(capsys, *words, f"{KEYS}.cache_views=1", f"{KEYS}.max_steps=2")
    assert code == 0 and shown.count("frames are not varied (reward.training.augment)") == 1


def test_the_splits_of_a_data_set_are_used(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square_store(here / "data", 24)
    assert main(["process", "data", "--val-fraction", "0.3"]) == 0
    capsys.readouterr()
    code, result, shown = run(capsys, "fit", "data", *SMALL, *QUICK)
    assert code == 0 and "splits: those in" in shown
    data = RewardArtifact.load(result["artifact"]).data
    assert (data["train"]["episodes"], data["val"]["episodes"]) == (12, 8) and data["split"]["val_fraction"] == 0.3
    _, result, _ = run(capsys, "fit", "data", *SMALL, *QUICK, f"{KEYS}.data.val_fraction=0.2")
    assert RewardArtifact.load(result["artifact"]).data["val"]["episodes"] == 4
    _, result, _ = run(capsys, "fit", *SMALL, *QUICK, f"{KEYS}.data.splits=data/splits/default")
    assert RewardArtifact.load(result["artifact"]).data["val"]["episodes"] == 8


def test_other_actors_may_be_tested_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square_store(here / "data", 24)
    write("npy", here / "others", 40)
    code, result, _ = run(capsys, "fit", "data", *SMALL, *QUICK, f"{KEYS}.data.test_path=others")
    assert code == 1 and "with the same pictures as" in result["error"]  # They are the same squares.
    open_writer(here / "new", "npy").add([square(number) for number in range(100, 110)])
    code, result, _ = run(capsys, "fit", "data", *SMALL, *QUICK, f"{KEYS}.data.test_path=new")
    data = RewardArtifact.load(result["artifact"]).data
    assert code == 0 and {name: data[name]["episodes"] for name in ("train", "val", "test")} == {
        "train": 20,
        "val": 4,
        "test": 10,
    }


def test_a_recipe_finds_what_collect_made(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square_store(here / "data" / "push_cube", 24)
    code, result, _ = run(capsys, "fit", "push_cube", *SMALL, *QUICK)
    assert code == 0 and Path(result["run"]).name.startswith("push_cube_")
    code, result, _ = run(capsys, "fit", "pick_cube", *SMALL, *QUICK)
    assert code == 1 and "nothing at 'data/pick_cube'" in result["error"] and "plaudit collect" in result["error"]


def test_without_a_test_split_it_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    square_store(here / "data", 24)
    code, result, shown = run(capsys, "fit", "data", *SMALL, *QUICK, f"{KEYS}.data.test_fraction=0")
    assert code == 0 and result["measured_on"] == "validation" and "there is no test split" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "unknown recipe 'nowhere'"),
        (["data/nowhere"], "nothing at 'data/nowhere'"),
        (["empty"], "It is empty"),
        (["data", f"{KEYS}.num_epoch=3"], "Did you mean 'num_epochs'"),
        (["data", "reward.model.widht=8"], "Did you mean 'width'"),
        (["data", "reward.model.model_type=resnet"], "unknown reward model 'resnet'"),
        (["data", "reward.model.image_keys=[base]"], "has no camera 'base'.* Did you mean 'base_camera'"),
        (["data", "reward.model.image_size=[3,64,64]"], "are 20×20 pixels, but reward.model.image_size is"),
        (["data", f"{KEYS}.data.test_path=data"], "is in 'train' and in 'test'"),
        (["data", f"{KEYS}.data.splits=data", f"{KEYS}.data.val_fraction=0.1"], "splits: come divided"),
        (["data", f"{KEYS}.data.val_fraction=0.9"], "val_fraction: leaves nothing"),
        (["data", "--resume", "data"], "leave out the data"),
        (["data", f"{KEYS}.training_backend=fsdp2"], "training_backend: expected one of"),
        (["one_class"], "has 0 positive and 12 negative episodes"),
        (["cut"], "square-003.safetensors: is not a whole episode file"),
        (["data", "reward.reward_mode=terminal", "reward.hold=2"], "hold: is for reward_mode per_step"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_built(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    square_store(here / "data", 24)
    (here / "empty").mkdir()
    EpisodeStore.create(here / "one_class").add([square(number) for number in range(1, 24, 2)])
    cut = square_store(here / "cut", 24).file("square-003")
    cut.write_bytes(cut.read_bytes()[:2000])
    (here / "cut" / "index.jsonl").unlink()
    code, result, _ = run(capsys, "fit", *words)
    assert code in (1, 2) and re.search(message, result["error"]), result["error"]
    assert not (here / "outputs").exists() and not (here / "cache" / "plaudit" / "features").exists()


def test_copies_across_splits_are_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = square_store(here / "data", 24)
    store.add([replace(square(number), id=f"copy-{number:03d}") for number in range(12)])
    code, result, _ = run(capsys, "fit", "data", *SMALL)
    assert code == 1 and "with the same pictures as" in result["error"] and "plaudit doctor" in result["error"]


# The command of the workflow guide, with its own arguments; those of the other guides are in tests/test_guides.py.


@pytest.fixture
def large() -> Callable[[str, Path], None]:
    """Writes squares of 64×64 pixels, as the seeds have them."""

    def make(format: str, place: Path) -> None:
        episodes = []
        for number in range(12):
            episode = square(number)
            pixels = np.kron(episode.frames["base_camera"], np.ones((1, 4, 4, 1), np.uint8))[:, :64, :64]
            episodes.append(replace(episode, frames={"base_camera": np.ascontiguousarray(pixels)}))
        open_writer(place, format).add(episodes)

    return make


def test_workflow_guide(large: Callable[[str, Path], None], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large("npy", here / "reward_data")
    words = (
        "--positive-dir ./reward_data/positive --negative-dir ./reward_data/negative "
        "--output-checkpoint ./checkpoints/reward_model.pt --backbone resnet10 --image-key base_camera "
        "--image-size 3 64 64 --batch-size 128 --epochs 1 --lr 1e-4 --hidden-dim 256 --num-spatial-blocks 8 "
        "--visualize-positive --vis-output-dir ./positive_samples_vis"
    )
    assert train_reward_model.main(words.split()) == 0
    shown = capsys.readouterr()
    assert "label=1" in shown.out and "freeze_encoder is true, but there are no pretrained weights" in shown.err
    content = torch.load(here / "checkpoints" / "reward_model.pt", weights_only=True)
    assert {"epoch", "model_state_dict", "optimizer_state_dict", "train_loss", "train_acc"} <= set(content)
    assert {path.name for path in (here / "checkpoints").iterdir()} == {"reward_model", "reward_model.pt"}
    artifact = RewardArtifact.load(here / "checkpoints" / "reward_model")
    alone = RewardArtifact.load(here / "checkpoints" / "reward_model.pt")
    assert alone.id == artifact.id and alone.decision == artifact.decision
    assert artifact.training["settings"]["optim"]["optimizer"] == "adam"
    names = sorted(file.name for file in (here / "positive_samples_vis").iterdir())
    assert len(names) == 6 * 4 and names[0] == "positive_000000_frame004.png"


def test_workflow_guide_has_its_defaults() -> None:
    args = train_reward_model.parse(["--positive-dir", "a", "--negative-dir", "b", "--output-checkpoint", "c/d.pt"])
    assert (args.image_key, args.image_size, args.batch_size, args.epochs) == ("base_camera", [3, 64, 64], 32, 100)
    assert (args.lr, args.hidden_dim, args.num_spatial_blocks, args.backbone) == (1e-4, 256, 8, "resnet10")
    assert (args.visualize_positive, str(args.vis_output_dir)) == (False, "positive_samples_vis")
    words = train_reward_model.overrides(args)
    assert "reward.training.save_dir='c/d'" in words and "reward.model.use_pretrain=False" in words


def test_two_folders_anywhere(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("npy", None, positive_dir=here / "good", negative_dir=here / "bad")
    words = [f"{KEYS}.data.positive_dir=good", f"{KEYS}.data.negative_dir=bad", *SMALL, *QUICK]
    code, result, shown = run(capsys, "fit", *words)
    assert code == 0 and "is copied to" in shown
    code, result, shown = run(capsys, "fit", *words)
    assert code == 0 and "is copied to" not in shown  # It is there already.
    (store,) = (here / "cache" / "plaudit" / "episodes").iterdir()
    assert len(FrameDataset(EpisodeStore(store))) == 96
    (here / "none").mkdir()
    code, result, _ = run(capsys, "fit", f"{KEYS}.data.positive_dir=none", f"{KEYS}.data.negative_dir=bad")
    assert code == 1 and "no .npy trajectories in 'none', which is the positive_dir" in result["error"]
