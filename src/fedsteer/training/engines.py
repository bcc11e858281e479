"""Which engine trains what. The choice is static: it follows from model, device and precision.

    dense network                 stacked, gradients by formula (wide ones, cpu: see `pointwise`)
    plain convolutions, cpu       threaded, one thread a client, gradients by formula
    other network, cpu            sequential: autograd, and torch's generator, are one for all
    known layers, cuda            stacked, gradients by formula (the paper's three networks)
    other network, cuda           captured: graphs of autograd's step, clients on several streams;
                                  so are residual ones in float32, which cuDNN has kernels for

It is written to the manifest and kept when a run is resumed, so that numbers stay reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fedsteer.errors import ConfigurationError, unknown
from fedsteer.training.captured import Captured
from fedsteer.training.direct import DirectGradient, is_direct
from fedsteer.training.formula import FormulaGradient
from fedsteer.training.known import is_dense, known_layers, mixes_samples
from fedsteer.training.local import Job, LocalTraining, Trained, TrainingData
from fedsteer.training.networks import Network
from fedsteer.training.pointwise import Pointwise, is_wide
from fedsteer.training.sequential import Sequential
from fedsteer.training.stacked import Stacked, StackedGradient
from fedsteer.training.threaded import Threaded
from fedsteer.training.vmapped import VmappedGradient

ENGINES = ("sequential", "stacked", "threaded", "captured")
STACKED_NUMBERS = 400_000_000
"""Most parameters held stacked at once: with gradients about 3 GB."""


class Engine(Protocol):
    """Trains the clients of a round."""

    @property
    def name(self) -> str:
        """As in `ENGINES`."""

    def train(
        self, model: Tensor, jobs: Sequence[Job], round: int, proximal: float = 0.0
    ) -> Trained:
        """Updates of all jobs."""


def choose_engine(network: Network, device: str, exact: bool = True) -> str:
    """The static rule above; `exact`: float32 products are asked for on a GPU."""
    layers = known_layers(network)
    if layers is not None and is_dense(layers):
        return "stacked"
    if layers is not None and device != "cpu" and not (exact and mixes_samples(layers)):
        return "stacked"
    if device != "cpu":
        return "captured"
    return "threaded" if layers is not None and is_direct(layers) else "sequential"


def choose_threads(network: Network, cores: int) -> int:
    """One thread for dense networks, where more mostly get in the way; else up to four."""
    layers = known_layers(network)
    return 1 if layers is not None and is_dense(layers) else min(cores, 4)


def make_engine(
    name: str,
    network: Network,
    data: TrainingData,
    how: LocalTraining,
    seed: int,
    exact: bool = True,
) -> Engine:
    """An engine by name; `exact` False allows shorter numbers in the products on a GPU."""
    given, layers = (network, data, how, seed), known_layers(network, exact)
    if name == "sequential":
        return Sequential(*given, exact=exact)
    if name == "captured":
        if not data.images.is_cuda:
            raise ConfigurationError("run.engine=captured needs a GPU")
        return Captured(*given, exact=exact)
    if name not in ENGINES:
        raise unknown("engine", name, ("auto", *ENGINES))
    if name == "threaded":
        if layers is None or not is_direct(layers) or data.images.is_cuda:
            raise ConfigurationError(
                "the threaded engine needs a CPU and a plain stack of convolutions and dense "
                "layers; run.engine=sequential trains any network"
            )
        return Threaded(*given, DirectGradient(layers))
    gradient: StackedGradient = VmappedGradient(network)
    if layers is not None:
        gradient = FormulaGradient(network, layers, exact)
    width = max(1, STACKED_NUMBERS // network.dim)
    pointwise = None
    if layers is not None and is_wide(layers) and not data.images.is_cuda:
        pointwise = Pointwise(layers, network.dim, data, how)
    return Stacked(*given, gradient, width, pointwise, exact=exact)
