"""The base of all engines: they train the clients of a list of orders."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.errors import ConfigurationError, FedsteerError, TrainingFailed, first_line
from fedsteer.training.local import SGD, LocalTraining, Order, Trained, TrainingData
from fedsteer.training.networks import Network

Losses = NDArray[np.float64]


@dataclass(eq=False)
class Engine(ABC):
    """Trains clients; `supports` says which networks and options it takes."""

    name: ClassVar[str]  # `run.engine` in a configuration
    joins_runs: ClassVar[bool] = False  # clients of several runs at once keep its device busier

    network: Network
    data: TrainingData
    options: LocalTraining
    exact: bool = True  # False allows shorter numbers in products on a GPU

    def __post_init__(self) -> None:  # noqa: B027
        """Engines prepare what they need here."""

    @classmethod
    def supports(cls, network: Network, options: LocalTraining, device: str) -> str | None:
        """None if the engine can train this, else the reason why it cannot.

        An engine would ignore options that `Descent` does not know, so the base refuses those.
        """
        unknown = options.beyond(SGD)
        return f"it does not know training.{unknown[0]}" if unknown else None

    def train_orders(self, orders: Sequence[Order]) -> Trained:
        """Train all orders; results are in the same order."""
        for order in orders:
            if not len(order.points):
                raise ConfigurationError(f"client {order.client} has no data")
        updates, losses = self._train(orders)
        steps = np.array([self.options.steps(len(order.points)) for order in orders], np.int64)
        return Trained(updates=updates, steps=steps, losses=losses / steps)

    @abstractmethod
    def _train(self, orders: Sequence[Order]) -> tuple[Tensor, Losses]:
        """(m, d) updates, start - end, and (m,) losses summed over the steps."""

    def no_updates(self, count: int) -> Tensor:
        """Uninitialised (count, d) memory for updates, on the device of the data."""
        return self.data.images.new_empty((count, self.network.dim))


def longest_first(orders: Sequence[Order]) -> list[int]:
    """Places of the orders, most points first: these clients take the most steps."""
    return sorted(range(len(orders)), key=lambda place: -len(orders[place].points))


@contextmanager
def naming(client: int) -> Iterator[None]:
    """Within the block, errors name the client that they come from."""
    try:
        yield
    except FedsteerError:
        raise
    except Exception as error:
        raise TrainingFailed(
            f"client {client} failed in local training: {first_line(error)}"
        ) from error


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Within the block, torch uses this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
