"""Proximal policy optimization (Schulman et al., 2017)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from plaudit.config.algorithm_schema import PPOConfig
from plaudit.envs.base import VecEnv
from plaudit.errors import ConfigError, NonFiniteError, PlauditError
from plaudit.rl.accel.flat_adam import FlatAdam, FlatParameters
from plaudit.rl.accel.mlp_gradients import evaluator
from plaudit.rl.algorithms.base import BaseAlgorithm, StepCallback
from plaudit.rl.algorithms.gae import gae
from plaudit.rl.buffers.rollout_buffer import RolloutBuffer, shuffled_minibatches
from plaudit.rl.exploration_noise import AR1Noise
from plaudit.rl.image_augmentation import check_shift, disagreement, moved
from plaudit.rl.observations import ObsDim, PolicyObs, cat_obs, flat
from plaudit.rl.policies.base import Policy
from plaudit.rl.reward_source import settle


class PPOLoss(NamedTuple):
    """The loss on one minibatch of n samples, sample by sample, and its gradient; (n,) each.

    Attributes:
        objective: The clipped objective, which is maximised.
        error: Value minus return, of which the square is minimised.
        entropy: The policy's.
        log_ratio: Logarithm of new over old probability.
        d_logprob, d_value: Gradient of `-mean(objective) + vf_coef * mean(error²)`.
    """

    objective: torch.Tensor
    error: torch.Tensor
    entropy: torch.Tensor
    log_ratio: torch.Tensor
    d_logprob: torch.Tensor
    d_value: torch.Tensor


def ppo_loss(
    logprob: torch.Tensor,
    entropy: torch.Tensor,
    value: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    cfg: PPOConfig,
) -> PPOLoss:
    """The clipped objective (Schulman et al., 2017, eq. 7 and 9) with its gradient written out, which is a third of
    the operations that autograd needs for it.

    Args:
        logprob: (n,), of the policy as it is now.
        entropy: (n,), likewise.
        value: (n,), likewise.
        batch: (n,) each: `logprobs` and `values` from when the actions were taken, `advantages`, `returns`.
        cfg: Coefficients.
    """
    _check_shapes(batch["returns"].shape, log_prob=logprob, entropy=entropy, value=value)
    count = len(logprob)
    advantage = batch["advantages"]
    if cfg.normalize_advantage and count > 1:
        std, mean = torch.std_mean(advantage)
        advantage = (advantage - mean) / (std + 1e-8)
    log_ratio = logprob - batch["logprobs"]
    ratio = log_ratio.exp()
    gain = ratio * advantage
    clipped = ratio.clamp(1.0 - cfg.clip_coef, 1.0 + cfg.clip_coef) * advantage
    # Where the clipped term is the smaller one, it is a constant and has no gradient.
    d_logprob = (gain * (-1.0 / count)).masked_fill_(gain > clipped, 0.0)
    error = value - batch["returns"]
    d_value = error * (2.0 * cfg.vf_coef / count)
    if cfg.clip_value is not None:
        change = value - batch["values"]
        error = change.clamp(-cfg.clip_value, cfg.clip_value) + batch["values"] - batch["returns"]
        d_value = (error * (2.0 * cfg.vf_coef / count)).mul_(change.abs() <= cfg.clip_value)
    return PPOLoss(torch.minimum(gain, clipped), error, entropy, log_ratio, d_logprob, d_value)


def _check_shapes(expected: torch.Size, **given: torch.Tensor) -> None:
    """A column instead of a vector would broadcast to a square, and learn nonsense without a word."""
    for name, value in given.items():
        if value.shape != expected:
            raise PlauditError(
                f"evaluate_actions returned a {name} of shape {tuple(value.shape)}, but must return one number a "
                f"sample, {tuple(expected)}."
            )


def summarise(losses: Sequence[PPOLoss], clip_coef: float) -> dict[str, float]:
    """Numbers to log of some minibatches, computed once for all of them, which is cheaper than one by one."""
    objective, error, entropy, log_ratio, _, _ = (torch.cat(column) for column in zip(*losses, strict=True))
    ratio = log_ratio.exp()
    return {
        "actor_loss": -float(objective.mean()),
        "value_loss": float(error.square().mean()),
        "entropy": float(entropy.mean()),
        # The low-variance estimate of the divergence, http://joschu.net/blog/kl-approx.html.
        "approx_kl": float((ratio - 1.0 - log_ratio).mean()),
        "clip_fraction": float(((ratio - 1.0).abs() > clip_coef).float().mean()),
    }


def explained_variance(values: torch.Tensor, returns: torch.Tensor) -> float:
    """How much of the returns' variance the values foretell: 1 is all, 0 no more than a constant does."""
    variance = returns.var()
    return float(1.0 - (returns - values).var() / variance) if variance > 0 else float("nan")


