"""Which engine trains what. The choice is static: it follows from model and device alone.

    dense network                 stacked, gradients by formula
    other network, cpu            sequential: convolutions bind, stacking them gains nothing there
    plain convolutions, cuda      stacked, gradients by formula
    other network, cuda           captured: graphs of autograd's step, clients on several streams

It is written to the manifest and kept when a run is resumed, so that numbers stay reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fedsteer.errors import ConfigurationError, unknown
from fedsteer.training.captured import Captured
from fedsteer.training.formula import FormulaGradient, is_dense, known_layers
from fedsteer.training.local import Job, LocalTraining, Trained, TrainingData
from fedsteer.training.networks import Network
from fedsteer.training.sequential import Sequential
from fedsteer.training.stacked import Stacked
from fedsteer.training.vmapped import VmappedGradient

ENGINES = ("sequential", "stacked", "captured")
STACKED_NUMBERS = 400_000_000
"""Most parameters held stacked at once: with gradients about 3 GB."""


class Engine(Protocol):
    """Trains the clients of a round."""

    name: str

    def train(
        self, model: Tensor, jobs: Sequence[Job], round: int, proximal: float = 0.0
    ) -> Trained:
        """Updates of all jobs."""


def choose_engine(network: Network, device: str) -> str:
    """The static rule above."""
    layers = known_layers(network)
    if layers is not None and (is_dense(layers) or device != "cpu"):
        return "stacked"
    return "sequential" if device == "cpu" else "captured"


def choose_threads(network: Network, cores: int) -> int:
    """One thread for small dense networks, where more only get in the way; else up to four."""
    return 1 if _is_small(network) else min(cores, 4)


def make_engine(
    name: str,
    network: Network,
    data: TrainingData,
    how: LocalTraining,
    seed: int,
    exact: bool = True,
) -> Engine:
    """An engine by name; `exact` False allows shorter numbers in the products on a GPU."""
    if name == "sequential":
        return Sequential(network, data, how, seed)
    if name == "captured":
        if not data.images.is_cuda:
            raise ConfigurationError("run.engine=captured needs a GPU")
        return Captured(network, data, how, seed, exact)
    if name != "stacked":
        raise unknown("engine", name, ENGINES)
    layers = known_layers(network, exact)
    gradient = VmappedGradient(network) if layers is None else FormulaGradient(layers)
    width = max(1, STACKED_NUMBERS // network.dim)
    return Stacked(network, data, how, seed, gradient, width, exact)


def _is_small(network: Network) -> bool:
    layers = known_layers(network)
    return layers is not None and is_dense(layers)
