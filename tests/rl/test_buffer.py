import pytest
import torch

from plaudit.rl import RolloutBuffer

STEPS, ENVS = 3, 2


def fill(buffer: RolloutBuffer, image: bool = False) -> None:
    """Sample (t, n) carries the number 10 t + n everywhere."""
    for t in range(STEPS):
        number = 10.0 * t + torch.arange(ENVS)
        obs = number[:, None].repeat(1, 4)
        pixels = number.to(torch.uint8)[:, None, None, None].expand(ENVS, 2, 2, 3)
        buffer.add(
            {"state": obs, "camera": pixels} if image else obs,
            number[:, None].repeat(1, 2),
            number,
            torch.arange(ENVS) == 1,
            number + 0.5,
            -number,
        )


def test_minibatches_hold_every_sample_once_and_keep_rows_together() -> None:
    buffer = RolloutBuffer(STEPS, ENVS, 4, 2, "cpu")
    fill(buffer)
    buffer.set_extras({"advantages": buffer.rewards * 2.0, "weights": torch.ones(STEPS, ENVS, 5)})
    batches = list(buffer.iterate_minibatches(4))
    assert [len(batch["rewards"]) for batch in batches] == [4, 2]
    assert set(batches[0]) >= {"obs", "actions", "rewards", "dones", "values", "logprobs", "advantages", "weights"}
    seen = torch.cat([batch["rewards"] for batch in batches])
    assert sorted(seen.tolist()) == [0.0, 1.0, 10.0, 11.0, 20.0, 21.0]
    for batch in batches:
        number = batch["rewards"]
        torch.testing.assert_close(batch["obs"], number[:, None].repeat(1, 4))
        torch.testing.assert_close(batch["actions"], number[:, None].repeat(1, 2))
        torch.testing.assert_close(batch["values"], number + 0.5)
        torch.testing.assert_close(batch["logprobs"], -number)
        torch.testing.assert_close(batch["advantages"], number * 2.0)
        assert (batch["dones"] == (number % 10 == 1)).all()
        assert batch["weights"].shape == (len(number), 5)


def test_two_passes_are_shuffled_differently() -> None:
    buffer = RolloutBuffer(STEPS, ENVS, 4, 2, "cpu")
    fill(buffer)
    orders = {tuple(next(buffer.iterate_minibatches(6))["rewards"].tolist()) for _ in range(10)}
    assert len(orders) > 1


def test_images_stay_uint8() -> None:
    buffer = RolloutBuffer(STEPS, ENVS, {"state": (4,), "camera": (2, 2, 3)}, 2, "cpu")
    fill(buffer, image=True)
    batch = next(buffer.iterate_minibatches(6))
    assert batch["obs"]["camera"].dtype == torch.uint8
    assert batch["obs"]["camera"].shape == (6, 2, 2, 3)
    assert batch["obs"]["camera"][:, 0, 0, 0].tolist() == batch["rewards"].tolist()
    assert batch["obs"]["state"][:, 0].tolist() == batch["rewards"].tolist()


def test_full_buffer_starts_anew() -> None:
    buffer = RolloutBuffer(STEPS, ENVS, 4, 2, "cpu")
    fill(buffer)
    assert buffer.full
    buffer.set_extras({"advantages": buffer.rewards})
    buffer.add(
        torch.zeros(ENVS, 4),
        torch.zeros(ENVS, 2),
        torch.full((ENVS,), 7.0),
        torch.zeros(ENVS).bool(),
        *torch.zeros(2, 2),
    )
    assert not buffer.full
    batch = next(buffer.iterate_minibatches(100))
    assert batch["rewards"].tolist() == [7.0, 7.0]
    assert "advantages" not in batch


def test_extras_of_the_wrong_shape_are_refused() -> None:
    buffer = RolloutBuffer(STEPS, ENVS, 4, 2, "cpu")
    fill(buffer)
    with pytest.raises(ValueError, match=r"'advantages' has shape \(6,\).*\(3, 2\)"):
        buffer.set_extras({"advantages": torch.zeros(6)})
