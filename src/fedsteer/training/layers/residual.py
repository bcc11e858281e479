"""The layers of residual networks besides convolutions, for many clients at once.

Batch normalisation and its ReLU, every client by its own batch:

    xhat = (x - mean) / sqrt(variance + eps),   y = relu(gamma xhat + beta)
    g    = dy where y > 0,   dbeta = sum g,   dgamma = sum g xhat
    dx   = gamma / sqrt(variance + eps) (g - dbeta / n - xhat dgamma / n)

x is (client, sample, row, column, channel); mean, variance and sums run over the n pixels of a
client's batch. On a GPU there are two Triton kernels each way (`residual_kernels`).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsteer.training.layers import operations
from fedsteer.training.layers.basic import Convolution, Flat


@dataclass(frozen=True)
class Normal:
    """The parameters of a normalisation: (c, channels) factors and offsets."""

    gamma: Tensor
    beta: Tensor
    eps: float
    relu: bool


def normalise(images: Tensor, how: Normal) -> tuple[Tensor, Tensor]:
    """y, and the moments that `normalise_back` needs."""
    wide, kind = images.to(how.gamma.dtype), images.dtype
    mean = wide.mean(dim=(1, 2, 3))
    spread = wide.var(dim=(1, 2, 3), correction=0)
    moments = torch.stack([mean, (spread + how.eps).rsqrt()], dim=1)
    values = _across(how.gamma) * _hat(wide, moments) + _across(how.beta)
    return (values.relu_() if how.relu else values).to(kind), moments


def normalise_back(
    images: Tensor, moments: Tensor, how: Normal, back: Tensor, beside: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """dx (plus `beside`), dgamma and dbeta."""
    wide = how.gamma.dtype
    hat = _hat(images.to(wide), moments)
    gradient = back.to(wide)
    if how.relu:
        gradient = gradient * (_across(how.gamma) * hat + _across(how.beta) > 0)
    count = images[0, ..., 0].numel()
    offset, factor = gradient.sum(dim=(1, 2, 3)), (gradient * hat).sum(dim=(1, 2, 3))
    found_back = gradient - _across(offset) / count - hat * _across(factor) / count
    found_back *= _across(how.gamma * moments[:, 1])
    if beside is not None:
        found_back += beside
    return found_back.to(images.dtype), factor, offset


def _hat(images: Tensor, moments: Tensor) -> Tensor:
    return (images - _across(moments[:, 0])) * _across(moments[:, 1])


def _across(values: Tensor) -> Tensor:
    """(c, channels) beside (c, b, h, w, channels)."""
    return values[:, None, None, None]


@dataclass(frozen=True)
class Norm:
    """Batch normalisation by the client's own batch, with its ReLU."""

    channels: int
    weight: int
    bias: int
    eps: float
    relu: bool = False

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        outputs, moments = operations(inputs, "residual").normalise(inputs, self._how(flat))
        return outputs, (inputs, moments)

    def backward(
        self, flat: Flat, seen: Any, back: Tensor, first: bool, beside: Tensor | None = None
    ) -> Tensor:
        inputs, moments = seen
        found, factor, offset = operations(inputs, "residual").normalise_back(
            inputs, moments, self._how(flat), back, beside
        )
        gamma, beta = self._views(flat.into)
        flat.take(gamma, factor)
        flat.take(beta, offset)
        return found

    def _how(self, flat: Flat) -> Normal:
        gamma, beta = self._views(flat.weights)
        return Normal(gamma=gamma, beta=beta, eps=self.eps, relu=self.relu)

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [flat[:, start : start + self.channels] for start in (self.weight, self.bias)]


@dataclass(frozen=True)
class Block:
    """conv2(norm2(conv1(ahead))) + around, ahead = norm1(x), around = x or shortcut(ahead)."""

    norm1: Norm
    conv1: Convolution
    norm2: Norm
    conv2: Convolution
    shortcut: Convolution | None

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        ahead, seen_norm1 = self.norm1.forward(flat, inputs)
        inner, seen_conv1 = self.conv1.forward(flat, ahead)
        middle, seen_norm2 = self.norm2.forward(flat, inner)
        around, seen_shortcut = inputs, None
        if self.shortcut is not None:
            around, seen_shortcut = self.shortcut.forward(flat, ahead)
        result, seen_conv2 = self.conv2.forward(flat, middle, beside=around)
        return result, (seen_norm1, seen_conv1, seen_norm2, seen_conv2, seen_shortcut)

    def backward(self, flat: Flat, seen: Any, back: Tensor, first: bool) -> Tensor:
        seen_norm1, seen_conv1, seen_norm2, seen_conv2, seen_shortcut = seen
        behind = self.conv2.backward(flat, seen_conv2, back, False)
        behind = self.norm2.backward(flat, seen_norm2, behind, False)
        if self.shortcut is None:
            behind = self.conv1.backward(flat, seen_conv1, behind, False)
            return self.norm1.backward(flat, seen_norm1, behind, first, back)
        around = self.shortcut.backward(flat, seen_shortcut, back, False)
        behind = self.conv1.backward(flat, seen_conv1, behind, False, around)
        return self.norm1.backward(flat, seen_norm1, behind, first)


@dataclass(frozen=True)
class Mean:
    """The mean over all pixels: images to vectors."""

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        return inputs.to(flat.weights.dtype).mean(dim=(2, 3)), inputs

    def backward(self, flat: Flat, seen: Any, back: Tensor, first: bool) -> Tensor:
        inputs: Tensor = seen
        share = back / (inputs.shape[2] * inputs.shape[3])
        return share[:, :, None, None].to(inputs.dtype).expand(inputs.shape)
