"""What residual networks need besides convolutions, as layers of many clients at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsteer.training.layers.basic import Convolution, Flat
from fedsteer.training.layers.normalisation import Normal, normalise, normalise_back


@dataclass(frozen=True)
class Norm:
    """Batch normalisation by the client's own batch, with its ReLU."""

    channels: int
    weight: int
    bias: int
    eps: float
    relu: bool = False

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        return normalise(inputs, self._how(flat))

    def backward(
        self,
        flat: Flat,
        inputs: Tensor,
        seen: Any,
        back: Tensor,
        first: bool,
        beside: Tensor | None = None,
    ) -> Tensor:
        found, factor, offset = normalise_back(inputs, seen, self._how(flat), back, beside)
        flat.take(self._view(flat.into, self.weight), factor)
        flat.take(self._view(flat.into, self.bias), offset)
        return found

    def _how(self, flat: Flat) -> Normal:
        gamma, beta = (self._view(flat.weights, start) for start in (self.weight, self.bias))
        return Normal(gamma, beta, self.eps, self.relu)

    def _view(self, flat: Tensor, start: int) -> Tensor:
        return flat[:, start : start + self.channels]


@dataclass(frozen=True)
class Block:
    """conv2(norm2(conv1(ahead))) + around, ahead = norm1(x), around = x or shortcut(ahead)."""

    norm1: Norm
    conv1: Convolution
    norm2: Norm
    conv2: Convolution
    shortcut: Convolution | None

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        ahead, moments1 = self.norm1.forward(flat, inputs)
        inner, _ = self.conv1.forward(flat, ahead)
        middle, moments2 = self.norm2.forward(flat, inner)
        around = inputs
        if self.shortcut is not None:
            around, _ = self.shortcut.forward(flat, ahead)
        result, _ = self.conv2.forward(flat, middle, beside=around)
        return result, (ahead, moments1, inner, middle, moments2)

    def backward(self, flat: Flat, inputs: Tensor, seen: Any, back: Tensor, first: bool) -> Tensor:
        ahead, moments1, inner, middle, moments2 = seen
        plain = (None, None)  # no activation, no pooling
        behind = self.conv2.backward(flat, middle, plain, back, False)
        behind = self.norm2.backward(flat, inner, moments2, behind, False)
        if self.shortcut is None:
            behind = self.conv1.backward(flat, ahead, plain, behind, False)
            return self.norm1.backward(flat, inputs, moments1, behind, first, back)
        around = self.shortcut.backward(flat, ahead, plain, back, False)
        behind = self.conv1.backward(flat, ahead, plain, behind, False, around)
        return self.norm1.backward(flat, inputs, moments1, behind, first)


@dataclass(frozen=True)
class Mean:
    """The mean over all pixels: images to vectors."""

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        return inputs.to(flat.weights.dtype).mean(dim=(2, 3)), None

    def backward(self, flat: Flat, inputs: Tensor, seen: Any, back: Tensor, first: bool) -> Tensor:
        share = back / (inputs.shape[2] * inputs.shape[3])
        return share[:, :, None, None].to(inputs.dtype).expand(inputs.shape)
