"""One gradient step of SAC after another: critics, their targets, actor, temperature."""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import torch
from torch import nn

from plaudit.config.algorithms import SACConfig
from plaudit.rl import squashed
from plaudit.rl.ensemble import Pass
from plaudit.rl.flatten import FlatAdam, FlatParameters
from plaudit.rl.replay import Batch
from plaudit.rl.sac_policy import SACPolicy


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
        target = copy.deepcopy(policy.critics)
        self._critics, self._target, self._actor = (
            FlatParameters(part) for part in (policy.critics, target, policy.actor)
        )
        self.critics = Pass(policy.critics, self._critics.gradient_of)
        self.target, self.actor = Pass(target), Pass(policy.actor, self._actor.gradient_of)
        self.critic_optimizer, self.actor_optimizer = (
            FlatAdam(part, cfg.learning_rate, eps=1e-8) for part in (self._critics, self._actor)
        )
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
    def learn(self, batch: Batch, count: int) -> Losses:
        """Takes `count` gradient steps, each with its share of the batch."""
        policy = self.policy
        if self.steps == 0:  # The policy may have been given other weights since.
            self._target.data.copy_(self._critics.data)
        obs, next_obs = policy.vector(batch.obs), policy.vector(batch.next_obs)
        known = torch.cat([obs, policy.to_unit(batch.action)], -1)
        size, actions = len(obs) // count, len(policy.reach)
        noise, other_noise = torch.randn(2, len(obs), actions, device=obs.device)
        believed = self._subsets(count)
        errors, values, of_actor = [], [], []
        for step in range(count):
            part = slice(step * size, (step + 1) * size)
            aim = self._aim(batch.reward[part], batch.discount[part], next_obs[part], noise[part], believed[step])
            error, value = self._improve_critics(known[part], aim)
            errors.append(error)
            values.append(value)
            self.steps += 1
            if self.steps % self.cfg.actor_interval == 0:
                of_actor.append(self._improve_actor(obs[part], other_noise[part]))
        return self._summary(errors, values, of_actor)

    def _subsets(self, count: int) -> list[torch.Tensor | None]:
        """For each step the target critics that are believed, int64 (m,): drawn without replacement (Chen et al., 2021,
        REDQ). `None` where that is all of them.
        """
        members, wanted = self.policy.critics.members, self.cfg.min_critics
        if wanted >= members:
            return [None] * count
        return list(torch.rand(count, members, device=self.policy.device).argsort(1)[:, :wanted])

    def _aim(
        self,
        reward: torch.Tensor,
        discount: torch.Tensor,
        next_obs: torch.Tensor,
        noise: torch.Tensor,
        believed: torch.Tensor | None,
    ) -> torch.Tensor:
        """What the critics should say, (n,)."""
        drawn = squashed.draw(self.actor.forward(next_obs)[0], noise)
        value = self.target.forward(torch.cat([next_obs, drawn.action], -1), believed)[..., 0].amin(0)
        if self.cfg.backup_entropy:
            value = value - self.temperature * drawn.log_prob
        return torch.addcmul(reward, discount, value)

    def _improve_critics(self, known: torch.Tensor, aim: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One step on half the mean squared error, the critics' added up; their targets follow."""
        values = self.critics.forward(known)
        error = values - aim[:, None]
        mean = values.mean()
        self.critics.backward(error / len(aim))
        self.critic_optimizer.step()
        self._target.data.lerp_(self._critics.data, self.cfg.tau)
        return 0.5 * error.square().mean(), mean

    def _improve_actor(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One step on temperature · log density - value, and one of the temperature."""
        temperature, count = self.temperature, len(obs)
        drawn = squashed.draw(self.actor.forward(obs)[0], noise)
        values = self.critics.forward(torch.cat([obs, drawn.action], -1))
        if self.cfg.actor_critics == "mean":
            value, weight = values.mean(0), torch.full_like(values, -1.0 / (count * len(values)))
        else:
            value, least = values.min(0)
            weight = torch.zeros_like(values).scatter_(0, least[None], -1.0 / count)
        d_action = self.critics.backward(weight, learns=False, inputs=slice(obs.shape[-1], None))
        assert d_action is not None
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
        errors: list[torch.Tensor],
        values: list[torch.Tensor],
        of_actor: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> Losses:
        actor_loss, entropy = (
            (float(torch.stack([part.reshape(()) for part in parts]).mean()) for parts in zip(*of_actor, strict=True))
            if of_actor
            else (math.nan, math.nan)
        )
        loss, value = (float(torch.stack(parts).mean()) for parts in (errors, values))
        return Losses(loss, value, actor_loss, entropy, float(self.temperature))

    def state_dict(self) -> dict[str, Any]:
        """What going on needs beyond the policy."""
        return {
            "actor_optimizer": self.actor_optimizer.state_dict(),
            "critic_optimizer": self.critic_optimizer.state_dict(),
            "temperature_optimizer": self.temperature_optimizer.state_dict(),
            "log_temperature": self._log_temperature.data,
            "target": self._target.data,
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        for name in ("actor_optimizer", "critic_optimizer", "temperature_optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self._log_temperature.data.copy_(state["log_temperature"])
        self._target.data.copy_(state["target"])
        self.steps = int(state["steps"])
