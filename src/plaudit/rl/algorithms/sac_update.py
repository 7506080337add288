"""The gradient step of SAC: critics, encoder, target networks, actor and temperature."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from plaudit.config.algorithm_schema import SACConfig
from plaudit.rl.accel.critic_kernel import quickest_critics
from plaudit.rl.accel.critics import Training
from plaudit.rl.accel.flat_adam import FlatAdam, FlatParameters
from plaudit.rl.buffers.replay_buffer import Batch
from plaudit.rl.checkpoint import check_complete
from plaudit.rl.image_augmentation import moved_images
from plaudit.rl.networks.ensemble import Pass
from plaudit.rl.networks.image_encoder import ImageEncoder
from plaudit.rl.observations import PolicyObs, map_obs
from plaudit.rl.policies import distributions as squashed
from plaudit.rl.policies.box_policy import cameras_of, join
from plaudit.rl.policies.sac_policy import SACPolicy


class Sight:
    """An encoder that learns, and the target critics', which follows.

    Args:
        encoder: Of critics and actor.
        target: Of the target critics.
        cfg: How.
    """

    def __init__(self, encoder: ImageEncoder, target: ImageEncoder, cfg: SACConfig) -> None:
        self.tau = cfg.tau
        self.parameters, self.target = FlatParameters(encoder), FlatParameters(target)
        self.optimizer = FlatAdam(self.parameters, cfg.learning_rate, eps=1e-8)
        self._places = [self.parameters.gradient_of(part) for part in self.parameters.parts]

    def begin(self) -> None:
        """The target's is what the other is, which may have been given other weights since."""
        self.target.data.copy_(self.parameters.data)

    def improve(self, image: torch.Tensor, d_image: torch.Tensor) -> None:
        """One gradient step, from what was seen, (n, features), and the gradient of that; the target follows."""
        found = torch.autograd.grad(image, self.parameters.parts, d_image)
        for place, gradient in zip(self._places, found, strict=True):
            place.copy_(gradient)
        self.optimizer.step()
        self.target.data.lerp_(self.parameters.data, self.tau)

    def state_dict(self) -> dict[str, Any]:
        """What going on needs beyond the encoder."""
        return {"optimizer": self.optimizer.state_dict(), "target": self.target.data}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        check_complete(state, self.state_dict(), "what SAC's encoder has learned")
        self.optimizer.load_state_dict(state["optimizer"])
        self.target.data.copy_(state["target"])


class UpdateInputs(NamedTuple):
    """What networks are shown of n transitions in one gradient step, which uses it up: behind every observation is room
    for an action, so that critics are given both without copying, and those drawn take the place of those taken.

    Attributes:
        both: (2, n, d + action_dim): first where the actions led to, then where they were taken, with the actions that
            were; for critics and actor.
        ahead: (n, d + action_dim), where they led to for the target critics, whose encoder is another.
        image: The encoder's part of where they were taken, (n, features), and the way back from it; `None` without
            pictures.
    """

    both: torch.Tensor
    ahead: torch.Tensor
    image: torch.Tensor | None


