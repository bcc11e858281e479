"""The network of a work, for the sides that use torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import vector_to_parameters

from fedsteer.bench.workloads import Work


def initial_module(work: Work) -> nn.Module:
    """With the initial weights of the work, whatever this version of torch would draw."""
    module = work.workload.network().module
    vector_to_parameters(torch.from_numpy(work.initial.copy()), module.parameters())
    return module
