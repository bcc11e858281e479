"""Filters in another order of their axes than torch's (out, in, row, column), and back."""

from __future__ import annotations

import torch
from torch import Tensor

from fedsteer.training.networks import Network


def filter_order(
    network: Network, axes: tuple[int, int, int, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Indices that take the usual flat vector to one with permuted filters, and back again."""
    places = torch.arange(network.dim, device=device)
    parts = []
    for parameter in network.parameters:
        part = places[parameter.start : parameter.end].view(parameter.shape)
        parts.append((part.permute(axes) if part.ndim == 4 else part).reshape(-1))
    there = torch.cat(parts)
    back = torch.empty_like(there)
    back[there] = places
    return there, back
