"""The network of a workload as a torch module, for every simulator that trains those."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedsteer.bench.workloads import CIFAR, Workload

ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def torch_module(workload: Workload) -> nn.Sequential:
    """The layers as a plain stack."""
    layers: list[nn.Module] = []
    for layer, ((_, inside, *_), _) in zip(
        workload.layers, workload.parameter_shapes(), strict=True
    ):
        if layer.kernel:
            layers.append(nn.Conv2d(inside, layer.size, layer.kernel, padding=layer.padding))
        else:
            if not any(isinstance(done, nn.Flatten) for done in layers):
                layers.append(nn.Flatten())
            layers.append(nn.Linear(inside, layer.size))
        layers += [ACTIVATIONS[layer.activation]()] if layer.activation else []
        layers += [nn.MaxPool2d(2)] if layer.pool else []
    return nn.Sequential(*layers)


def pfl_cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The small CNN of pfl-research's CIFAR-10 benchmark, without its two dropouts.

    Dropout draws random numbers, which every library does in its own way: final weights could not
    be compared.
    """
    table = CIFAR.as_dict() | {"shape": shape}
    table["layers"][-1]["size"] = classes
    return torch_module(Workload.of(table))


def put_weights(module: nn.Module, flat: NDArray[np.float32]) -> None:
    """Fill the parameters, in torch's order."""
    values = torch.from_numpy(flat.copy())
    torch.nn.utils.vector_to_parameters(values, module.parameters())


def take_weights(module: nn.Module) -> NDArray[np.float32]:
    """The parameters as one vector, in torch's order."""
    vector: Tensor = torch.nn.utils.parameters_to_vector(module.parameters())
    found: NDArray[np.float32] = vector.detach().cpu().numpy()
    return found
