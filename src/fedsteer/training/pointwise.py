"""Wide dense networks on a CPU: the first layer as a combination of a client's own points.

With plain SGD the first weight matrix only ever moves within the span of the client's points. If
A holds what all steps so far gave back to each point (rate times the gradient of its outputs),

    W = W_0 - A^T X,    b = b_0 - A^T 1,    X W^T + b = (X W_0^T + b_0) - (X X^T + 1) A

So the large matrix is met twice a round, in one long product before the steps and one after them,
which is the update itself; a step costs as many numbers as the client has points, not as an image
has pixels. The same numbers come out, up to rounding. X X^T + 1 is kept from round to round
(`products`).

A client with fewer points than others is filled up with points of weight zero. A batch of nothing
else changes nothing, so all clients take part in all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training.known import is_dense
from fedsteer.training.layers import Layer, Linear
from fedsteer.training.local import LocalTraining, Trained, TrainingData, schedule
from fedsteer.training.orders import Order
from fedsteer.training.products import Again, Products
from fedsteer.training.threaded import using
from fedsteer.training.upper import Upper, parts_of

WIDE = 256
"""Fewest inputs of the first layer: with less, steps are short and their number of calls counts."""
TOGETHER = 1 << 24
"""Most numbers of all clients' points and their products at once."""


def is_wide(layers: Sequence[Layer]) -> bool:
    """Whether this is a way to train the network."""
    first = next((layer for layer in layers if isinstance(layer, Linear)), None)
    if first is None or not is_dense(list(layers)) or first.inside < WIDE:
        return False
    return (first.weight, first.bias) == (0, first.inside * first.outside)


