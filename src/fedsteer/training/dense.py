"""Gradients of dense networks, many clients at once, by formula.

For a stack of Linear layers and pointwise activations everything is a batched matrix product;
written out there is no graph to build and nothing to allocate twice. With a_0 the input and
z_l = a_(l-1) W_l^T + b_l, a_l = f(z_l):

    dz_L = weight (softmax(z_L) - onehot),   dW_l = dz_l^T a_(l-1),   db_l = sum dz_l
    dz_(l-1) = (dz_l W_l) f'(z_(l-1))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedsteer.training.networks import Network


@dataclass(frozen=True)
class Layer:
    """One Linear layer and the activation after it ("relu", "tanh", or "" for the last)."""

    inside: int
    outside: int
    weight: int  # where the weight matrix starts in the flat vector
    bias: int
    activation: str


def dense_layers(network: Network) -> list[Layer] | None:
    """The layers, if the network is a plain stack of them; None otherwise."""
    if not isinstance(network.module, nn.Sequential):
        return None
    starts = {parameter.name: parameter.start for parameter in network.parameters}
    modules = list(network.module)
    if modules and isinstance(modules[0], nn.Flatten):
        modules = modules[1:]
    offset = len(network.module) - len(modules)
    layers: list[Layer] = []
    while modules:
        linear = modules.pop(0)
        if not isinstance(linear, nn.Linear) or linear.bias is None:
            return None
        place = len(network.module) - len(modules) - 1
        activation = ""
        if modules and isinstance(modules[0], (nn.ReLU, nn.Tanh)):
            activation = type(modules.pop(0)).__name__.lower()
        bias = starts[f"{place}.bias"]
        layers.append(
            Layer(
                linear.in_features, linear.out_features, starts[f"{place}.weight"], bias, activation
            )
        )
    if offset > 1 or not layers or layers[-1].activation:
        return None
    return layers


class DenseGradient:
    """(clients, d) gradients and (clients,) losses for stacked parameters and batches."""

    pads = True

    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers

    def __call__(
        self, flat: Tensor, images: Tensor, labels: Tensor, weights: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """images (c, b, ...), labels (c, b), weights (c, b): 1/batch size, 0 for padding."""
        count = len(flat)
        inputs = [images.reshape(count, images.shape[1], -1)]
        for layer in self.layers:
            matrix, bias = self._views(flat, layer)
            value = torch.baddbmm(bias.unsqueeze(1), inputs[-1], matrix.transpose(1, 2))
            if layer.activation == "relu":
                value.relu_()
            elif layer.activation == "tanh":
                value.tanh_()
            inputs.append(value)
        logits = inputs.pop()
        if masks is not None:
            logits = logits * masks.unsqueeze(1)
        log_odds = torch.log_softmax(logits, dim=-1)
        target = labels.unsqueeze(-1)
        losses = -(log_odds.gather(-1, target).squeeze(-1) * weights).sum(dim=1)
        back = log_odds.exp_()
        back.scatter_add_(-1, target, torch.full_like(target, -1, dtype=back.dtype))
        back *= weights.unsqueeze(-1)
        if masks is not None:
            back *= masks.unsqueeze(1)

        gradient = torch.empty_like(flat)
        for index in range(len(self.layers) - 1, -1, -1):
            layer, inside = self.layers[index], inputs[index]
            matrix, _ = self._views(flat, layer)
            into, into_bias = self._views(gradient, layer)
            torch.bmm(
                back.transpose(1, 2), inside, out=into
            ) if into.is_contiguous() else into.copy_(torch.bmm(back.transpose(1, 2), inside))
            into_bias.copy_(back.sum(dim=1))
            if index:
                back = torch.bmm(back, matrix)
                if self.layers[index - 1].activation == "relu":
                    back *= inside > 0
                elif self.layers[index - 1].activation == "tanh":
                    back *= 1 - inside * inside
        return gradient, losses

    @staticmethod
    def _views(flat: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
        size = layer.inside * layer.outside
        matrix = flat[:, layer.weight : layer.weight + size]
        bias = flat[:, layer.bias : layer.bias + layer.outside]
        return matrix.unflatten(1, (layer.outside, layer.inside)), bias
