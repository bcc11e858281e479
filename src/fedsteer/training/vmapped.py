"""Gradients of any network, many clients at once, by torch.func."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fedsteer.training.networks import Network


class VmappedGradient:
    """(clients, d) gradients and (clients,) losses; the network is whatever it is."""

    pads = False  # samples of a batch may influence each other

    def __init__(self, network: Network) -> None:
        self.network = network

    def arrange(self, flat: Tensor) -> Tensor:
        """Parameters are taken in their usual order."""
        return flat

    def restore(self, flat: Tensor) -> Tensor:
        """And given back in it."""
        return flat

    def __call__(
        self, flat: Tensor, images: Tensor, labels: Tensor, weights: Tensor, masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """images (c, b, ...), labels (c, b), weights (c, b): 1/batch size, 0 for padding."""
        if masks is None:
            masks = flat.new_ones((len(flat), 1))
        gradient, losses = vmap(grad_and_value(self._loss))(flat, images, labels, weights, masks)
        return gradient, losses

    def _loss(
        self, flat: Tensor, images: Tensor, labels: Tensor, weights: Tensor, mask: Tensor
    ) -> Tensor:
        log_odds = torch.log_softmax(self.network.logits(flat, images) * mask, dim=-1)
        return -(log_odds.gather(-1, labels.unsqueeze(-1)).squeeze(-1) * weights).sum()
