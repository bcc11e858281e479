"""A client's work with all it takes, so that clients of several simulations can train together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.errors import FedsteerError, TrainingFailed, first_line
from fedsteer.training.local import Job, Trained, Trainer
from fedsteer.training.sequential import Sequential


class Order(NamedTuple):
    """A job that no longer depends on whose it is."""

    client: int
    points: NDArray[np.int64]
    seed: int
    round: int
    start: Tensor
    correction: Tensor | None
    proximal: float


class Together(Trainer, ABC):
    """An engine that trains clients together: of its own simulation, or of any like it."""

    name: ClassVar[str]

    @abstractmethod
    def carry_out(self, orders: Sequence[Order], like: Tensor) -> Trained:
        """Train all orders; `like` gives type and device where there are none."""

    def orders(
        self, model: Tensor, jobs: Sequence[Job], round: int, proximal: float = 0.0
    ) -> list[Order]:
        """The jobs as orders, which any engine of the same network, images and `how` can take."""
        return [
            Order(
                client,
                self.data.clients[client],
                self.seed,
                round,
                model if start is None else start,
                correction,
                proximal,
            )
            for client, start, correction in jobs
        ]

    def train(
        self, model: Tensor, jobs: Sequence[Job], round: int, proximal: float = 0.0
    ) -> Trained:
        """Every job from its start model (default: `model`); `round` keys the random draws."""
        try:
            return self.carry_out(self.orders(model, jobs, round, proximal), model)
        except FedsteerError:
            raise
        except Exception as error:
            # The reference trains the same clients one by one and names the one that fails.
            reference = Sequential(self.network, self.data, self.how, self.seed, exact=self.exact)
            reference.train(model, jobs, round, proximal)
            raise TrainingFailed(
                f"clients fail when trained together, though none does alone: {first_line(error)}; "
                "run.engine=sequential trains them so"
            ) from error