class UpdateBatcher:
    """Shows transitions to a policy and to its target critics.

    Every picture is moved on its own: where an action was taken and where it led to, each camera, each time that a
    transition is drawn (DrQ; Yarats et al., 2021, with one move for each). Critics and actor are shown the same.

    Args:
        policy: Whose encoder it is.
        target: The target critics' encoder; `None` where the policy has none.
        shift: Pixels, at most, by which pictures are moved.
    """

    def __init__(self, policy: SACPolicy, target: ImageEncoder | None, shift: int) -> None:
        self.policy, self.target, self.shift = policy, target, shift

    def shares(self, batch: Batch, count: int) -> Iterator[UpdateInputs]:
        """`count` equal shares of a batch, each shown when its turn comes: an encoder learns from one to the next."""
        if self.policy.encoder is None:  # Numbers stay what they are, and are laid out for all at once.
            next_obs, obs = (self.policy.vector(side) for side in (batch.next_obs, batch.obs))
            yield from (
                UpdateInputs(both, both[0], None)
                for both in _laid(count, next_obs, obs, self.policy.to_unit(batch.action))
            )
            return
        each = len(batch.action) // count
        for start in range(0, count * each, each):
            yield self.show(_part(batch, slice(start, start + each)))

    def show(self, batch: Batch) -> UpdateInputs:
        """Transitions with pictures. Called without gradients; `UpdateInputs.image` has its own nevertheless."""
        policy, encoder, target = self.policy, self.policy.encoder, self.target
        assert encoder is not None and target is not None
        seen, next_seen = (self._pictures(encoder, side) for side in (batch.obs, batch.next_obs))
        with torch.enable_grad():
            image = encoder(seen)
        next_vector, vector = (policy.vector(side) if policy.vectors else None for side in (batch.next_obs, batch.obs))
        next_obs, obs = join(next_vector, encoder(next_seen)), join(vector, image.detach())
        (both,) = _laid(1, next_obs, obs, self.policy.to_unit(batch.action))
        ahead = both[0].clone()
        numbers = sum(policy.vectors.values())
        ahead[:, numbers : numbers + encoder.features] = target(next_seen)
        return UpdateInputs(both, ahead, image)

    def _pictures(self, encoder: ImageEncoder, obs: PolicyObs) -> dict[str, torch.Tensor]:
        """What encoders are given: pictures, or what a frozen one makes of them, once for all who ask."""
        every = cameras_of(obs)
        seen = {name: every[name] for name in encoder.names}
        if self.shift:
            seen = {name: moved_images(images, self.shift) for name, images in seen.items()}
        return encoder.digest(seen) if encoder.frozen else seen


