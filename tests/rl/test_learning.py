"""The probe ladder: each env tests one ability on top of the one before."""

import pytest
import torch
from rl_helpers import MakeTrainer

from plaudit.envs.probe_envs import ActionReward, PictureAction, Probe

GAMMA = 0.9
LEARN = {"iterations": 60, "rollout_steps": 8, "num_envs": 32}


@pytest.mark.parametrize(
    ("name", "states"),
    [("ConstantValue", [0.0]), ("ObsValue", [-1.0, 1.0]), ("Discount", [0.0, 1.0]), ("Timeout", [0.0])],
)
def test_values(make_trainer: MakeTrainer, name: str, states: list[float]) -> None:
    trainer = make_trainer(f"probe/{name}", ppo={"learning_rate": 1e-2, "batch_size": 64}, **LEARN)
    trainer.train()
    assert isinstance(trainer.env, Probe)
    obs = torch.tensor(states)[:, None]
    torch.testing.assert_close(trainer.policy.get_value(obs), trainer.env.true_value(obs, GAMMA), atol=0.1, rtol=0.05)


@pytest.mark.parametrize("name", ["ActionReward", "ObsActionReward"])
@pytest.mark.parametrize("squash", [False, True])
def test_actions(make_trainer: MakeTrainer, name: str, squash: bool) -> None:
    ppo = {"learning_rate": 5e-3, "batch_size": 64}
    trainer = make_trainer(f"probe/{name}", ppo=ppo, policy={"squash": squash}, **LEARN)
    trainer.train()
    assert isinstance(trainer.env, ActionReward)
    obs = torch.linspace(-0.9, 0.9, 7)[:, None] if name == "ObsActionReward" else torch.zeros(1, 1)
    action, _, _ = trainer.policy.get_action(obs, deterministic=True)
    torch.testing.assert_close(action, trainer.env.best_action(obs), atol=0.12, rtol=0)


@pytest.mark.parametrize("shift", [0, 1])
def test_pictures(make_trainer: MakeTrainer, shift: int) -> None:
    ppo = {"learning_rate": 3e-3, "batch_size": 64, "image_shift": shift, "lr_schedule": "linear"}
    trainer = make_trainer("probe/PictureAction", ppo=ppo, policy={"kind": "cnn"}, **LEARN)
    trainer.train()
    assert isinstance(trainer.env, PictureAction)
    value = torch.tensor([-0.95, -0.7, -0.4, -0.15, 0.15, 0.4, 0.7, 0.95])
    action, _, _ = trainer.policy.get_action(trainer.env.show(value), deterministic=True)
    torch.testing.assert_close(action, trainer.env.best_action(value[:, None]), atol=0.15, rtol=0)
