import pytest
import torch

from plaudit.rl.exploration_noise import AR1Noise

CPU = torch.device("cpu")


def draws(noise: AR1Noise, count: int) -> torch.Tensor:
    return torch.stack([noise.draw(200, 3, CPU) for _ in range(count)])


def test_each_draw_is_standard_normal_and_resembles_the_one_before() -> None:
    torch.manual_seed(0)
    found = draws(AR1Noise(0.7), 400)
    assert found.std().item() == pytest.approx(1.0, abs=0.01)
    assert found.mean().item() == pytest.approx(0.0, abs=0.02)
    for apart, expected in ((1, 0.7), (2, 0.49), (10, 0.7**10)):
        assert (found[apart:] * found[:-apart]).mean().item() == pytest.approx(expected, abs=0.02)
    assert (found[:, 0] * found[:, 1]).mean().item() == pytest.approx(0.0, abs=0.05)


def test_what_is_put_back_goes_on() -> None:
    torch.manual_seed(0)
    first, second = AR1Noise(0.9), AR1Noise(0.9)
    draws(first, 3)
    second.load_state_dict(first.state_dict())
    torch.manual_seed(1)
    ours = first.draw(200, 3, CPU)
    torch.manual_seed(1)
    assert torch.equal(ours, second.draw(200, 3, CPU))


def test_other_envs_begin_anew() -> None:
    noise = AR1Noise(0.9)
    noise.draw(4, 2, CPU)
    torch.manual_seed(2)
    found = noise.draw(5, 2, CPU)
    torch.manual_seed(2)
    assert torch.equal(found, torch.randn(5, 2))
