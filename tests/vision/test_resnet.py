import pytest
import torch
from torch import nn

from plaudit.vision.resnet import ResNet, Stem


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("arch", "parameters"),
    [
        # torchvision's counts less those of the last layer: 11,689,512 - 513,000 and so on.
        ("resnet18", 11_176_512),
        ("resnet34", 21_284_672),
        ("resnet50", 23_508_032),
        ("resnet101", 42_500_160),
        ("resnet152", 58_143_808),
    ],
)
def test_sizes_are_torchvisions(arch: str, parameters: int) -> None:
    with torch.device("meta"):
        net = ResNet(arch)
    assert count(net) == parameters
    assert net.channels == (512 if arch in ("resnet18", "resnet34") else 2048)


def test_names_and_shapes_are_torchvisions() -> None:
    state = ResNet("resnet18").state_dict()
    assert len(state) == 120  # torchvision's 122 without fc.weight and fc.bias
    for name, shape in {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_var": (64,),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer2.0.downsample.1.num_batches_tracked": (),
        "layer4.1.bn2.bias": (512,),
    }.items():
        assert state[name].shape == shape
    assert "layer1.0.downsample.0.weight" not in state
    with torch.device("meta"):
        deep = ResNet("resnet50").state_dict()
    assert len(deep) == 318
    assert deep["layer1.0.downsample.0.weight"].shape == (256, 64, 1, 1)
    assert deep["layer3.5.conv3.weight"].shape == (1024, 256, 1, 1)


def test_resnet10_with_group_norm_counted_by_hand() -> None:
    net = ResNet("resnet10", norm="group")
    stem = 64 * 3 * 49 + 2 * 64
    first = 2 * (64 * 64 * 9 + 2 * 64)
    # A wider stage: two 3x3 convolutions, the 1x1 one of the way around, and three norms.
    wider = [9 * (c // 2) * c + 9 * c * c + (c // 2) * c + 3 * 2 * c for c in (128, 256, 512)]
    assert count(net) == stem + first + sum(wider) == 4_905_792
    norms = [module for module in net.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 12
    assert {norm.num_groups for norm in norms} == {4}
    assert not any("running" in name for name in net.state_dict())


@pytest.mark.parametrize(
    ("stem", "stages", "channels", "places"),
    [
        ("7x7", 4, 128, (2, 3)),
        ("3x3", 4, 128, (4, 5)),
        ("3x3", 2, 32, (16, 20)),
        ("7x7", 3, 64, (4, 5)),
        ("5x5", 4, 128, (2, 3)),
    ],
)
def test_map(stem: str, stages: int, channels: int, places: tuple[int, int]) -> None:
    net = ResNet("resnet10", width=16, stem=stem, norm="group", stages=stages)  # type: ignore[arg-type]
    out = net(torch.rand(2, 3, 64, 77))
    assert out.shape == (2, channels, *places)
    assert net.map_size((64, 77)) == places
    assert net.channels == channels


@pytest.mark.parametrize("stem", ["7x7", "5x5", "3x3"])
@pytest.mark.parametrize("size", [1, 16, 31, 33, 50, 128])
def test_map_size_of_any_image(size: int, stem: Stem) -> None:
    net = ResNet("resnet10", width=8, stem=stem, norm="group")
    assert net(torch.rand(1, 3, size, size)).shape[2:] == net.map_size((size, size))


def test_one_small_image_scores_as_in_a_batch() -> None:
    net = ResNet("resnet10", width=8, norm="group")
    images = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(net(images[1:2])[0], net(images)[1])


def test_the_first_stage_keeps_the_paper_s_resolution() -> None:
    """The 7x7 stem quarters the image, and the first stage leaves it so."""
    net = ResNet("resnet18", stages=1)
    assert net(torch.rand(1, 3, 64, 64)).shape == (1, 64, 16, 16)


def test_a_block_is_its_formula() -> None:
    net = ResNet("resnet10", width=8, stem="3x3", norm="group", stages=2).double()
    x = torch.rand(3, 8, 6, 6, dtype=torch.float64)
    block = net.get_submodule("layer2.0")
    y = torch.relu(block.bn1(block.conv1(x)))
    y = block.bn2(block.conv2(y))
    expected = torch.relu(y + block.downsample[1](block.downsample[0](x)))
    torch.testing.assert_close(block(x.clone()), expected)


def test_gradients_reach_the_stem() -> None:
    net = ResNet("resnet50", width=4)
    net(torch.rand(2, 3, 32, 32)).square().mean().backward()
    assert all(parameter.grad is not None and bool(parameter.grad.any()) for parameter in net.parameters())
