"""Convolutions of one client on a CPU, by torch's own kernels.

The stacked convolutions are made for a GPU. These layers stand in for them when clients are
trained one by one: stacks have one client, and filters keep torch's order (out, in, row, column).
Two things make them fast, by measurement (benchmarks/local_training.py):

    channels last            torch pools several times slower the other way round
    pool before activating   both activations are monotonic, so they may follow the pooling, with a
                             quarter of the work; the bias gradient, a sum, is taken before the
                             gradient is spread out again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsteer.training.layers.activations import activate_, activation_gradient
from fedsteer.training.layers.basic import Convolution, Flat, Flatten, Layer, Linear

aten = torch.ops.aten


def host_layers(layers: Sequence[Layer] | None) -> list[Layer] | None:
    """The same for images of one client as `channels_last` makes them; None if one is unknown."""
    found: list[Layer] = []
    for layer in layers or ():
        if isinstance(layer, Convolution):
            found.append(HostConvolution(layer))
        elif isinstance(layer, (Linear, Flatten)):
            found.append(HostFlatten() if isinstance(layer, Flatten) else layer)
        else:
            return None
    return found or None


def channels_last(images: Tensor) -> Tensor:
    """The same images, pixel after pixel.

    The strides are set by hand because torch leaves them as they are if there is one channel, and
    then takes the images for channels first.
    """
    _, channels, height, width = images.shape
    by_pixel = images.permute(0, 2, 3, 1).contiguous()
    strides = (channels * height * width, 1, channels * width, channels)
    return by_pixel.as_strided(images.shape, strides)


@dataclass(frozen=True)
class HostConvolution:
    """A convolution of one client, its activation, and 2 x 2 pooling if it `pools`."""

    layer: Convolution

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        layer, window = self.layer, self.layer.window
        bias = layer.offset(flat.weights)
        values = F.conv2d(
            inputs[0],
            self._filters(flat.weights),
            None if bias is None else bias[0],
            window.stride,
            window.padding,
        )
        pooled, which = values, None
        if layer.pools:
            pooled, which = aten.max_pool2d_with_indices(values, [2, 2], [2, 2])
        outputs = activate_(pooled, layer.activation)
        return outputs.unsqueeze(0), (outputs, values, which)

    def backward(self, flat: Flat, inputs: Tensor, seen: Any, back: Tensor, first: bool) -> Tensor:
        layer, window = self.layer, self.layer.window
        outputs, values, which = seen
        back = activation_gradient(outputs, back[0], layer.activation)
        offset = None if layer.bias < 0 else back.sum(dim=(0, 2, 3))
        if which is not None:
            back = aten.max_pool2d_with_indices_backward(
                back, values, [2, 2], [2, 2], [0, 0], [1, 1], False, which
            )
        further, filters, _ = aten.convolution_backward(
            back, inputs[0], self._filters(flat.weights), [layer.outside], [window.stride] * 2,
            [window.padding] * 2, [1, 1], False, [0, 0], 1, [not first, True, False],
        )  # fmt: skip
        flat.take(self._filters(flat.into), filters)
        place = layer.offset(flat.into)
        if offset is not None and place is not None:
            flat.take(place[0], offset)
        return back if first else further.unsqueeze(0)

    def _filters(self, flat: Tensor) -> Tensor:
        layer, size = self.layer, self.layer.window.size
        end = layer.weight + layer.outside * layer.inside * size**2
        return flat[0, layer.weight : end].view(layer.outside, layer.inside, size, size)


@dataclass(frozen=True)
class HostFlatten:
    """Images to vectors, in the order channel, row, column."""

    def forward(self, flat: Flat, inputs: Tensor) -> tuple[Tensor, Any]:
        return inputs.flatten(2), None

    def backward(self, flat: Flat, inputs: Tensor, seen: Any, back: Tensor, first: bool) -> Tensor:
        return channels_last(back.view(inputs.shape)[0]).unsqueeze(0)
