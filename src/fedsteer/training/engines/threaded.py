"""Clients side by side on the cores of a CPU, each by one thread, gradients by formula.

A thread takes one client at a time and computes it alone, so threads never wait for each other in
the middle of a product, and a client's numbers do not depend on the number of threads or on which
thread trained it. Torch releases the interpreter's lock while it computes.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from fedsteer.training.engines.base import Engine, Losses, naming, torch_threads
from fedsteer.training.layers.basic import Convolution, Flatten, Linear
from fedsteer.training.layers.formula import FormulaGradient
from fedsteer.training.layers.known import known_layers
from fedsteer.training.local import PLAIN_SGD, LocalRun, LocalTraining, Order
from fedsteer.training.networks import Network


class ThreadedEngine(Engine):
    """Trains clients side by side, on as many threads as torch has."""

    name = "threaded"

    def __post_init__(self) -> None:
        self.gradient = FormulaGradient(self.network)

    @classmethod
    def supports(cls, network: Network, options: LocalTraining, device: str) -> str | None:
        kinds = {type(layer) for layer in known_layers(network) or (None,)}
        if device != "cpu" or not kinds <= {Convolution, Linear, Flatten}:
            return "it needs a CPU and a plain stack of convolutions and dense layers"
        return super().supports(network, options, device)

    def _train(self, orders: Sequence[Order]) -> tuple[Tensor, Losses]:
        updates, losses = self.no_updates(len(orders)), np.zeros(len(orders))

        def train(place: int) -> None:
            with naming(orders[place].client):
                losses[place] = self._train_one(orders[place], updates[place])

        threads = max(1, min(torch.get_num_threads(), len(orders)))
        longest_first = sorted(range(len(orders)), key=lambda place: -len(orders[place].points))
        # A thread's own number is set in it; a library's number for all threads is set with it.
        with (
            torch_threads(1),
            ThreadPoolExecutor(threads, "client", torch.set_num_threads, (1,)) as workers,
        ):
            # If a client fails, those that have not begun are cancelled.
            list(workers.map(train, longest_first))
        return updates, losses

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _train_one(self, order: Order, update: Tensor) -> float:
        """The summed loss of one client; `update` receives start - end."""
        run = LocalRun(self.data, self.options, order)
        # Under plain SGD the gradient is never written down: it goes straight into the weights.
        plain = order.plain and not self.options.beyond(PLAIN_SGD)
        weights, mask = run.weights[None], None if run.mask is None else run.mask[None]
        total = 0.0
        for images, labels in run.batches():
            shares = weights.new_full((1, len(labels)), 1 / len(labels))
            batch = (weights, images[None], labels[None], shares, mask)
            gradient, loss = self.gradient(*batch, self.options.rate if plain else None)
            total += float(loss)
            if not plain:
                run.descend(gradient[0])
        torch.sub(order.start, run.weights, out=update)
        return total
