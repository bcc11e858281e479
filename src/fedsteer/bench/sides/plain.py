"""What anybody would write first: nn.Module, torch.optim.SGD, data preloaded as tensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsteer.bench.networks import put_weights, take_weights, torch_module
from fedsteer.bench.protocol import Channel, Gate
from fedsteer.bench.sides import How
from fedsteer.bench.work import Work
from fedsteer.bench.workloads import Workload


def run(work: Work, how: How, channel: Channel) -> None:
    """Client after client, then the mean of their models."""
    torch.set_num_threads(how.threads)
    module = torch_module(work.workload)
    put_weights(module, work.initial)
    images, labels = torch.from_numpy(work.images()), torch.from_numpy(work.labels)
    parameters = list(module.parameters())
    gate = Gate(channel, lambda: take_weights(module), version=f"torch {torch.__version__}")
    round = 0
    while gate.next_round():
        start = [parameter.detach().clone() for parameter in parameters]
        total = [torch.zeros_like(value) for value in start]
        cohort = work.cohort(round)
        for client in cohort:
            with torch.no_grad():
                torch._foreach_copy_(parameters, start)
            own = work.own(client)
            train(module, images[own], labels[own], work.workload)
            with torch.no_grad():
                torch._foreach_add_(total, parameters)
        with torch.no_grad():
            torch._foreach_div_(total, float(len(cohort)))
            torch._foreach_copy_(parameters, total)
        round += 1


def train(
    module: torch.nn.Module, images: Tensor, labels: Tensor, workload: Workload
) -> torch.nn.Module:
    """The epochs of one client, batches in stored order."""
    optimiser = torch.optim.SGD(module.parameters(), lr=workload.rate)
    for _ in range(workload.epochs):
        batches = zip(images.split(workload.batch), labels.split(workload.batch), strict=True)
        for some, targets in batches:
            optimiser.zero_grad()
            F.cross_entropy(module(some), targets).backward()
            optimiser.step()
    return module
