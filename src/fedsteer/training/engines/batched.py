"""Many clients at once: parameters stacked, one batched gradient per step for all of them.

Clients are ordered by how many steps they take, so those that have finished drop off the end
instead of being masked. Within a step, batches of about the same size go together, padded to the
largest of them with weight zero; if samples influence each other (batch norm), only batches of
equal size do. Gradients are taken by formula, without a graph.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.gpu.precision import precision
from fedsteer.training.engines.base import Engine, Losses, longest_first, torch_threads
from fedsteer.training.engines.dense import DenseTrainer, is_wide
from fedsteer.training.engines.sequential import naming_by_reference
from fedsteer.training.layers.formula import FormulaGradient
from fedsteer.training.layers.known import known_layers
from fedsteer.training.local import PLAIN_SGD, Descent, LocalTraining, Order, augmented
from fedsteer.training.networks import Network

MOST_NUMBERS = 400_000_000
"""Most parameters stacked at once: with gradients about 3 GB."""

Integers = NDArray[np.int64]


class BatchedEngine(Engine):
    """Trains clients together, at most `width` at a time."""

    name = "batched"
    joins_runs = True

    def __post_init__(self) -> None:
        self.gradient = FormulaGradient(self.network, self.data.images.device, self.exact)
        self.width = max(1, MOST_NUMBERS // self.network.dim)
        self.dense: DenseTrainer | None = None
        layers = self.gradient.layers
        if is_wide(layers) and not self.data.images.is_cuda:
            self.dense = DenseTrainer(layers, self.network.dim, self.data, self.options)

    @classmethod
    def supports(cls, network: Network, options: LocalTraining, device: str) -> str | None:
        if known_layers(network) is None:
            return "it needs a network made of layers that it knows by formula"
        return super().supports(network, options, device)

    def _train(self, orders: Sequence[Order]) -> tuple[Tensor, Losses]:
        with naming_by_reference(self, orders):
            if self.dense is None:
                return self._train_stacked(orders)
            if self.dense.suits(orders):
                return self.dense.train(orders)
            # More threads would share out parts of a product, and then results would depend on how
            # many there are.
            with torch_threads(1):
                return self._train_stacked(orders)

    def _train_stacked(self, orders: Sequence[Order]) -> tuple[Tensor, Losses]:
        updates, losses = self.no_updates(len(orders)), np.zeros(len(orders))
        # Of clients with equally many steps, neighbours have batches of about the same size.
        places = longest_first(orders)
        for first in range(0, len(places), self.width):
            part = places[first : first + self.width]
            total = updates.new_zeros(len(part))
            with precision(self.exact, updates):
                updates[part] = self.train_together([orders[i] for i in part], total)
            losses[part] = total.double().cpu().numpy()
        return updates, losses

    def train_together(self, orders: Sequence[Order], losses: Tensor) -> Tensor:
        """Updates of clients, the longest first; their losses are added to `losses`."""
        options, data = self.options, self.data
        descent = Descent(options, orders, self.gradient.arrange)
        masks = data.label_masks(options, orders)
        augments = options.augment == "crop-flip"
        draws = [order.draw("augment") for order in orders] if augments else []
        plain = all(order.plain for order in orders) and not options.beyond(PLAIN_SGD)
        # In place is half the memory traffic of a gradient and a step.
        in_place = plain and not descent.weights.is_cuda
        table, sizes = _stacked([order.schedule(options) for order in orders])
        batches = torch.as_tensor(table, device=data.images.device)
        for step, own_sizes in enumerate(sizes.T.tolist()):
            running = tuple(size for size in own_sizes if size)
            for pick, shares in _groups(
                running, self.gradient.pads, descent.weights.device, descent.weights.dtype
            ):
                points = batches[pick, step, : shares.shape[1]]
                images = data.images.index_select(0, points.flatten()).unflatten(0, points.shape)
                if augments:
                    for own, size, draw in zip(images, running[pick], draws[pick], strict=True):
                        own[:size] = augmented(own[:size], draw)
                gradient, loss = self.gradient(
                    descent.weights[pick],
                    images,
                    data.labels[points],
                    shares,
                    None if masks is None else masks[pick],
                    options.rate if in_place else None,
                )
                losses[pick] += loss
                if not in_place:
                    descent.step(gradient, pick)
        return self.gradient.restore(descent.update())


def _stacked(schedules: Sequence[tuple[Integers, Integers]]) -> tuple[Integers, Integers]:
    """(clients, steps, widest) points and (clients, steps) sizes, 0 after a client's last step.

    Padding repeats a point of the client; its weight is zero.
    """
    most = max(len(sizes) for _, sizes in schedules)
    table = np.zeros((len(schedules), most, max(rows.shape[1] for rows, _ in schedules)), np.int64)
    sizes = np.zeros((len(schedules), most), np.int64)
    for client, (rows, own) in enumerate(schedules):
        table[client] = rows[0, 0]
        table[client, : len(rows), : rows.shape[1]] = rows
        sizes[client, : len(own)] = own
    return table, sizes


@lru_cache(maxsize=128)
def _groups(
    sizes: tuple[int, ...], pads: bool, device: torch.device, dtype: torch.dtype
) -> list[tuple[slice, Tensor]]:
    """Neighbours whose batches go together: of equal size or, if it `pads`, within a factor of two.

    With each group, the (c, widest) weights of its points: 1/batch size, 0 for padding.
    """
    cuts = [0]
    low = high = sizes[0]
    for place, size in enumerate(sizes):
        low, high = min(low, size), max(high, size)
        if high > (2 if pads else 1) * low:
            cuts.append(place)
            low = high = size
    groups = []
    for first, last in pairwise([*cuts, len(sizes)]):
        own = np.array(sizes[first:last])[:, None]
        shares = torch.as_tensor((np.arange(own.max()) < own) / own, dtype=dtype, device=device)
        groups.append((slice(first, last), shares))
    return groups
