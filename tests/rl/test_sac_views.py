"""SAC from pictures: what it is shown of them, how its encoder learns, and what it remembers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from sac_helpers import make_sac, make_trainer, sac_of

from plaudit.envs import build_env
from plaudit.envs.base import Obs
from plaudit.envs.config import ProbeConfig
from plaudit.envs.probe_envs import PictureAction
from plaudit.errors import CheckpointError, ConfigError
from plaudit.rl import Trainer
from plaudit.rl.algorithms import sac as sac_module
from plaudit.rl.algorithms.sac import SAC
from plaudit.rl.algorithms.sac_update import SACLearner, Sight, UpdateInputs, _part
from plaudit.rl.buffers.replay_buffer import Batch, ReplayBuffer
from plaudit.rl.networks.image_encoder import ImageEncoder
from plaudit.rl.policies import distributions as squashed
from plaudit.rl.policies.sac_policy import SACPolicy
from plaudit.vision.resnet import ResNet

LR = 3e-3
CALM: dict[str, Any] = {"temperature": 0.01, "backup_entropy": False, "tau": 0.05, "gamma": 0.9}
LOOKING = {"type": "cnn"}


def picture_sac(sac: dict[str, Any] | None = None, policy: dict[str, Any] | None = None) -> SAC:
    """SAC that looks at 16 x 16 pixels, with a number beside them."""
    torch.manual_seed(0)
    env = build_env("probe/PictureAction", {"num_envs": 2})
    return make_sac(env, {"learning_rate": LR, **(sac or {})}, policy, 8, **LOOKING)


def some(count: int) -> Batch:
    numbers = torch.Generator().manual_seed(3)
    value, action, reward, next_value = torch.rand(4, count, generator=numbers) * 2 - 1
    show = PictureAction(ProbeConfig(num_envs=1)).show
    return Batch(show(value), action[:, None], reward, torch.tensor([0.9, 0.0]).repeat(count // 2), show(next_value))


def encoder_of(policy: SACPolicy) -> ImageEncoder:
    assert policy.encoder is not None
    return policy.encoder


def sight_of(learner: SACLearner) -> Sight:
    assert learner.sight is not None
    return learner.sight


def weights(module: torch.nn.Module) -> torch.Tensor:
    """All that learns, in one vector of its own."""
    return torch.cat([part.detach().flatten() for part in module.parameters() if part.requires_grad])


def show(learner: SACLearner, batch: Batch) -> UpdateInputs:
    with torch.no_grad():
        return learner.viewer.show(batch)


class ByAutograd:
    """SAC with an encoder as a textbook has it, on a copy of the policy."""

    def __init__(self, policy: SACPolicy, cfg: Any) -> None:
        self.policy, self.cfg = copy.deepcopy(policy), cfg
        self.target, self.target_encoder = copy.deepcopy(policy.critics), copy.deepcopy(encoder_of(policy))
        learned = [*self.policy.critics.parameters(), *encoder_of(self.policy).parameters()]
        self.critic_adam = torch.optim.Adam([part for part in learned if part.requires_grad], LR)
        self.actor_adam = torch.optim.Adam(self.policy.actor.parameters(), LR)

    def learn(self, batch: Batch, noise: torch.Tensor, other: torch.Tensor, acts: bool) -> None:
        policy, encoder = self.policy, encoder_of(self.policy)
        assert isinstance(batch.obs, dict) and isinstance(batch.next_obs, dict)
        with torch.no_grad():
            drawn = squashed.draw(policy.actor(policy.features(batch.next_obs))[0], noise)
            lagging = torch.cat([batch.next_obs["state"], self.target_encoder(batch.next_obs)], -1)
            value = self.target(torch.cat([lagging, drawn.action], -1))[..., 0].min(0).values
            aim = batch.reward + batch.discount * (value - self.cfg.temperature * drawn.log_prob)
        seen = torch.cat([batch.obs["state"], encoder(batch.obs)], -1)
        said = policy.critics(torch.cat([seen, batch.action], -1))[..., 0]
        self.critic_adam.zero_grad()
        (0.5 * (said - aim).square().mean(1).sum()).backward()
        self.critic_adam.step()
        for ours, theirs in ((self.target, policy.critics), (self.target_encoder, encoder)):
            for slow, quick in zip(ours.parameters(), theirs.parameters(), strict=True):
                slow.data.lerp_(quick.data, self.cfg.tau)
        if not acts:
            return
        drawn = squashed.draw(policy.actor(seen.detach())[0], other)
        value = policy.critics(torch.cat([seen.detach(), drawn.action], -1))[..., 0].min(0).values
        self.actor_adam.zero_grad()
        (self.cfg.temperature * drawn.log_prob - value).mean().backward()
        self.actor_adam.step()


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize(("count", "interval"), [(1, 1), (4, 2)])
def test_steps_are_those_of_the_textbook(layer_norm: bool, count: int, interval: int) -> None:
    cfg = {"temperature": 0.2, "tau": 0.1, "actor_interval": interval}
    learner = picture_sac(cfg, {"critic_layer_norm": layer_norm}).learner
    textbook = ByAutograd(learner.policy, learner.cfg)
    for turn in range(3):
        batch = some(16 * count)
        torch.manual_seed(turn)
        learner.learn(batch, count)
        torch.manual_seed(turn)
        noise = torch.randn(2, 16 * count, 1)
        for step in range(count):
            part = slice(16 * step, 16 * (step + 1))
            textbook.learn(_part(batch, part), noise[0, part], noise[1, part], (step + 1) % interval == 0)
    theirs = textbook.policy.state_dict()
    for name, value in learner.policy.state_dict().items():
        torch.testing.assert_close(value, theirs[name], atol=2e-5, rtol=1e-3, msg=name)
    sight = sight_of(learner)
    for found, target in ((learner._target, textbook.target), (sight.target, textbook.target_encoder)):
        torch.testing.assert_close(found.data, weights(target), atol=2e-5, rtol=1e-3)


def test_the_encoders_gradient_is_that_of_the_critics_loss() -> None:
    learner, batch = picture_sac().learner, some(16)
    policy, aim = learner.policy, torch.randn(16)
    view = show(learner, batch)
    said = policy.critics(torch.cat([policy.features(batch.obs), batch.action], -1))[..., 0]
    loss = 0.5 * (said - aim).square().mean(1).sum()
    encoder = encoder_of(policy)
    expected = torch.autograd.grad(loss, list(encoder.parameters()))
    with torch.no_grad():
        learner._improve_critics(view.both[1], aim, view.image)
    for part, gradient in zip(encoder.parameters(), expected, strict=True):
        torch.testing.assert_close(sight_of(learner).parameters.gradient_of(part), gradient, atol=1e-6, rtol=1e-4)
        assert gradient.abs().max() > 0


def test_the_actors_loss_leaves_the_encoder_alone() -> None:
    learner = picture_sac().learner
    view = show(learner, some(16))
    encoder, actor = encoder_of(learner.policy), learner.policy.actor
    before, acted = weights(encoder).clone(), weights(actor).clone()
    with torch.no_grad():
        drawn = learner._draw([view], torch.randn(1, 2, 16, 1), True)
        learner._improve_actor(view.both[1], drawn.rows(slice(16, None)), 0)
    assert torch.equal(weights(encoder), before)
    assert not torch.equal(weights(actor), acted)


def test_the_target_encoder_follows() -> None:
    learner = picture_sac({"tau": 0.25}).learner
    target, encoder = learner.viewer.target, encoder_of(learner.policy)
    assert target is not None
    start = weights(encoder).clone()
    learner.learn(some(16), 1)
    assert not torch.equal(weights(encoder), start)
    torch.testing.assert_close(weights(target), torch.lerp(start, weights(encoder), 0.25))
    view = show(learner, batch := some(16))
    assert isinstance(batch.next_obs, dict)
    assert torch.equal(view.both[0, :, 1:-1], encoder(batch.next_obs))
    assert torch.equal(view.ahead[:, 1:-1], target(batch.next_obs))


def shift_of(found: torch.Tensor, picture: torch.Tensor, most: int) -> tuple[int, int]:
    """By how many pixels right and down a picture was moved, the edge repeated."""
    for right in range(-most, most + 1):
        for down in range(-most, most + 1):
            rows = (torch.arange(16) + down).clamp(0, 15)
            columns = (torch.arange(16) + right).clamp(0, 15)
            if torch.equal(found, picture[rows][:, columns]):
                return right, down
    raise AssertionError("not moved by whole pixels, or by more than allowed")


def test_every_picture_is_moved_by_whole_pixels_of_its_own() -> None:
    learner = picture_sac({"image_shift": 2}).learner
    picture = torch.randint(0, 256, (16, 16, 3), dtype=torch.uint8)
    obs = {"state": torch.zeros(300, 1), "camera": picture.expand(300, -1, -1, -1)}
    seen: list[torch.Tensor] = []
    encoder_of(learner.policy).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]["camera"]))
    batch = Batch(obs, torch.zeros(300, 1), torch.zeros(300), torch.zeros(300), obs)
    torch.manual_seed(5)
    show(learner, batch)
    here, there = ([shift_of(one, picture, 2) for one in side] for side in seen)
    assert len(set(here)) == len(set(there)) == 25, "as far as that each way, and every way"
    assert sum(a == b for a, b in zip(here, there, strict=True)) < 50, "where an action led to is moved on its own"
    torch.manual_seed(5)
    show(learner, batch)
    assert torch.equal(seen[2], seen[0]) and torch.equal(seen[3], seen[1]), "by torch's random numbers"


def test_without_pictures_there_is_nothing_to_move() -> None:
    with pytest.raises(ConfigError, match="image_shift moves pictures, but the env observes none"):
        make_trainer(sac={"image_shift": 2})


@pytest.mark.parametrize("shift", [0, 1])
def test_it_learns_what_a_picture_tells(shift: int) -> None:
    sac = {**CALM, "image_shift": shift, "learning_rate": LR}
    trainer = make_trainer("probe/PictureAction", sac=sac, net=LOOKING, iterations=12)
    trainer.train()
    assert isinstance(trainer.env, PictureAction) and sac_of(trainer).pace.updates == 12 * 32 - 64
    value = torch.tensor([-0.95, -0.7, -0.4, -0.15, 0.15, 0.4, 0.7, 0.95])
    with torch.no_grad():
        action = trainer.policy.act(trainer.env.show(value), deterministic=True)
    torch.testing.assert_close(action, trainer.env.best_action(value[:, None]), atol=0.2 if shift else 0.12, rtol=0)


class OnlyPictures(PictureAction):
    """The light alone, with nothing beside it."""

    def __init__(self, cfg: ProbeConfig) -> None:
        super().__init__(cfg)
        self.observation_space = gym.spaces.Dict({"camera": self.observation_space["camera"]})

    def show(self, value: torch.Tensor) -> Obs:
        return {"camera": super().show(value)["camera"]}


def test_pictures_may_be_all_that_is_observed() -> None:
    keys = {"batch_size": 8, "learning_starts": 8}
    trainer = make_trainer(OnlyPictures(ProbeConfig(num_envs=2)), sac=keys, net=LOOKING, rollout_steps=4)
    trainer.train(iterations=2)
    sac = sac_of(trainer)
    obs = sac.batch(1).obs
    assert sac.learner.steps == sac.pace.updates == 8
    assert isinstance(obs, torch.Tensor) and obs.dtype == torch.uint8 and obs.shape == (8, 16, 16, 3)


def test_batches_drawn_together_stay_within_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("probe/PictureAction", sac={"batch_size": 16, "learning_starts": 0}, net=LOOKING)
    sac = sac_of(trainer)
    monkeypatch.setattr(sac_module, "DRAWN", 3.5 * 2 * 16 * sac.buffer.nbytes / sac.buffer.slots)
    sizes, sample = [], sac.buffer.sample

    def measured(*arguments: Any) -> Batch:
        batch = sample(*arguments)
        sides = (part for side in (batch.obs, batch.next_obs) if isinstance(side, dict) for part in side.values())
        sizes.append(sum(part.nbytes for part in (*sides, batch.action, batch.reward, batch.discount)))
        return batch

    monkeypatch.setattr(sac.buffer, "sample", measured)
    trainer.train(iterations=1)
    assert len(sizes) == 11, "32 gradient steps, three at a time"
    assert sac_module.DRAWN / 2 < max(sizes) <= sac_module.DRAWN


def pretrained(folder: Path) -> dict[str, Any]:
    """`policy.cfg` of a frozen ResNet-10."""
    path = folder / "resnet10_pretrained.pt"
    if not path.exists():
        torch.manual_seed(7)
        torch.save(ResNet("resnet10", norm="group").state_dict(), path)
    return {"encoder": "resnet10", "pretrained_encoder_path": str(path), "freeze_encoder": True}


def same(first: Trainer, second: Trainer) -> None:
    """Both have learned the same, bit for bit, from the same."""
    one, other = sac_of(first), sac_of(second)
    theirs = other.policy.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in one.policy.state_dict().items())
    assert torch.equal(one.learner._target.data, other.learner._target.data)
    slots = one.buffer.transitions()
    assert torch.equal(slots, other.buffer.transitions())
    for name, column in one.buffer.columns.items():
        assert torch.equal(column[slots], other.buffer.columns[name][slots]), name


@pytest.mark.parametrize("frozen", [False, True])
def test_a_resumed_run_is_bit_for_bit_an_unbroken_one(tmp_path: Path, frozen: bool) -> None:
    keys: dict[str, Any] = {
        "sac": {"update_ratio": 0.2, "batch_size": 16, "learning_starts": 32, "image_shift": 0 if frozen else 1},
        "policy": pretrained(tmp_path) if frozen else None,
        "net": LOOKING,
    }
    unbroken = make_trainer("probe/PictureAction", **keys)
    unbroken.policy.load_pretrained()
    unbroken.train(iterations=4)
    broken = make_trainer("probe/PictureAction", run=tmp_path, **keys)
    broken.policy.load_pretrained()
    broken.train(iterations=2)
    resumed = make_trainer("probe/PictureAction", run=tmp_path, seed=99, **keys)
    resumed.load(tmp_path / "checkpoints" / "latest.pt")
    assert resumed.train(iterations=4)["exact_resume"] is True
    assert sac_of(resumed).pace.updates > 10
    same(unbroken, resumed)
    if frozen:
        keys["sac"]["image_shift"] = 1
        moves = make_trainer("probe/PictureAction", run=tmp_path, **keys)
        with pytest.raises(CheckpointError, match=r"keeps observations .*\[512\].*\[16, 16, 3\].*image_shift"):
            moves.load(tmp_path / "checkpoints" / "latest.pt")


def test_what_a_frozen_encoder_sees_is_kept_in_place_of_pictures(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"policy": pretrained(tmp_path), "net": LOOKING, "rollout_steps": 4}
    trainer = make_trainer("probe/PictureAction", sac={"batch_size": 16, "learning_starts": 0}, **keys)
    trainer.policy.load_pretrained()
    sac = sac_of(trainer)
    net = encoder_of(sac.policy).by_camera["camera"].net
    looked: list[int] = []
    net.register_forward_pre_hook(lambda _, inputs: looked.append(len(inputs[0])))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    start = weights(encoder_of(sac.policy)).clone()
    trainer.train(iterations=2)
    assert sac.pace.updates == 32
    # Each of 2 x 4 steps of 4 envs has a next and a last picture; a rollout begins with looking at its first again.
    assert sum(looked) == 2 * (4 * (4 + 4) + 4)
    assert sac.buffer.columns["obs/camera"].shape[1:] == (512,)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not torch.equal(weights(encoder_of(sac.policy)), start), "what comes after it learns"
    moves = make_trainer("probe/PictureAction", sac={"image_shift": 1}, **keys)
    assert sac_of(moves).buffer.columns["obs/camera"].shape[1:] == (16, 16, 3)


def test_demonstrations_are_kept_alike(tmp_path: Path) -> None:
    trainer = make_trainer("probe/PictureAction", policy=pretrained(tmp_path), net=LOOKING, sac={"batch_size": 16})
    assert isinstance(trainer.env, PictureAction)
    shown = ReplayBuffer(40, 1, {"state": (1,), "camera": (16, 16, 3)}, 1)
    obs = trainer.env.show(torch.linspace(-1.0, 1.0, 31))
    ended = torch.arange(30) == 29
    told = {"reward": torch.zeros(30), "terminated": ended, "done": ended}
    shown.add_episode(obs, torch.full((30, 1), 0.5), told)
    sac = sac_of(trainer)
    expected = sac.policy.digest(obs)
    sac.show(shown)
    assert sac.demonstrations is not None and isinstance(expected, dict)
    found = sac.demonstrations.obs(torch.arange(31))
    assert isinstance(found, dict)
    torch.testing.assert_close(found["camera"], expected["camera"])
    assert torch.equal(found["state"], obs["state"])
    trainer.train(iterations=3)
    assert sac.pace.updates > 0
