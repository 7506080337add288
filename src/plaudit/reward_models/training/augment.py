"""Training pictures varied as a robot's cameras vary: moved a little, nearer or farther, in other light."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn.functional import affine_grid, grid_sample

from plaudit.config.reward_schema import AugmentConfig
from plaudit.vision.random_shift import moved_pixels


@dataclass(frozen=True)
class Draws:
    """Random numbers for some pictures of a batch.

    They are drawn for the whole batch, so that a picture is varied alike however the batch is divided.

    Attributes:
        random: Draws them.
        some: Which pictures, n of them.
        whole: Pictures in the batch.
    """

    random: torch.Generator
    some: slice
    whole: int

    def around(self, most: float, *shape: int) -> torch.Tensor:
        """Numbers within plus and minus `most`, (n, *shape)."""
        return torch.empty(self.whole, *shape).uniform_(-most, most, generator=self.random)[self.some]

    def pixels(self, most: int) -> torch.Tensor:
        """Whole numbers within plus and minus `most`, int64 (n, 2)."""
        return torch.randint(-most, most + 1, (self.whole, 2), generator=self.random)[self.some]


class Augment:
    """Varies pictures, every picture and camera on its own: a camera that is knocked does not move the others.

    Args:
        config: By how much.
    """

    def __init__(self, config: AugmentConfig) -> None:
        self.config = config
        self._moves = config.enabled and bool(config.shift or config.zoom)
        self._lights = config.enabled and bool(config.brightness or config.contrast or config.colour)

    def __call__(
        self, images: Mapping[str, torch.Tensor], random: torch.Generator, start: int = 0, whole: int | None = None
    ) -> dict[str, torch.Tensor]:
        """Images of each camera, float32 (n, 3, H, W) in [0, 1], varied.

        Args:
            images: The pictures.
            random: Draws by how much; on the CPU, so that every device draws the same.
            start: Where they begin in the batch that they are a part of.
            whole: Pictures in that batch; `None` if these are all of it.
        """
        count = len(next(iter(images.values())))
        draws = Draws(random, slice(start, start + count), start + count if whole is None else whole)
        return {camera: self._vary(image, draws) for camera, image in images.items()}

    def _vary(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        if self._moves:
            images = self._move(images, draws)
        return self._light(images, draws) if self._lights else images

    def _move(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Shifts by whole pixels and zooms around the middle; what comes into view repeats the edge."""
        shift = draws.pixels(self.config.shift)
        scale = 1 + draws.around(self.config.zoom)
        # Picking pixels takes a tenth of the time of blending them, which only a zoom needs.
        return _zoomed(images, shift, scale) if self.config.zoom else _shifted(images, shift)

    def _light(self, images: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Gain of each colour, and contrast around the picture's own mean."""
        count, config = len(images), self.config
        gain = (1 + draws.around(config.brightness))[:, None]
        gain = gain * (1 + draws.around(config.colour, 3))
        contrast = (1 + draws.around(config.contrast)).view(-1, 1, 1, 1).to(images.device)
        lit = images * gain.view(count, 3, 1, 1).to(images.device)
        mean = lit.mean((1, 2, 3), keepdim=True)
        return torch.lerp(mean, lit, contrast).clamp_(0, 1)


def _shifted(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Pictures (n, 3, H, W) seen from `shift` pixels farther right and down, int64 (n, 2)."""
    pixels = moved_pixels(shift, *images.shape[2:]).to(images.device)
    return images.flatten(2).gather(2, pixels[:, None].expand(-1, images.shape[1], -1)).view(images.shape)


def _zoomed(images: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """As `_shifted`, with pixels that are `scale` (n,) apart around the middle."""
    height, width = images.shape[2:]
    theta = torch.zeros(len(images), 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = scale
    theta[:, :, 2] = shift * 2 / torch.tensor([width, height])
    grid = affine_grid(theta.to(images.device), list(images.shape), align_corners=False)
    return grid_sample(images, grid, padding_mode="border", align_corners=False)
