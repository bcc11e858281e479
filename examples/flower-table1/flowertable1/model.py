"""The model in messages: all weights in one array."""

from __future__ import annotations

from typing import Any

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

NAME = "weights"


def record_of(weights: Tensor) -> ArrayRecord:
    return ArrayRecord({NAME: Array(weights.cpu().numpy())})


def weights_of(arrays: Any, device: str) -> Tensor:
    """From an `ArrayRecord`, or from arrays by their names."""
    found = arrays[NAME]
    array = found.numpy() if isinstance(found, Array) else found
    return torch.tensor(array, device=device)
