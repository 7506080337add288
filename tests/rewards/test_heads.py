import pytest
import torch
from torch import nn

from plaudit.reward_models.heads import ConvPooling, Heads, LayerNorms, Linears, MeanPooling, SpatialEmbeddings

SHAPE = (2, 6, 3, 4)
"""Cameras, channels, height and width."""


def maps(batch: int = 5) -> torch.Tensor:
    return torch.randn(batch, *SHAPE)


def test_spatial_embeddings_are_weighted_sums_over_places() -> None:
    pooling = SpatialEmbeddings(SHAPE, blocks=3, heads=2)
    x = maps()
    out = pooling(x)
    assert out.shape == (2, 2, 5, 6 * 3)
    for head, camera in ((0, 0), (1, 0), (0, 1), (1, 1)):
        kernel = pooling.kernel[camera].view(6, 3, 4, 2, 3)[..., head, :]  # (C, h, w, blocks)
        # As HIL-SERL has it: multiply every place, sum, and lay the channels' sums side by side.
        expected = (x[:, camera, ..., None] * kernel).sum((2, 3)).reshape(5, -1)
        torch.testing.assert_close(out[head, camera], expected)


def test_conv_pooling_keeps_cameras_and_heads_apart() -> None:
    pooling = ConvPooling(SHAPE, heads=3)
    x = maps()
    out = pooling(x)
    assert out.shape == (3, 2, 5, 32 * 12)
    weight, bias = pooling.conv.weight.view(2, 3, 32, 6), pooling.conv.bias.view(2, 3, 32)  # type: ignore[union-attr]
    for head, camera in ((0, 0), (2, 0), (1, 1)):
        places = torch.tensordot(x[:, camera], weight[camera, head], dims=([1], [1])) + bias[camera, head]
        torch.testing.assert_close(out[head, camera], places.relu().permute(0, 3, 1, 2).flatten(1))


def test_mean_pooling() -> None:
    x = maps()
    out = MeanPooling(SHAPE, heads=2)(x)
    assert out.shape == (2, 2, 5, 6)
    torch.testing.assert_close(out[1, 1], x[:, 1].mean((2, 3)))


def test_linears_and_layer_norms_are_many_of_torch_s() -> None:
    linears, norms = Linears(3, 4, 7), LayerNorms(3, 7)
    nn.init.normal_(norms.weight)
    nn.init.normal_(norms.bias)
    x = torch.randn(3, 5, 4)
    out = linears(x)
    normal = norms(out)
    for index in range(3):
        expected = nn.functional.linear(x[index], linears.weight[index], linears.bias[index])
        torch.testing.assert_close(out[index], expected)
        expected = nn.functional.layer_norm(expected, (7,), norms.weight[index], norms.bias[index])
        torch.testing.assert_close(normal[index], expected)


def head_of(parts: nn.Module, index: int, alone: nn.Module) -> None:
    """Puts the weights of one head of an ensemble of three into a single head."""
    state = {}
    for name, value in parts.state_dict().items():
        if "kernel" in name:
            state[name] = value.view(2, 6, 12, 3, -1)[..., index, :]
        else:
            each = len(value) // 3
            state[name] = value[index * each : (index + 1) * each]
    alone.load_state_dict(state)


@pytest.mark.parametrize("bottleneck", [False, True])
def test_every_head_of_an_ensemble_is_a_head_alone(bottleneck: bool) -> None:
    def build(heads: int) -> nn.Sequential:
        options = {"hidden": 8, "activation": "tanh", "layer_norm": True, "bottleneck": bottleneck}
        return nn.Sequential(SpatialEmbeddings(SHAPE, 4, heads), Heads(2, 24, heads, **options))  # type: ignore[arg-type]

    ensemble, x = build(3).eval(), maps()
    logits = ensemble(x)
    assert logits.shape == (5, 3)
    for index in range(3):
        alone = build(1).eval()
        head_of(ensemble, index, alone)
        torch.testing.assert_close(alone(x)[:, 0], logits[:, index])
    assert not torch.allclose(logits[:, 0], logits[:, 1])  # They start apart.


def test_a_head_s_loss_moves_no_other_head() -> None:
    pooling, heads = SpatialEmbeddings(SHAPE, 2, 3), Heads(2, 12, 3, hidden=8, layer_norm=True)
    heads(pooling(maps()))[:, 1].sum().backward()
    for parameter in heads.parameters():
        assert parameter.grad is not None
        assert not parameter.grad[[0, 2]].any()
        assert parameter.grad[1].any()
    assert pooling.kernel.grad is not None
    moved = pooling.kernel.grad.view(2, 6, 12, 3, 2).abs().sum((0, 1, 2, 4)) > 0
    assert moved.tolist() == [False, True, False]


def test_layers_in_order() -> None:
    kinds = [type(layer).__name__ for layer in Heads(1, 4, 1, hidden=8, activation="tanh", layer_norm=True).layers]
    assert kinds == ["Linears", "LayerNorms", "Tanh", "Dropout", "Linears"]
    assert [type(layer).__name__ for layer in Heads(1, 4, 1, hidden=8).layers] == [
        "Linears",
        "ReLU",
        "Dropout",
        "Linears",
    ]
    assert [type(layer).__name__ for layer in Heads(1, 4, 1, hidden=None).layers] == ["Linears"]


def test_dropout_only_in_training() -> None:
    heads = Heads(1, 4, 1, hidden=64, dropout=0.5)
    x = torch.randn(1, 1, 3, 4)
    assert not torch.equal(heads(x), heads(x))
    heads.eval()
    assert torch.equal(heads(x), heads(x))
