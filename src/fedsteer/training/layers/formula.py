"""Gradients of networks made of known layers, by formula: no graph is built.

Backward through the layers of `basic` and `residual`, every step is a batched matrix product, a
stacked convolution or a sum.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsteer.training.layers.basic import Flat, Layer
from fedsteer.training.layers.convolution import channels_last
from fedsteer.training.layers.known import is_dense, known_layers, mixes_samples
from fedsteer.training.loss import cross_entropy_gradient
from fedsteer.training.networks import Network

ALIGNED = 64


def through(
    layers: Sequence[Layer],
    flat: Flat,
    value: Tensor,
    labels: Tensor,
    shares: Tensor,
    masks: Tensor | None,
    first: bool = True,
) -> tuple[Tensor, Tensor]:
    """Forward and back: the losses, and the gradient of `value` unless these layers are `first`."""
    seen = []
    for layer in layers:
        value, kept = layer.forward(flat, value)
        seen.append(kept)
    losses, back = cross_entropy_gradient(value, labels, shares, masks)
    for index in reversed(range(len(layers))):
        back = layers[index].backward(flat, seen[index], back, first=first and index == 0)
    return losses, back


class FormulaGradient:
    """(clients, d) gradients and (clients,) losses for stacked parameters and batches.

    On a GPU, parameters have an order of their own (`arrange`, `restore`): filters as (row, column,
    in, out), and rows of the stack padded to a multiple of 64 numbers, so that each is aligned.
    """

    def __init__(
        self, network: Network, device: torch.device | str = "cpu", exact: bool = True
    ) -> None:
        layers = known_layers(network)
        assert layers is not None, "engines say that they support no other networks"
        self.network, self.layers, self.exact = network, layers, exact
        self.dense = is_dense(layers)
        self.pads = not mixes_samples(layers)
        on_gpu = torch.device(device).type == "cuda"
        # Large networks with normalisation tolerate bfloat16; small ones without it get tf32.
        self.shortens = on_gpu and not exact and not self.pads
        self._there: Tensor | slice = slice(None)
        self._back: Tensor | slice = slice(None)
        if on_gpu and not self.dense:
            there, self._back = network.filter_order((2, 3, 1, 0), torch.device(device))
            self._there = torch.cat([there, there.new_zeros(-len(there) % ALIGNED)])

    def arrange(self, flat: Tensor) -> Tensor:
        """(c, d) in the usual order -> as `__call__` takes it."""
        return flat[:, self._there]

    def restore(self, flat: Tensor) -> Tensor:
        """The inverse of `arrange`."""
        return flat[:, self._back]

    def __call__(
        self,
        weights: Tensor,
        images: Tensor,
        labels: Tensor,
        shares: Tensor,
        masks: Tensor | None,
        rate: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """images (c, b, ...), labels (c, b), shares (c, b): 1/batch size, 0 for padding.

        With a rate, the weights take a step of plain SGD at once and replace the gradient.
        """
        value = images.flatten(2) if self.dense else channels_last(images)
        gradient = short = None
        if rate is None:
            gradient = torch.empty_like(weights, memory_format=torch.contiguous_format)
            gradient[:, self.network.dim :] = 0
        if self.shortens:
            short, value = weights.bfloat16(), value.bfloat16()
        flat = Flat(
            weights=weights, gradient=gradient, rate=rate or 0.0, short=short, exact=self.exact
        )
        losses, _ = through(self.layers, flat, value, labels, shares, masks)
        return flat.into, losses
