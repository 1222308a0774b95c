"""What the networks share: conditioning on labels and augmentation, and a canvas that takes images of any size."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from headway.errors import HeadwayError

Positive = Annotated[int, Field(ge=1)]


class Condition(nn.Module):
    """Class labels and augmentation parameters as one vector, to be added to the embedding of the noise level.

    "No label" is the zero vector. That loses nothing against a learnt null class: a shift common to all classes is the
    bias of the noise embedding.
    """

    def __init__(self, classes: int, augment_dim: int, width: int) -> None:
        """
        Args:
            classes: number of classes; 0 for a network that knows no labels.
            augment_dim: length of the augmentation vector; 0 for a network that knows none.
            width: length of the noise embedding.
        """
        super().__init__()
        self.label = nn.Embedding(classes, width) if classes else None
        self.augment = nn.Linear(augment_dim, width, bias=False) if augment_dim else None
        if self.label is not None:
            # The spread of a one-hot vector times sqrt(classes) through a Xavier layer, as in EDM.
            nn.init.xavier_uniform_(self.label.weight, gain=math.sqrt(classes))
        if self.augment is not None:
            nn.init.xavier_uniform_(self.augment.weight)

    def forward(self, images: Tensor, labels: Tensor | None, augment: Tensor | None) -> Tensor | None:
        """The sum (B, width); None when the network was built without conditions.

        A condition that is not given counts as "no label" or "not augmented", and still reaches its parameters, so that
        every parameter has a gradient in every step (DistributedDataParallel requires it).
        """
        if labels is not None and self.label is None:
            raise HeadwayError(
                "Labels were given to a network built with classes=0: pass labels=None or build it anew."
            )
        if augment is not None and self.augment is None:
            raise HeadwayError(
                "An augmentation vector was given to a network built with augment_dim=0: pass augment=None or build it anew."
            )
        total = None
        if self.label is not None:
            if labels is None:
                labels = torch.full((len(images),), -1, device=images.device)
            total = self.label(labels.clamp(min=0)) * (labels >= 0)[:, None]
        if self.augment is not None:
            if augment is None:
                augment = images.new_zeros(len(images), self.augment.in_features)
            vector = self.augment(augment)
            total = vector if total is None else total + vector
        return total


def on_canvas(images: Tensor, height: int, width: int) -> Tensor:
    """Images (B, C, H, W) centred on a canvas of zeros (B, C, height, width), or cut back out of it: exact inverses.

    Zeros, because the convolutions pad with zeros too: the border looks to the network as it would without a canvas.
    """
    down, right = height - images.shape[-2], width - images.shape[-1]
    top, left = int(down / 2), int(right / 2)  # towards zero, so that cutting undoes padding
    return F.pad(images, (left, right - left, top, down - top))


def round_up(side: int, multiple: int) -> int:
    """The smallest multiple that holds `side`."""
    return -(-side // multiple) * multiple
