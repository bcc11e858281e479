"""Networks as a user would bring them, named by import path."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]


class Gated(nn.Module):
    """Not a Sequential, a parameter of its own, group norm, a branch."""

    def __init__(self, shape: Shape, classes: int, width: int) -> None:
        super().__init__()
        self.inside = nn.Conv2d(shape[0], width, 3, padding=1)
        self.norm = nn.GroupNorm(2, width)
        self.gate = nn.Parameter(torch.full((width, 1, 1), 0.5))
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.inside(images))) * self.gate
        logits: Tensor = self.head(hidden.mean(dim=(2, 3)))
        return logits


def gated(shape: Shape, classes: int, width: int = 4) -> nn.Module:
    return Gated(shape, classes, width)


def forgetful(shape: Shape, classes: int) -> nn.Module:
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 8), nn.Dropout(), nn.Linear(8, classes))


class Picky(nn.Module):
    """Raises for a batch in which a pixel is above 5."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, images: Tensor) -> Tensor:
        if bool((images > 5).any()):
            raise ZeroDivisionError("a pixel is above 5")
        logits: Tensor = self.head(images.flatten(1))
        return logits


def picky(shape: Shape, classes: int) -> nn.Module:
    return Picky(shape, classes)


def without_parameters(shape: Shape, classes: int) -> nn.Module:
    return nn.Flatten()


def not_a_module(shape: Shape, classes: int) -> int:
    return 3


NOT_A_FACTORY = 3


class Centre(nn.Module):
    """Samples of a batch influence each other, though nothing is a norm by name."""

    def forward(self, values: Tensor) -> Tensor:
        return values - values.mean(dim=0)


class AtRest(nn.Module):
    """Behaves otherwise in its evaluation mode: raises, or gives a pair."""

    def __init__(self, shape: Shape, classes: int, raises: bool) -> None:
        super().__init__()
        self.head, self.raises = nn.Linear(shape[0] * shape[1] * shape[2], classes), raises

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        logits: Tensor = self.head(images.flatten(1))
        if self.training:
            return logits
        if self.raises:
            raise KeyError("several\nlines")
        return logits, logits


def centred(shape: Shape, classes: int) -> nn.Module:
    size = shape[0] * shape[1] * shape[2]
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, 6), Centre(), nn.Tanh(), nn.Linear(6, classes)
    )


def normalised(shape: Shape, classes: int) -> nn.Module:
    size = shape[0] * shape[1] * shape[2]
    norm = nn.BatchNorm1d(6, track_running_stats=False)
    return nn.Sequential(nn.Flatten(), nn.Linear(size, 6), norm, nn.Linear(6, classes))


def resting(shape: Shape, classes: int) -> nn.Module:
    return forgetful(shape, classes).eval()


def other_at_rest(shape: Shape, classes: int) -> nn.Module:
    return AtRest(shape, classes, raises=False)


def broken_at_rest(shape: Shape, classes: int) -> nn.Module:
    return AtRest(shape, classes, raises=True)


def refusing(shape: Shape, classes: int) -> nn.Module:
    raise ValueError("divisible by nothing\nand more words about it")


def too_few_outputs(shape: Shape, classes: int) -> nn.Module:
    return centred(shape, classes - 1)


def too_large(shape: Shape, classes: int) -> nn.Module:
    return centred((shape[0], shape[1] + 1, shape[2]), classes)


def twice_as_wide(shape: Shape, classes: int) -> nn.Module:
    return centred(shape, classes).double()


class Mixed(nn.Module):
    """One output for all images together."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.inner = centred(shape, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.inner(images).mean(dim=0, keepdim=True)


def mixing(shape: Shape, classes: int) -> nn.Module:
    return Mixed(shape, classes)
