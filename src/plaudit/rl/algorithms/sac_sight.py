"""How SAC's encoder learns.

Its gradient is autograd's, from where the critics' ends. It learns from the critics' loss alone: with the actor's,
every step of the actor would change what the critics say of everything (Yarats et al., 2021, SAC+AE), and cost another
way back through the convolutions. The target critics have an encoder of their own, which follows as they do (DrQ and
HIL-SERL have it so): a target should stand still, and one that reads features which change with every step, as
DrQ-v2's, does not. It costs one pass forward, beside the two that are needed anyway and the one back.
"""

from __future__ import annotations

from typing import Any

import torch

from plaudit.config.algorithms import SACConfig
from plaudit.rl.checkpoint import check_complete
from plaudit.rl.encoders import ImageEncoder
from plaudit.rl.flatten import FlatAdam, FlatParameters


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
