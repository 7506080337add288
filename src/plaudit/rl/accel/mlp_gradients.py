"""From a policy's parameters to what it says of some actions, and back: by autograd, or written out where it matters.

Networks for control are so small that autograd's bookkeeping costs as much as their arithmetic. For the usual policy,
an `ActorCritic` of tanh or relu layers, forward and backward are therefore written out, in buffers that are kept.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from plaudit.rl.accel.flat_adam import FlatParameters
from plaudit.rl.networks.mlp import MLP
from plaudit.rl.observations import PolicyObs
from plaudit.rl.policies.actor_critic import ActorCritic
from plaudit.rl.policies.base import Policy
from plaudit.rl.policies.distributions import LOG_2PI


class Evaluator(Protocol):
    """One forward and one backward pass through a policy."""

    def evaluate(self, obs: PolicyObs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`Policy.evaluate_actions`: log_prob, entropy, value, (n,) each, good until the next call."""

    def backward(self, d_logprob: torch.Tensor, d_value: torch.Tensor, d_entropy: float) -> torch.Tensor:
        """Gradient of all parameters, (size,), for those of log_prob (n,), value (n,) and each entropy."""


def evaluator(policy: Policy, parameters: FlatParameters, entropy_counts: bool) -> Evaluator:
    """The quickest way through `policy`, whose parameters are views of `parameters`.

    Args:
        policy: Any policy.
        parameters: Its parameters.
        entropy_counts: Whether `d_entropy` will ever be other than zero.
    """
    # Not a subclass: it may say other things than ActorCritic does.
    if type(policy) is ActorCritic and policy.encoder is None and not (policy.config.squash and entropy_counts):
        actor, critic = policy.actor, policy.critic
        if isinstance(actor, MLP) and isinstance(critic, MLP) and actor.by_hand and critic.by_hand:
            return WrittenOut(policy, actor, critic, parameters)
    return Autograd(policy, parameters)


class Autograd:
    """Any policy, by autograd."""

    def __init__(self, policy: Policy, parameters: FlatParameters) -> None:
        self.policy, self.parameters = policy, parameters

    def evaluate(self, obs: PolicyObs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self._outputs = self.policy.evaluate_actions(obs, actions)
        logprob, entropy, value = self._outputs
        return logprob.detach(), entropy.detach(), value.detach()

    def backward(self, d_logprob: torch.Tensor, d_value: torch.Tensor, d_entropy: float) -> torch.Tensor:
        logprob, entropy, value = self._outputs
        pairs = [(logprob, d_logprob), (value, d_value)]
        if d_entropy:
            pairs.append((entropy, torch.full_like(entropy, d_entropy)))
        # A policy may well give a constant, the entropy of a fixed Gaussian for one.
        outputs, gradients = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
        parts = self.parameters.parts
        found = torch.autograd.grad(outputs, parts, gradients, allow_unused=True, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in found], out=self.parameters.gradient)


class WrittenOut:
    """`ActorCritic` without cameras, with its gradient written out."""

    def __init__(self, policy: ActorCritic, actor: MLP, critic: MLP, parameters: FlatParameters) -> None:
        self.policy, self.parameters = policy, parameters
        self.actor, self.critic = _Layers(actor, parameters), _Layers(critic, parameters)
        self.d_log_std = parameters.gradient_of(policy.log_std)

    @torch.no_grad()
    def evaluate(self, obs: PolicyObs, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        policy = self.policy
        x = policy.normalized(obs)
        mean, value = self.actor.forward(x), self.critic.forward(x).squeeze(-1)
        raw, log_det = policy.to_gaussian(actions)
        log_std = policy.log_std
        self.inverse = log_std.neg().exp_()
        self.z = torch.sub(raw, mean).mul_(self.inverse)
        self.squares = self.z.square()
        constant = log_std.sum() + (log_det + 0.5 * LOG_2PI * len(log_std))
        logprob = torch.sub(-constant, self.squares.sum(-1), alpha=0.5)
        return logprob, policy.entropy(mean), value

    @torch.no_grad()
    def backward(self, d_logprob: torch.Tensor, d_value: torch.Tensor, d_entropy: float) -> torch.Tensor:
        # d log_prob / d mean = z / std, / d log std = z² - 1; d entropy / d log std = 1 where it is not squashed.
        column = d_logprob[:, None]
        torch.sub(d_logprob @ self.squares, d_logprob.sum() - d_entropy * len(d_logprob), out=self.d_log_std)
        self.actor.backward(self.z.mul_(self.inverse).mul_(column))
        self.critic.backward(d_value[:, None])
        return self.parameters.gradient


class _Layers:
    """Forward and backward of an `MLP`, whose layers' outputs and gradients live in buffers."""

    def __init__(self, network: MLP, parameters: FlatParameters) -> None:
        linear = [layer for layer in network if isinstance(layer, nn.Linear)]
        self.tanh = network.tanh
        self.weights = [layer.weight.detach() for layer in linear]
        self.transposed = [weight.t() for weight in self.weights]
        self.biases = [layer.bias.detach() for layer in linear]
        self.d_weights = [parameters.gradient_of(layer.weight) for layer in linear]
        self.d_biases = [parameters.gradient_of(layer.bias) for layer in linear]
        self.minus_one = torch.tensor(-1.0, dtype=self.weights[0].dtype, device=self.weights[0].device)
        self.buffers: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def _room(self, count: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Buffers for `count` samples: outputs of every layer, gradients of the hidden ones."""
        if count not in self.buffers:
            outputs = [weight.new_empty(count, len(weight)) for weight in self.weights]
            self.buffers[count] = outputs, [torch.empty_like(output) for output in outputs[:-1]]
        return self.buffers[count]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, inputs) to (n, outputs), as `MLP.forward`."""
        self.inputs = [x]
        outputs, self.gradients = self._room(len(x))
        for bias, weight, output in zip(self.biases[:-1], self.transposed[:-1], outputs[:-1], strict=True):
            if self.tanh:  # As networks.tanh_linear does.
                torch.addmm(bias, self.inputs[-1], weight, beta=2, alpha=2, out=output).sigmoid_()
                torch.add(self.minus_one, output, alpha=2, out=output)
            else:
                torch.addmm(bias, self.inputs[-1], weight, out=output).relu_()
            self.inputs.append(output)
        return torch.addmm(self.biases[-1], self.inputs[-1], self.transposed[-1], out=outputs[-1])

    def backward(self, gradient: torch.Tensor) -> None:
        """Takes the gradient of the outputs, (n, outputs), to that of weights and biases."""
        for layer in range(len(self.weights) - 1, -1, -1):
            torch.mm(gradient.t(), self.inputs[layer], out=self.d_weights[layer])
            torch.sum(gradient, 0, out=self.d_biases[layer])
            if layer:
                room, output = self.gradients[layer - 1], self.inputs[layer]
                torch.mm(gradient, self.weights[layer], out=room)
                # Both derivatives are functions of the layer's output: 1 - y², and y > 0.
                if self.tanh:
                    torch.ops.aten.tanh_backward.grad_input(room, output, grad_input=room)
                else:
                    torch.ops.aten.threshold_backward.grad_input(room, output, 0, grad_input=room)
                gradient = room
