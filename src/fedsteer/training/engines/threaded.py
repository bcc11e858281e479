"""Clients side by side on the cores of a CPU, each by one thread, gradients by formula.

A thread takes one client at a time and computes it alone, so threads never wait for each other in
the middle of a product, and a client's numbers do not depend on the number of threads or on which
thread trained it. Torch releases the interpreter's lock while it computes.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from fedsteer.training.engines.base import Engine, Losses, longest_first, naming, torch_threads
from fedsteer.training.engines.batched import BatchedEngine
from fedsteer.training.layers.basic import Convolution, Flatten, Linear
from fedsteer.training.layers.known import known_layers
from fedsteer.training.local import LocalTraining, Order
from fedsteer.training.networks import Network


class ThreadedEngine(Engine):
    """Trains clients side by side, on as many threads as torch has."""

    name = "threaded"

    def __post_init__(self) -> None:
        self.batched = BatchedEngine(self.network, self.data, self.options)

    @classmethod
    def supports(cls, network: Network, options: LocalTraining, device: str) -> str | None:
        kinds = {type(layer) for layer in known_layers(network) or (None,)}
        if device != "cpu" or not kinds <= {Convolution, Linear, Flatten}:
            return "it needs a CPU and a plain stack of convolutions and dense layers"
        return super().supports(network, options, device)

    def _train(self, orders: Sequence[Order]) -> tuple[Tensor, Losses]:
        updates = self.no_updates(len(orders))
        losses = torch.zeros(len(orders), dtype=torch.float64)

        @torch.inference_mode()  # type: ignore[untyped-decorator]
        def train(place: int) -> None:
            own = slice(place, place + 1)
            with naming(orders[place].client):
                updates[own] = self.batched.train_together(orders[own], losses[own])

        threads = max(1, min(torch.get_num_threads(), len(orders)))
        # A thread's own number is set in it; a library's number for all threads is set with it.
        with (
            torch_threads(1),
            ThreadPoolExecutor(threads, "client", torch.set_num_threads, (1,)) as workers,
        ):
            # If a client fails, those that have not begun are cancelled.
            list(workers.map(train, longest_first(orders)))
        return updates, losses.numpy()
