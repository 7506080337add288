import pytest
import torch
from torch import nn

from plaudit.rl.networks.mlp import Normalizer, mlp


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu", "gelu"])
@pytest.mark.parametrize("hidden", [(), (8,), (8, 6)])
def test_mlp_without_gradients_is_the_same_as_with(activation: str, hidden: tuple[int, ...]) -> None:
    network = mlp(5, hidden, 3, activation, 1.0)
    x = torch.randn(64, 5) * 5
    with torch.no_grad():
        quick = network(x)
    torch.testing.assert_close(quick, nn.Sequential(*network)(x), atol=2e-6, rtol=0)
    torch.testing.assert_close(network(x), nn.Sequential(*network)(x))


def test_orthogonal_start() -> None:
    network = mlp(16, (16,), 4, "tanh", 0.01)
    first, last = network[0].weight, network[2].weight
    torch.testing.assert_close(first @ first.t(), 2.0 * torch.eye(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(last @ last.t(), 1e-4 * torch.eye(4), atol=1e-8, rtol=0)
    assert not network[0].bias.any()


def test_normalizer_has_the_statistics_of_all_batches_together() -> None:
    normalizer = Normalizer(3)
    data = torch.randn(1000, 3) * torch.tensor([1.0, 10.0, 0.1]) + torch.tensor([0.0, 50.0, -2.0])
    for batch in data.split([10, 490, 500]):
        normalizer.update(batch)
    torch.testing.assert_close(normalizer.mean, data.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(normalizer.var, data.var(0, correction=0), rtol=1e-4, atol=1e-4)
    assert normalizer.count == 1000
    out = normalizer(data)
    torch.testing.assert_close(out.mean(0), torch.zeros(3), atol=1e-3, rtol=0)
    torch.testing.assert_close(out.std(0), torch.ones(3), atol=1e-2, rtol=0)


def test_normalizer_clips_and_begins_as_identity() -> None:
    normalizer = Normalizer(1)
    assert normalizer(torch.tensor([[-3.0], [99.0]])).flatten().tolist() == [-3.0, 10.0]
    normalizer.update(torch.zeros(5, 1))
    assert normalizer(torch.tensor([[0.0], [1.0]])).flatten().tolist() == [0.0, 10.0]
