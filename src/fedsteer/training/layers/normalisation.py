"""Batch normalisation and ReLU of many clients at once, every client by its own batch.

    xhat = (x - mean) / sqrt(variance + eps),   y = relu(gamma xhat + beta)
    g    = dy where y > 0,   dbeta = sum g,   dgamma = sum g xhat
    dx   = gamma / sqrt(variance + eps) (g - dbeta / n - xhat dgamma / n)

x is (client, sample, row, column, channel); mean, variance and sums run over the n pixels of a
client's batch. On a GPU there are two Triton kernels each way (`normalisation_kernels`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsteer.gpu import kernels_beside

KERNELS = "fedsteer.training.layers.normalisation_kernels"


@dataclass(frozen=True)
class Normal:
    """What a normalisation takes besides images: (c, channels) factors and offsets."""

    gamma: Tensor
    beta: Tensor
    eps: float
    relu: bool


def normalise(images: Tensor, how: Normal) -> tuple[Tensor, Tensor]:
    """y, and the moments that `normalise_back` needs."""
    if kernels := kernels_beside(images, KERNELS):
        found: tuple[Tensor, Tensor] = kernels.normalise(images, how)
        return found
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
    if kernels := kernels_beside(images, KERNELS):
        found: tuple[Tensor, Tensor, Tensor] = kernels.normalise_back(
            images, moments, how, back, beside
        )
        return found
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
