"""The network of workload (c), and weights as one vector in torch's order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def pfl_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The small CNN of pfl-research's CIFAR-10 benchmark, without its two dropouts.

    Every library draws its dropout masks differently, so final weights could not be compared.
    """
    channels, height, width = shape
    features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, classes),
    )  # fmt: skip


def put_weights(module: nn.Module, flat: NDArray[np.float32]) -> None:
    """Fill the parameters of a module."""
    vector_to_parameters(torch.from_numpy(flat.copy()), module.parameters())


def take_weights(module: nn.Module) -> NDArray[np.float32]:
    """The parameters of a module, copied."""
    flat: NDArray[np.float32] = parameters_to_vector(module.parameters()).detach().cpu().numpy()
    return flat
