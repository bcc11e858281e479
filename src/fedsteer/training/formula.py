"""Gradients of common networks, many clients at once, by formula.

For a stack of the layers in `layers` and `residual` under a cross entropy everything is a batched
matrix product, a stacked convolution or a sum; written out there is no graph to build. With z the
logits:

    dz = weight (softmax(z) - onehot), and backward through the layers

Parameters are taken in an arrangement of its own (`arrange`, `restore`): filters as (row, column,
in, out), and rows of the stack padded to a multiple of 64 numbers, so that all of it is aligned.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedsteer.training.arrangement import filter_order
from fedsteer.training.known import is_dense, mixes_samples
from fedsteer.training.layers import Flatten, Layer, Sink, Weights
from fedsteer.training.networks import Network

ALIGNED = 64


class FormulaGradient:
    """(clients, d) gradients and (clients,) losses for stacked parameters and batches."""

    def __init__(self, network: Network, layers: list[Layer], exact: bool = True) -> None:
        self.network, self.dense = network, is_dense(layers)
        self.layers = [x for x in layers if not isinstance(x, Flatten)] if self.dense else layers
        self.pads = not mixes_samples(layers)
        # Large normalised networks stand bfloat16; small ones without normalisation get tf32.
        self.shortens = not exact and not self.pads
        self._order: tuple[Tensor, Tensor] | None = None

    def arrange(self, flat: Tensor) -> Tensor:
        """(c, d) in the usual order -> as `__call__` wants it."""
        return flat if self.dense else flat[:, self._orders(flat)[0]]

    def restore(self, flat: Tensor) -> Tensor:
        """The inverse of `arrange`."""
        return flat if self.dense else flat[:, self._orders(flat)[1]]

    def __call__(
        self, flat: Tensor, images: Tensor, labels: Tensor, weights: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """images (c, b, ...), labels (c, b), weights (c, b): 1/batch size, 0 for padding."""
        gradient = torch.empty(flat.shape, dtype=flat.dtype, device=flat.device)
        gradient[:, self.network.dim :] = 0
        return gradient, self._pass(flat, images, labels, weights, masks, Sink(gradient))

    def descend(
        self,
        flat: Tensor,
        images: Tensor,
        labels: Tensor,
        weights: Tensor,
        masks: Tensor | None,
        rate: float,
    ) -> Tensor:
        """flat <- flat - rate gradient, and the losses: half the memory traffic of two steps."""
        sink = Sink(flat, adds=True, scale=-rate)
        return self._pass(flat, images, labels, weights, masks, sink)

    def _pass(
        self,
        flat: Tensor,
        images: Tensor,
        labels: Tensor,
        weights: Tensor,
        masks: Tensor | None,
        sink: Sink,
    ) -> Tensor:
        value = images.flatten(2) if self.dense else images.permute(0, 1, 3, 4, 2)
        parameters = Weights(flat, flat)
        if self.shortens and flat.is_cuda:
            parameters, value = Weights(flat, flat.bfloat16()), value.bfloat16()
        return backpropagate(self.layers, parameters, value, labels, weights, masks, sink)

    def _orders(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        if self._order is None or self._order[0].device != flat.device:
            there, back = filter_order(self.network, (2, 3, 1, 0), flat.device)
            padding = there.new_zeros(-len(there) % ALIGNED)
            self._order = torch.cat([there, padding]), back
        return self._order


def backpropagate(
    layers: Sequence[Layer],
    parameters: Weights,
    value: Tensor,
    labels: Tensor,
    weights: Tensor,
    masks: Tensor | None,
    sink: Sink,
) -> Tensor:
    """The losses of stacked batches; `sink` gets the gradient."""
    inputs, seen = [], []
    for layer in layers:
        inputs.append(value)
        value, kept = layer.forward(parameters, value)
        seen.append(kept)
    logits = value if masks is None else value * masks.unsqueeze(1)
    log_odds = _log_softmax(logits)
    target = labels.unsqueeze(-1)
    losses = -(log_odds.gather(-1, target).squeeze(-1) * weights).sum(dim=1)
    back = log_odds.exp_()
    back.scatter_add_(-1, target, torch.full_like(target, -1, dtype=back.dtype))
    back *= weights.unsqueeze(-1)
    if masks is not None:
        back *= masks.unsqueeze(1)
    for index in range(len(layers) - 1, -1, -1):
        back = layers[index].backward(
            parameters, sink, inputs[index], seen[index], back, first=index == 0
        )
    return losses


def _log_softmax(logits: Tensor) -> Tensor:
    """Over the classes; along rows this short torch is several times slower on a CPU."""
    if logits.is_cuda:
        return torch.log_softmax(logits, dim=-1)
    return torch.log_softmax(logits.mT.contiguous(), dim=-2).mT