class PPO(BaseAlgorithm):
    """PPO with a clipped objective (Schulman et al., 2017) and generalised advantage estimation."""

    buffer: RolloutBuffer
    relabels = True

    def __init__(self, cfg: PPOConfig, policy: Policy) -> None:
        self.cfg = cfg
        self.policy = policy
        self.device = torch.device(policy.device)
        self.parameters = FlatParameters(policy)
        self.evaluator = evaluator(policy, self.parameters, entropy_counts=cfg.ent_coef != 0.0)
        self.optimizer = FlatAdam(self.parameters, cfg.learning_rate)
        self.noise = AR1Noise(cfg.noise_correlation)
        self.actor_enabled = cfg.critic_warmup == 0.0
        if cfg.noise_correlation and "noise" not in inspect.signature(policy.get_action).parameters:
            raise ConfigError(
                f"algorithm.cfg.noise_correlation needs a policy whose get_action takes 'noise'; that of "
                f"{type(policy).__name__} does not. Give it the argument, or set the key to 0."
            )

    def initialize_buffer(self, num_steps: int, num_envs: int, obs_dim: ObsDim, action_dim: int) -> None:
        check_shift(self.cfg.image_shift, obs_dim)
        self.buffer = RolloutBuffer(num_steps, num_envs, obs_dim, action_dim, self.device)

    def progress(self, fraction: float) -> None:
        left = {
            "constant": 1.0,
            "linear": 1.0 - fraction,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * fraction)),
        }[self.cfg.lr_schedule]
        self.optimizer.lr = self.cfg.learning_rate * left
        if fraction >= self.cfg.critic_warmup and not self.actor_enabled:
            self.actor_enabled = True
            # Moments of a parameter that had no gradients for long make its first steps several times too large.
            self.optimizer.forget()

    def rewards_are_new(self) -> None:
        if self.cfg.critic_warmup:  # The critic knows other rewards, as at the start.
            self.actor_enabled = False
            self.optimizer.forget()  # Moments would move the policy further without any gradient.

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "noise": self.noise.state_dict(),
            "actor_enabled": self.actor_enabled,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.actor_enabled = bool(state.get("actor_enabled", True))
        super().load_state_dict({name: part for name, part in state.items() if name != "actor_enabled"})

    @torch.no_grad()
    def collect_rollout(
        self,
        env: VecEnv | Any,
        policy: Policy,
        obs: PolicyObs,
        num_steps: int,
        on_step_callback: StepCallback | None = None,
    ) -> dict[str, Any]:
        if num_steps > self.buffer.num_steps:
            raise ValueError(f"a rollout of {num_steps} steps does not fit a buffer of {self.buffer.num_steps}.")
        self.buffer.clear()
        terminated, truncated = torch.zeros(2, num_steps, env.num_envs, dtype=torch.bool, device=self.device)
        finals: list[PolicyObs] = []
        for t in range(num_steps):
            action, logprob, value = self._act(policy, obs, env.num_envs)
            step = env.step(action)
            done = step.done
            self.buffer.add(obs, action, step.reward, done, value, logprob)
            terminated[t], truncated[t] = step.terminated, step.truncated
            if step.final_obs is not None:
                finals.append(flat(step.final_obs))
            next_obs = flat(step.obs)
            if on_step_callback is not None:
                on_step_callback(obs, action, step.reward, done, step.info, next_obs)
            obs = next_obs
        settled = settle(env)
        if settled is not None:
            self.buffer.rewards[:num_steps] = settled.reward
        self._finish(policy, obs, terminated, truncated, finals)
        return {}

    def _act(self, policy: Policy, obs: PolicyObs, num_envs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions to explore with. Each one's density is told as if its noise had been drawn for it alone."""
        if not self.cfg.noise_correlation:
            return policy.get_action(obs)
        width = self.buffer.actions.shape[-1]
        return policy.get_action(obs, noise=self.noise.draw(num_envs, width, self.device))

    def _finish(
        self,
        policy: Policy,
        obs: PolicyObs,
        terminated: torch.Tensor,
        truncated: torch.Tensor,
        finals: list[PolicyObs],
    ) -> None:
        """Values of the last and of the final observations, in one batch, then advantages and returns."""
        buffer = self.buffer
        values = policy.get_value(cat_obs([obs, *finals]))
        filled = slice(buffer.step)
        final_values = torch.zeros_like(buffer.values[filled])
        # Rows of final observations come in time order and, within a step, in the order of the env's index.
        final_values[buffer.dones[filled]] = values[buffer.num_envs :]
        advantages, returns = gae(
            buffer.rewards[filled],
            buffer.values[filled],
            values[: buffer.num_envs],
            terminated,
            truncated,
            final_values,
            self.cfg.gamma,
            self.cfg.gae_lambda,
        )
        buffer.set_extras({"advantages": advantages, "returns": returns})

    def update(self) -> dict[str, float]:
        cfg = self.cfg
        whole = self.buffer.flatten()
        names = ("obs", "actions", "logprobs", "values", "advantages", "returns")
        batch = {name: whole[name] for name in names}
        epochs: list[dict[str, float]] = []
        for _ in range(cfg.n_epochs):
            losses = [self._learn(part) for part in shuffled_minibatches(batch, cfg.batch_size)]
            epochs.append(summarise(losses, cfg.clip_coef))
            if cfg.target_kl is not None and epochs[-1]["approx_kl"] > cfg.target_kl:
                break
        self.policy.learn_statistics(batch["obs"])
        means = {name: sum(epoch[name] for epoch in epochs) / len(epochs) for name in epochs[0]}
        means["explained_variance"] = explained_variance(batch["values"], batch["returns"])
        means["learning_rate"] = self.optimizer.lr
        return means

    def _evaluate(self, obs: PolicyObs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What the policy says of a minibatch, and of the same with its pictures moved, behind it, where that is asked
        for: in one pass, which is cheaper than two.
        """
        if not self.cfg.image_shift:
            return self.evaluator.evaluate(obs, actions)
        both = cat_obs([obs, moved(obs, self.cfg.image_shift)])
        return self.evaluator.evaluate(both, torch.cat([actions, actions]))

    def _learn(self, batch: dict[str, Any]) -> PPOLoss:
        """One gradient step."""
        cfg = self.cfg
        count = len(batch["actions"])
        logprob, entropy, value = self._evaluate(batch["obs"], batch["actions"])
        loss = ppo_loss(logprob[:count], entropy[:count], value[:count], batch, cfg)
        d_logprob, d_value = loss.d_logprob, loss.d_value
        if cfg.image_shift:
            sides = logprob[:count], value[:count], logprob[count:], value[count:]
            pairs = zip((d_logprob, d_value), disagreement(*sides, cfg.image_shift_coef), strict=True)
            d_logprob, d_value = (torch.cat(pair) for pair in pairs)
        if not self.actor_enabled:
            d_logprob.zero_()
        per_entropy = -cfg.ent_coef / len(logprob) if self.actor_enabled else 0.0
        gradient = self.evaluator.backward(d_logprob, d_value, per_entropy)
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            parts = ", ".join(f"{name} {value:.4g}" for name, value in summarise([loss], cfg.clip_coef).items())
            raise NonFiniteError(
                f"the gradient of PPO's loss is not finite ({parts}). The step was not taken. Look for huge rewards or "
                "observations, or lower algorithm.cfg.learning_rate."
            )
        if norm > cfg.max_grad_norm:
            gradient.mul_(cfg.max_grad_norm / (norm + 1e-6))
        self.optimizer.step()
        return loss