def _laid(count: int, next_obs: torch.Tensor, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """`count` shares of observations, (n, d) each, and actions, (n, action_dim), as `UpdateInputs.both` has them."""
    length = obs.shape[-1]
    laid = obs.new_empty(count, 2, len(obs) // count, length + action.shape[-1])
    for number, side in enumerate((next_obs, obs)):
        laid[:, number, :, :length] = side.reshape(count, -1, length)
    laid[:, 1, :, length:] = action.reshape(count, -1, action.shape[-1])
    return laid


def _part(batch: Batch, part: slice) -> Batch:
    """Some of a batch."""
    obs, next_obs = (map_obs(lambda value: value[part], side) for side in (batch.obs, batch.next_obs))
    return Batch(obs, batch.action[part], batch.reward[part], batch.discount[part], next_obs)


AT_ONCE = 2048
"""Observations of which the actor is asked together, at most."""


class Losses(NamedTuple):
    """What some gradient steps were about, in means.

    Attributes:
        critic_loss: Half the squared error of a critic.
        q_value: What the critics think of the batch.
        actor_loss: Temperature times log density, minus value; NaN where the actor did not learn.
        entropy: Of the actor, with actions of -1 to 1; NaN likewise.
        temperature: Of the entropy.
    """

    critic_loss: float
    q_value: float
    actor_loss: float
    entropy: float
    temperature: float


class Temperature(nn.Module):
    """The weight of the entropy, as a logarithm."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.tensor([math.log(value)]))


class SACLearner:
    """Changes a policy by batches of transitions. It knows nothing of envs, nor of where the batches are from.

    Args:
        cfg: How.
        policy: What is changed, in place.

    Attributes:
        temperature: Weight of the entropy now, a tensor of one number.
        steps: Gradient steps of the critics so far.
    """

    def __init__(self, cfg: SACConfig, policy: SACPolicy) -> None:
        self.cfg, self.policy = cfg, policy
        encoder = policy.encoder
        target, twin = copy.deepcopy(policy.critics), None if encoder is None else encoder.twin()
        self._critics, self._target, self._actor = (
            FlatParameters(network) for network in (policy.critics, target, policy.actor)
        )
        self.critic_optimizer, self.actor_optimizer = (
            FlatAdam(part, cfg.learning_rate, eps=1e-8) for part in (self._critics, self._actor)
        )
        self.critics = quickest_critics(policy.critics, Training(self.critic_optimizer, self._target, cfg.tau))
        self.target = quickest_critics(target, beside=self.critics)
        self.actor = Pass(policy.actor, self._actor.gradient_of)
        self.sight = None if encoder is None or twin is None else Sight(encoder, twin, cfg)
        self.viewer = UpdateBatcher(policy, twin, cfg.image_shift)
        numbers = sum(policy.vectors.values())
        self._image = None if encoder is None else slice(numbers, numbers + encoder.features)
        learned = Temperature(cfg.init_temperature).to(policy.device)
        self._log_temperature = FlatParameters(learned)
        self.temperature_optimizer = FlatAdam(self._log_temperature, cfg.learning_rate, eps=1e-8)
        actions = len(policy.reach)
        self.target_entropy = -float(actions) if cfg.target_entropy is None else cfg.target_entropy
        self.steps = 0

    @property
    def temperature(self) -> torch.Tensor:
        if self.cfg.temperature is not None:
            return torch.tensor([self.cfg.temperature], device=self.policy.device)
        return self._log_temperature.data.exp()

    @torch.no_grad()
    def learn(self, batch: Batch, count: int, shown: int = 0) -> Losses:
        """Takes `count` gradient steps, each with its share of the batch, of which the first `shown` are somebody's who
        knows how it is done.
        """
        if self.steps == 0:  # The policy may have been given other weights since.
            self._target.data.copy_(self._critics.data)
            if self.sight is not None:
                self.sight.begin()
        total, actions = batch.action.shape
        each = total // count
        noises = torch.randn(2, total, actions, device=batch.action.device)
        noises = noises.view(2, count, each, actions).transpose(0, 1)
        rewards, discounts = (part.reshape(count, each) for part in (batch.reward, batch.discount))
        views, subsets = self.viewer.shares(batch, count), self._subsets(count)
        of_critics, of_actor = [], []
        for run, update_actor in self._runs(count, each):
            shares = list(islice(views, run.stop - run.start))
            drawn = self._draw(shares, noises[run], update_actor)
            given = self._with_entropy(rewards[run], discounts[run], drawn.log_prob)
            drawn_ahead = drawn.action[: given.numel()].view(*given.shape, actions)
            turns = zip(shares, given, discounts[run], drawn_ahead, subsets[run], strict=True)
            for view, reward, discount, action, believed in turns:
                self.steps += 1
                aim = self._aim(reward, discount, view.ahead, action, believed)
                of_critics.append(self._improve_critics(view.both[1], aim, view.image))
            if update_actor:
                of_actor.append(self._improve_actor(shares[-1].both[1], drawn.rows(slice(-each, None)), shown))
        return self._summary(of_critics, of_actor)

    def _runs(self, count: int, each: int) -> Iterator[tuple[slice, bool]]:
        """Which of `count` steps follow each other before the actor changes, or the encoder does, and whether the actor
        learns after them: all that it is asked meanwhile, it can be asked at once, which is quicker.
        """
        interval, start = self.cfg.actor_interval, 0
        longest = 1 if self.sight is not None else max(1, AT_ONCE // each)
        while start < count:
            left = interval - self.steps % interval
            stop = min(start + left, start + longest, count)
            yield slice(start, stop), stop == start + left
            start = stop

    def _draw(self, views: Sequence[UpdateInputs], noise: torch.Tensor, update_actor: bool) -> squashed.Draw:
        """Sample next actions for each view; with `update_actor`, also actions at the observations of the last view.

        Args:
            views: Of n transitions each.
            noise: (views, 2, n, action_dim).
            update_actor: Whether the actor is updated after these steps.
        """
        actions = noise.shape[-1]
        sides = [view.both[0, :, :-actions] for view in views] + (
            [views[-1].both[1, :, :-actions]] if update_actor else []
        )
        noises = [noise[:, 0].flatten(0, 1), *([noise[-1, 1]] if update_actor else [])]
        return squashed.draw(self.actor.forward(torch.cat(sides))[0], torch.cat(noises))

    def _subsets(self, count: int) -> list[list[int] | None]:
        """For each step the target critics that are believed, in rising order: drawn without replacement (Chen et al.,
        2021, REDQ). `None` where that is all of them.
        """
        members, wanted = self.policy.critics.members, self.cfg.min_critics
        if wanted >= members:
            return [None] * count
        drawn = torch.rand(count, members, device=self.policy.device).argsort(1)[:, :wanted]
        return cast(list[list[int] | None], drawn.sort(1).values.tolist())

    def _with_entropy(self, reward: torch.Tensor, discount: torch.Tensor, log_prob: torch.Tensor) -> torch.Tensor:
        """What transitions give, (views, n), apart from what the critics say of where they led to."""
        if not self.cfg.backup_entropy:
            return reward
        drawn = log_prob[: reward.numel()].view_as(reward)
        return torch.addcmul(reward, discount * self.temperature, drawn, value=-1.0)

    def _aim(
        self,
        given: torch.Tensor,
        discount: torch.Tensor,
        ahead: torch.Tensor,
        action: torch.Tensor,
        believed: list[int] | None,
    ) -> torch.Tensor:
        """What the critics should say, (n,). The actions drawn are put where `ahead` has room for them."""
        ahead[:, -action.shape[-1] :] = action
        return torch.addcmul(given, discount, self.target.values(ahead, believed).amin(0))

    def _improve_critics(
        self, known: torch.Tensor, aim: torch.Tensor, image: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step on half the mean squared error, the critics' added up, for them and the encoder that `image` is of;
        the targets follow.
        """
        square, value, d_image = self.critics.improve(known, aim, self._image)
        if self.sight is not None and image is not None and d_image is not None:
            self.sight.improve(image, d_image)
        return square, value

    def _improve_actor(
        self, taken: torch.Tensor, drawn: squashed.Draw, shown: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step on temperature · log density - value, and one of the temperature.

        With `cfg.cloning` the actor is also to do what was shown (Nair et al., 2018, without their filter): critics
        know little of an action before it was tried.

        Args:
            taken: (n, d + action_dim): observations, and the actions that were taken there, of which the first `shown`
                are somebody's who knows how it is done. Those that were drawn take their place.
            drawn: The last that the actor was asked for.
            shown: How many.
        """
        temperature, (count, actions) = self.temperature, drawn.action.shape
        cloned = taken[:shown, -actions:].clone() if shown and self.cfg.cloning else None
        taken[:, -actions:] = drawn.action
        value, d_action = self.critics.ascend(
            taken, self.cfg.actor_critics, slice(taken.shape[-1] - actions, taken.shape[-1])
        )
        if cloned is not None:
            d_action[:shown] += (2.0 * self.cfg.cloning / shown) * (drawn.action[:shown] - cloned)
        self.actor.narrow(slice(-count, None))
        self.actor.backward(squashed.backward(drawn, d_action, temperature / count)[None])
        self.actor_optimizer.step()
        log_prob = drawn.log_prob.mean()
        if self.cfg.temperature is None:
            # The gradient of -log α · (log density + target entropy): it grows while there is too little entropy.
            self._log_temperature.gradient.copy_(-(log_prob + self.target_entropy))
            self.temperature_optimizer.step()
        return temperature * log_prob - value.mean(), -log_prob

    def _summary(
        self,
        of_critics: list[tuple[torch.Tensor, torch.Tensor]],
        of_actor: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> Losses:
        square, value = (float(torch.stack(parts).mean()) for parts in zip(*of_critics, strict=True))
        actor_loss, entropy = (
            (float(torch.stack([part.reshape(()) for part in parts]).mean()) for parts in zip(*of_actor, strict=True))
            if of_actor
            else (math.nan, math.nan)
        )
        return Losses(0.5 * square, value, actor_loss, entropy, float(self.temperature))

    def state_dict(self) -> dict[str, Any]:
        """What going on needs beyond the policy."""
        return {
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "temperature_optimizer": self.temperature_optimizer.state_dict(),
            "log_temperature": self._log_temperature.data,
            "target": self._target.data,
            "steps": self.steps,
            **({} if self.sight is None else {"sight": self.sight.state_dict()}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        check_complete(state, self.state_dict(), "what SAC has learned")
        for name in ("actor_optimizer", "critic_optimizer", "temperature_optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self._log_temperature.data.copy_(state["log_temperature"])
        self._target.data.copy_(state["target"])
        if self.sight is not None:
            self.sight.load_state_dict(state["sight"])
        self.steps = int(state["steps"])
