"""pfl-research: FederatedAveraging on a SimulatedBackend, users as in-memory tensors.

Evaluation is off. More than one process is `torchrun`, as pfl documents distributed simulations:
users are spread over the processes and their statistics reduced.
"""

from __future__ import annotations

from importlib.metadata import version
from itertools import count
from typing import Any

import torch
from benchmarks.peers.module import initial_module
from benchmarks.peers.protocol import Channel, Gate, Orders
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from fedsteer.bench.sides import ENDLESS
from fedsteer.bench.workloads import Work


class Trained(nn.Module):
    """The module with the two methods that pfl requires."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.module(images)
        return logits

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """What local training minimises."""
        return F.cross_entropy(self(images), labels)

    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """Nothing is evaluated."""
        return {}


class AtTheGate(TrainingProcessCallback):
    """Waits before the first round and after every round."""

    def __init__(self, gate: Gate) -> None:
        self.gate, self.over = gate, False

    def on_train_begin(self, *, model: Any) -> Metrics:
        """Before the first round, which pfl always runs."""
        self.over = not self.gate.next_round()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """After a round; True stops."""
        return self.over or not self.gate.next_round(), Metrics()


def run(work: Work, orders: Orders, channel: Channel) -> None:
    """pfl's own loop."""
    torch.set_num_threads(orders.threads)
    workload = work.workload
    module = initial_module(work)
    images, labels = torch.from_numpy(work.images), torch.from_numpy(work.labels)
    users = [
        PyTorchTensorDataset((images[own], labels[own]), user_id=str(client))
        for client in range(workload.clients)
        for own in [work.own(client)]
    ]
    places = count()

    def next_user() -> int:
        round, place = divmod(next(places), workload.cohort)
        return work.cohort(round)[place]

    model = PyTorchModel(
        Trained(module), torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)
    )
    data = FederatedDataset(users.__getitem__, next_user)
    rank = torch.distributed.get_rank() if orders.processes > 1 else 0
    gate = Gate(
        channel if rank == 0 else None,
        lambda: parameters_to_vector(module.parameters()).detach().cpu().numpy(),
        share=_share if orders.processes > 1 else lambda number: number or 0,
        version=f"pfl {version('pfl')}, torch {torch.__version__}",
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ENDLESS,
            evaluation_frequency=ENDLESS,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=workload.epochs,
            local_learning_rate=workload.rate,
            local_batch_size=workload.batch,
        ),
        callbacks=[AtTheGate(gate)],
        send_metrics_to_platform=False,
    )


def _share(number: int | None) -> int:
    """The first process decides how long the next block is."""
    told = torch.tensor([number or 0])
    torch.distributed.broadcast(told, src=0)
    return int(told)
