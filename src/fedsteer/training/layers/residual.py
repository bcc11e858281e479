"""What residual networks need besides convolutions, as layers of many clients at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedsteer.training.layers.basic import Convolution, Sink, Weights
from fedsteer.training.layers.normalisation import Normal, normalise, normalise_back


@dataclass(frozen=True)
class Norm:
    """Batch normalisation by the client's own batch, with its ReLU."""

    channels: int
    weight: int
    bias: int
    eps: float
    relu: bool = False

    def forward(self, weights: Weights, inputs: Tensor) -> tuple[Tensor, Any]:
        return normalise(inputs, self._how(weights))

    def backward(
        self,
        weights: Weights,
        sink: Sink,
        inputs: Tensor,
        seen: Any,
        back: Tensor,
        first: bool,
        beside: Tensor | None = None,
    ) -> Tensor:
        found, factor, offset = normalise_back(inputs, seen, self._how(weights), back, beside)
        sink.take(self._view(sink.flat, self.weight), factor)
        sink.take(self._view(sink.flat, self.bias), offset)
        return found

    def _how(self, weights: Weights) -> Normal:
        gamma, beta = (self._view(weights.full, start) for start in (self.weight, self.bias))
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

    def forward(self, weights: Weights, inputs: Tensor) -> tuple[Tensor, Any]:
        ahead, moments1 = self.norm1.forward(weights, inputs)
        inner, _ = self.conv1.forward(weights, ahead)
        middle, moments2 = self.norm2.forward(weights, inner)
        around = inputs
        if self.shortcut is not None:
            around, _ = self.shortcut.forward(weights, ahead)
        result, _ = self.conv2.forward(weights, middle, beside=around)
        return result, (ahead, moments1, inner, middle, moments2)

    def backward(
        self, weights: Weights, sink: Sink, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        ahead, moments1, inner, middle, moments2 = seen
        plain = (None, None)  # no activation, no pooling
        behind = self.conv2.backward(weights, sink, middle, plain, back, False)
        behind = self.norm2.backward(weights, sink, inner, moments2, behind, False)
        if self.shortcut is None:
            behind = self.conv1.backward(weights, sink, ahead, plain, behind, False)
            return self.norm1.backward(weights, sink, inputs, moments1, behind, first, back)
        around = self.shortcut.backward(weights, sink, ahead, plain, back, False)
        behind = self.conv1.backward(weights, sink, ahead, plain, behind, False, around)
        return self.norm1.backward(weights, sink, inputs, moments1, behind, first)


@dataclass(frozen=True)
class Mean:
    """The mean over all pixels: images to vectors."""

    def forward(self, weights: Weights, inputs: Tensor) -> tuple[Tensor, Any]:
        return inputs.to(weights.full.dtype).mean(dim=(2, 3)), None

    def backward(
        self, weights: Weights, sink: Sink, inputs: Tensor, seen: Any, back: Tensor, first: bool
    ) -> Tensor:
        share = back / (inputs.shape[2] * inputs.shape[3])
        return share[:, :, None, None].to(inputs.dtype).expand(inputs.shape)