class Pointwise:
    """Plain SGD of clients with few points; `suits` says for whom it is."""

    def __init__(
        self, layers: Sequence[Layer], dim: int, data: TrainingData, how: LocalTraining
    ) -> None:
        self.first, *self.upper = [layer for layer in layers if isinstance(layer, Linear)]
        self.dim, self.data, self.how = dim, data, how
        self.images = data.images.flatten(1)
        self.classes = [self.first, *self.upper][-1].outside
        self.plain = not how.momentum and not how.weight_decay and how.augment == "none"
        self.products, self._gathered = Products(room=self.images.numel() // 2), Again()

    def suits(self, orders: Sequence[Order]) -> bool:
        """Plain steps of clients with few points, and about as many each."""
        if not self.plain or not orders:
            return False
        if any(order.proximal or order.correction is not None for order in orders):
            return False
        counts = [len(order.points) for order in orders]
        most = max(counts)
        if not min(counts) or 2 * most > self.first.inside or most * most > self.dim:
            return False
        return len(counts) * most <= 2 * sum(counts)

    def carry_out(self, orders: Sequence[Order]) -> Trained:
        """Train all of them."""
        most = max(len(order.points) for order in orders)
        width = max(1, TOGETHER // (most * (most + self.first.inside)))
        updates = orders[0].start.new_empty((len(orders), self.dim))
        steps, losses = np.zeros(len(orders), np.int64), np.zeros(len(orders))
        threads = torch.get_num_threads()
        with using(1):
            for begin in range(0, len(orders), width):
                part = slice(begin, begin + width)
                steps[part], sums = self._together(orders[part], updates[part], threads)
                losses[part] = sums / steps[part]
        return Trained(updates, steps, losses)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _together(
        self, orders: Sequence[Order], updates: Tensor, threads: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Steps of each client and the sums of their losses; `updates` receives start - end."""
        clients = [order.points for order in orders]
        sizes = np.array([len(points) for points in clients])
        most, start = int(sizes.max()), orders[0].start
        batch = min(self.how.batch or most, most)
        steps = self.how.epochs * -(-sizes // batch)
        # Threads share out whole clients, so that no bit depends on how many threads there are;
        # where clients are fewer, threads would share out parts of a product.
        threads = threads if len(orders) >= threads else 1
        every = torch.from_numpy(_filled(clients, most))
        if all(order.start is start for order in orders):
            starts = start.expand(len(orders), -1)
        else:
            starts = torch.stack([order.start for order in orders])
        matrix, bias = parts_of(self.first, starts)
        with using(threads):
            images = self._gathered.room(self.images, len(orders), most, self.first.inside)
            torch.index_select(self.images, 0, every, out=images.flatten(0, 1))
            outputs = torch.baddbmm(bias.mT, images, matrix.mT)
        descent = Descent(
            outputs=outputs,
            products=self.products.of(clients, images) if steps.max() > 1 else None,
            labels=self.data.labels.index_select(0, every).view(len(orders), 1, most),
            weights=_weights(tuple(sizes.tolist()), batch, self.how.rate, updates.dtype),
            masks=self._masks(orders),
            classes=self.classes,
            given=torch.zeros_like(outputs),
            upper=Upper(self.upper, self.first.activation, starts, batch),
        )
        epochs = [descent.epoch(places) for places in self._epochs(orders, most)]
        matrix, bias = parts_of(self.first, updates)
        with using(threads):
            torch.bmm(descent.given.mT, images, out=matrix)
        torch.sum(descent.given, dim=1, out=bias.squeeze(2))
        descent.upper.subtract(updates)
        losses = sum((found.numpy() for found in epochs), start=np.zeros(len(orders)))
        return steps, losses / self.how.rate

    def _epochs(self, orders: Sequence[Order], most: int) -> Iterator[Tensor | None]:
        """(clients, points) places in the order of each epoch; None: as they are stored."""
        how = self.how
        if not how.shuffle or not 0 < how.batch < most:
            yield from [None] * how.epochs
            return
        places = np.tile(np.arange(most), (how.epochs, len(orders), 1))  # fillers stay behind
        for client, order in enumerate(orders):
            count = len(order.points)
            table, _ = schedule(how, np.arange(count), order.seed, order.round, order.client)
            places[:, client, :count] = table.reshape(how.epochs, -1)[:, :count]
        yield from torch.from_numpy(places)

    def _masks(self, orders: Sequence[Order]) -> Tensor | None:
        """(clients, classes, 1)."""
        if not self.how.mask_absent_labels:
            return None
        return torch.stack([self.data.label_mask(o.points) for o in orders]).unsqueeze(2)


@dataclass
class Descent:
    """The steps of stacked clients."""

    outputs: Tensor  # (clients, points, out) of the first layer at its start, not yet activated
    products: Tensor | None  # (clients, points, points); None: there is but one step
    labels: Tensor  # (clients, 1, points)
    weights: Tensor  # (clients, 1, points) rate/batch size by place in an epoch, 0 for fillers
    masks: Tensor | None  # (clients, classes, 1)
    classes: int
    given: Tensor  # (clients, points, out) A above
    upper: Upper
    moved: bool = False  # whether anything was given yet

    def epoch(self, places: Tensor | None) -> Tensor:
        """All batches once, points in the order of `places`; (clients,) rate times the losses."""
        outputs, products, labels = self.outputs, self.products, self.labels
        into = self.given
        if places is not None:
            clients, most = places.shape
            into = places + torch.arange(0, clients * most, most).unsqueeze(1)
            outputs, labels = _reordered(outputs, into), labels.gather(2, places.unsqueeze(1))
            products = None if products is None else _reordered(products, into)
        onehot = self.weights.new_zeros((len(labels), self.classes, labels.shape[2]))
        onehot.scatter_(1, labels, self.weights)
        size = self.upper.batch
        by_point = [x.split(size, 1) for x in (outputs, into, products) if x is not None]
        by_class = [x.split(size, 2) for x in (self.weights, onehot)]
        seen = []
        for weight, hit, values, place, *across in zip(*by_class, *by_point, strict=True):
            if self.moved:
                values = torch.baddbmm(values, *across, self.given, alpha=-1)
            logits = self._masked(self.upper.forward(values))
            seen.append(logits)
            back = self._masked(torch.softmax(logits, dim=1).mul_(weight).sub_(hit))
            back = self.upper.descend(back)
            if places is None:
                place.add_(back)
            else:
                self.given.flatten(0, 1).index_add_(0, place.flatten(), back.flatten(0, 1))
            self.moved = True
        odds = torch.log_softmax(torch.cat(seen, dim=2), dim=1).gather(1, labels)
        return odds.mul_(self.weights).sum(dim=(1, 2)).neg_()

    def _masked(self, values: Tensor) -> Tensor:
        return values if self.masks is None else values * self.masks


def _reordered(values: Tensor, rows: Tensor) -> Tensor:
    """(clients, points, ...) with the points in another order."""
    return values.flatten(0, 1).index_select(0, rows.flatten()).view_as(values)


def _filled(clients: Sequence[NDArray[np.int64]], most: int) -> NDArray[np.int64]:
    """All clients' points; whoever has fewer than `most` has its first ones again."""
    return np.concatenate([p if len(p) == most else np.resize(p, most) for p in clients])


@lru_cache(maxsize=16)
def _weights(sizes: tuple[int, ...], batch: int, rate: float, dtype: torch.dtype) -> Tensor:
    """(clients, 1, points) rate/size of the batch at each place of an epoch, 0 behind the last."""
    place, count = np.arange(max(sizes)), np.array(sizes)[:, None]
    left = count - place // batch * batch  # points from the beginning of the place's batch on
    weights = rate * (place < count) / left.clip(1, batch)
    return torch.from_numpy(weights).to(dtype).unsqueeze(1)
