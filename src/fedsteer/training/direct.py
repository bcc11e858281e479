"""Gradients of one client by formula, through torch's own kernels; meant for a CPU.

The layers are those of `layers`, the parameters views of one flat vector, and no graph is built.
What makes it fast, by measurement (benchmarks/local_training.py):

    channels last    torch pools several times slower the other way round
    pool, then bend  both activations grow, so they may follow the pooling: a quarter of the work,
                     and the bias gradient, a sum, is taken before the gradient is spread out again
    into place       where a step is w <- w - rate gradient, dense gradients go straight into w
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsteer.training.convolution import activate_, activation_gradient
from fedsteer.training.layers import Convolution, Flatten, Layer, Linear, Sink

aten = torch.ops.aten
FEW = 32
"""Below this many samples a product with the samples as columns is up to twice as fast."""


class DirectGradient:
    """The gradient of one client's batch."""

    def __init__(self, layers: list[Layer]) -> None:
        self.layers: list[Any] = layers

    def __call__(
        self, flat: Tensor, images: Tensor, labels: Tensor, mask: Tensor | None, sink: Sink
    ) -> float:
        """The loss of (b, C, H, W) images; `sink` gets the gradient and may be `flat` itself."""
        value = channels_last(images)
        seen: list[tuple[Tensor, Any]] = []
        for layer in self.layers:
            before = value
            value, kept = FORWARD[type(layer)](layer, flat, value)
            seen.append((before, kept))
        log_odds = torch.log_softmax(value if mask is None else value * mask, dim=-1)
        target = labels.unsqueeze(-1)
        loss = -float(log_odds.gather(-1, target).mean())
        back = log_odds.exp_()
        back.scatter_add_(-1, target, back.new_full((len(labels), 1), -1.0))
        back /= len(labels)
        if mask is not None:
            back *= mask
        for index in range(len(self.layers) - 1, -1, -1):
            layer, (inputs, kept) = self.layers[index], seen[index]
            back = BACKWARD[type(layer)](layer, flat, inputs, kept, back, sink, index == 0)
        return loss


def channels_last(images: Tensor) -> Tensor:
    """The same images, pixel after pixel; of one channel too, where torch cannot tell."""
    _, channels, height, width = images.shape
    by_pixel = images.permute(0, 2, 3, 1).contiguous()
    strides = (channels * height * width, 1, channels * width, channels)
    return by_pixel.as_strided(images.shape, strides)


def _linear(layer: Linear, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Any]:
    matrix, bias = _matrix(layer, flat), _bias(layer, flat)
    if len(inputs) < FEW:
        outputs = torch.mm(matrix, inputs.t()).t().add_(bias)
    else:
        outputs = torch.addmm(bias, inputs, matrix.t())
    return activate_(outputs, layer.activation), outputs


def _linear_back(
    layer: Linear, flat: Tensor, inputs: Tensor, outputs: Any, back: Tensor, sink: Sink, first: bool
) -> Tensor:
    back = activation_gradient(outputs, back, layer.activation, into=back)
    further = back if first else torch.mm(back, _matrix(layer, flat))
    sink.take_product(_matrix(layer, sink.flat), back.t(), inputs)
    sink.take(_bias(layer, sink.flat), back.sum(dim=0))
    return further


def _convolution(layer: Convolution, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Any]:
    window, bias = layer.window, None if layer.bias < 0 else _bias(layer, flat)
    values = F.conv2d(inputs, _filters(layer, flat), bias, window.stride, window.padding)
    if not layer.pools:
        return activate_(values, layer.activation), (values, values, None)
    largest, where = aten.max_pool2d_with_indices(values, [2, 2], [2, 2])
    return activate_(largest, layer.activation), (largest, values, where)


def _convolution_back(
    layer: Convolution, flat: Tensor, inputs: Tensor, kept: Any, back: Tensor, sink: Sink,
    first: bool,
) -> Tensor:  # fmt: skip
    outputs, values, where = kept
    back = activation_gradient(outputs, back, layer.activation, into=back)
    bias = None if layer.bias < 0 else back.sum(dim=(0, 2, 3))
    window = layer.window
    if where is not None:
        back = aten.max_pool2d_with_indices_backward(
            back, values, [2, 2], [2, 2], [0, 0], [1, 1], False, where
        )
    further, filters, _ = aten.convolution_backward(
        back, inputs, _filters(layer, flat), [layer.outside], [window.stride] * 2,
        [window.padding] * 2, [1, 1], False, [0, 0], 1, [not first, True, False],
    )  # fmt: skip
    sink.take(_filters(layer, sink.flat), filters)
    if bias is not None:
        sink.take(_bias(layer, sink.flat), bias)
    return back if first else further


def _flatten(layer: Flatten, flat: Tensor, inputs: Tensor) -> tuple[Tensor, Any]:
    return inputs.flatten(1), None


def _flatten_back(
    layer: Flatten, flat: Tensor, inputs: Tensor, kept: Any, back: Tensor, sink: Sink, first: bool
) -> Tensor:
    return channels_last(back.view(inputs.shape))


def _matrix(layer: Linear, flat: Tensor) -> Tensor:
    end = layer.weight + layer.inside * layer.outside
    return flat[layer.weight : end].view(layer.outside, layer.inside)


def _filters(layer: Convolution, flat: Tensor) -> Tensor:
    size = layer.window.size
    shape = (layer.outside, layer.inside, size, size)
    end = layer.weight + layer.outside * layer.inside * size**2
    return flat[layer.weight : end].view(shape)


def _bias(layer: Linear | Convolution, flat: Tensor) -> Tensor:
    return flat[layer.bias : layer.bias + layer.outside]


FORWARD: dict[type, Any] = {Linear: _linear, Convolution: _convolution, Flatten: _flatten}
BACKWARD: dict[type, Any] = {
    Linear: _linear_back,
    Convolution: _convolution_back,
    Flatten: _flatten_back,
}


def is_direct(layers: list[Layer]) -> bool:
    """Whether all layers are known here."""
    return all(type(layer) in FORWARD for layer in layers)
