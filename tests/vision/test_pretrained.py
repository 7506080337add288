import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from plaudit.errors import CheckpointError
from plaudit.vision.pretrained import load_encoders, read_checkpoint, weights_of
from plaudit.vision.resnet import ResNet


def small() -> ResNet:
    return ResNet("resnet18", width=4, stages=2)


def test_wrappers_containers_and_number_formats(tmp_path: Path) -> None:
    source = small()
    wrapped = {f"module._orig_mod.{name}": value for name, value in source.state_dict().items()}
    files = {
        "plain.pt": source.state_dict(),
        "wrapped.pth": {"epoch": 3, "state_dict": wrapped, "val_acc": np.float64(0.5), "best": np.int64(2)},
        "half.pt": {"model": {name: value.bfloat16() for name, value in wrapped.items()}},
    }
    for name, content in files.items():
        torch.save(content, tmp_path / name)
    save_file({name: value.contiguous() for name, value in wrapped.items()}, tmp_path / "safe.safetensors")
    for path in sorted(tmp_path.iterdir()):
        net = small()
        load_encoders([net], path)
        assert net.state_dict()["conv1.weight"].dtype == torch.float32
        close = {"atol": 2e-2, "rtol": 1e-2} if path.stem == "half" else {"atol": 0.0, "rtol": 0.0}
        for name, value in source.state_dict().items():
            torch.testing.assert_close(net.state_dict()[name], value, check_dtype=False, **close)


def test_a_whole_network_fills_its_first_stages(tmp_path: Path) -> None:
    whole = ResNet("resnet18", width=4)
    torch.save({**whole.state_dict(), "fc.weight": torch.zeros(1000, 32), "fc.bias": torch.zeros(1000)}, tmp_path / "a")
    net = small()
    load_encoders([net], tmp_path / "a")
    assert torch.equal(net.state_dict()["layer2.1.bn2.weight"], whole.state_dict()["layer2.1.bn2.weight"])


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    for other, words in (
        (ResNet("resnet18", width=8, stages=2), r"'conv1\.weight' is \(8, 3, 7, 7\) there and \(4, 3, 7, 7\) here"),
        (ResNet("resnet34", width=4, stages=2), r"it has 'layer1\.2\.conv1\.weight' and \d+ more, which is not here"),
        (ResNet("resnet18", width=4, stages=1), r"it lacks 'layer2\.0\.conv1\.weight' and \d+ more"),
        (ResNet("resnet18", width=4, stages=2, norm="group"), r"it lacks 'bn1\.running_mean'"),
    ):
        torch.save(other.state_dict(), path)
        net = small()
        before = net.state_dict()["conv1.weight"].clone()
        with pytest.raises(CheckpointError, match=rf"other\.pt' are of another network: {words}"):
            load_encoders([net], path)
        assert torch.equal(net.state_dict()["conv1.weight"], before)


def test_batch_counts_may_be_missing(tmp_path: Path) -> None:
    state = {name: value for name, value in small().state_dict().items() if "num_batches" not in name}
    torch.save(state, tmp_path / "old.pt")
    load_encoders([small()], tmp_path / "old.pt")


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_broken_weights_are_named(tmp_path: Path, broken: float) -> None:
    state = small().state_dict()
    state["layer1.0.conv2.weight"][0, 0, 0, 0] = broken
    torch.save(state, tmp_path / "nan.pt")
    with pytest.raises(CheckpointError, match=r"nan\.pt' is broken: 'layer1\.0\.conv2\.weight' has a NaN"):
        load_encoders([small()], tmp_path / "nan.pt")


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_files_are_named(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.zeros(1000)}, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    cuts = range(0, len(whole), 401)
    for damaged in (*(whole[:cut] for cut in cuts), b"not a checkpoint", b"\x00" * 100, b"\x80\x02"):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"a\.pt' is damaged"):
            read_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"no checkpoint '.*b\.pt'"):
        read_checkpoint(tmp_path / "b.pt")
    (tmp_path / "c.safetensors").write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"c\.safetensors' is damaged"):
        read_checkpoint(tmp_path / "c.safetensors")


def test_code_in_a_checkpoint_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> object:
            return os.mkdir, (str(tmp_path / "owned"),)

    torch.save({"model_state_dict": {"w": torch.zeros(1)}, "extra": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match=r"evil\.pt' holds more than weights: '\w+\.mkdir' could run code"):
        read_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "owned").exists()


def test_files_without_weights_are_named() -> None:
    for content, words in (
        ({"epoch": 3, "loss": 0.5}, "only epoch, loss"),
        ([1, 2], "only list"),
        ({}, "only nothing"),
        ({"model_state_dict": {}}, "only nothing"),
    ):
        with pytest.raises(CheckpointError, match=f"'x.pt' holds no weights, {words}"):
            weights_of(content, "x.pt")
    with pytest.raises(CheckpointError, match=r"'x.pt': 'epoch' is a int, not a tensor"):
        weights_of({"epoch": 3, "w": torch.zeros(1)}, "x.pt")
