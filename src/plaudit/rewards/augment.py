"""Training pictures varied as a robot's cameras vary: moved a little, nearer or farther, in other light."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.functional import affine_grid, grid_sample

from plaudit.config.schema import AugmentConfig


class Augment:
    """Varies pictures, every picture and camera on its own: a camera that is knocked does not move the others.

    Args:
        config: By how much.
    """

    def __init__(self, config: AugmentConfig) -> None:
        self.config = config
        self._moves = config.enabled and bool(config.shift or config.zoom)
        self._lights = config.enabled and bool(config.brightness or config.contrast or config.colour)

    def __call__(self, images: Mapping[str, torch.Tensor], random: torch.Generator) -> dict[str, torch.Tensor]:
        """Images of each camera, float32 (n, 3, H, W) in [0, 1], varied.

        Args:
            images: The pictures.
            random: Draws by how much; on the CPU, so that every device draws the same.
        """
        return {camera: self._vary(image, random) for camera, image in images.items()}

    def _vary(self, images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        if self._moves:
            images = self._move(images, random)
        return self._light(images, random) if self._lights else images

    def _move(self, images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        """Shifts by whole pixels and zooms around the middle; what comes into view repeats the edge."""
        count, _, height, width = images.shape
        most = self.config.shift
        shift = torch.randint(-most, most + 1, (count, 2), generator=random).float()
        scale = 1 + self._around(self.config.zoom, count, random)
        theta = torch.zeros(count, 2, 3)
        theta[:, 0, 0] = theta[:, 1, 1] = scale
        theta[:, :, 2] = shift * 2 / torch.tensor([width, height])
        grid = affine_grid(theta.to(images.device), list(images.shape), align_corners=False)
        return grid_sample(images, grid, padding_mode="border", align_corners=False)

    def _light(self, images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
        """Gain of each colour, and contrast around the picture's own mean."""
        count, config = len(images), self.config
        gain = (1 + self._around(config.brightness, count, random))[:, None]
        gain = gain * (1 + torch.empty(count, 3).uniform_(-config.colour, config.colour, generator=random))
        contrast = (1 + self._around(config.contrast, count, random)).view(-1, 1, 1, 1).to(images.device)
        lit = images * gain.view(count, 3, 1, 1).to(images.device)
        mean = lit.mean((1, 2, 3), keepdim=True)
        return torch.lerp(mean, lit, contrast).clamp_(0, 1)

    @staticmethod
    def _around(most: float, count: int, random: torch.Generator) -> torch.Tensor:
        """Numbers within plus and minus `most`, (count,)."""
        return torch.empty(count).uniform_(-most, most, generator=random)
