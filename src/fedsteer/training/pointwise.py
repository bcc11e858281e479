"""Wide dense networks on a CPU: the first layer as a combination of a client's own points.

With plain SGD the first weight matrix only ever moves within the span of the client's points. If
A holds what all steps so far gave back to each point (rate times the gradient of its outputs),

    W = W_0 - A^T X,    b = b_0 - A^T 1,    X W^T + b = (X W_0^T + b_0) - (X X^T + 1) A

So the large matrix is met twice a round, in one long product before the steps and one after them,
which is the update itself; a step costs as many numbers as the client has points, not as an image
has pixels. The same numbers come out, up to rounding. X X^T + 1 is kept from round to round
(`holdings`).

A client with fewer points than others is filled up with points of weight zero: a batch of these
changes nothing, so all clients take part in all steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training.holdings import Holdings
from fedsteer.training.known import is_dense
from fedsteer.training.layers import Layer, Linear
from fedsteer.training.local import LocalTraining, Trained, TrainingData, schedule
from fedsteer.training.orders import Order
from fedsteer.training.threaded import Helpers, using
from fedsteer.training.upper import Upper, parts_of

WIDE = 256
"""Fewest inputs of the first layer: with less, steps are short and their number of calls counts."""
TOGETHER = 1 << 24
"""Most numbers of all clients' products and outputs at once."""


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
        self.plain = not how.momentum and not how.weight_decay and how.augment == "none"
        self.holdings, self.helpers = Holdings(data.images, data.labels), Helpers()

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
        width = max(1, TOGETHER // (most * (most + self.first.outside)))
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
        sizes = np.array([len(order.points) for order in orders])
        most = int(sizes.max())
        batch = min(self.how.batch or most, most)
        steps = self.how.epochs * -(-sizes // batch)
        alone = int(steps.max()) == 1  # the first step meets nothing given back
        held = [self.holdings.of(order.points, products=not alone) for order in orders]
        start = orders[0].start
        if all(order.start is start for order in orders):
            starts = start.expand(len(orders), -1)
        else:
            starts = torch.stack([order.start for order in orders])
        matrices, biases = parts_of(self.first, starts)
        changes, bias_changes = parts_of(self.first, updates)
        outputs = biases.mT.repeat(1, most, 1)
        descent = Descent(
            classes=[self.first, *self.upper][-1].outside,
            activation=self.first.activation,
            rate=self.how.rate,
            batch=batch,
            outputs=outputs,
            products=None if alone else _filled([own.products for own in held], most),
            labels=_filled([own.labels for own in held], most),
            shares=_shares(tuple(sizes.tolist()), batch).to(updates.dtype),
            masks=self._masks(orders),
            given=torch.zeros_like(outputs),
            upper=Upper(self.upper, starts, batch),
        )
        # Threads share out whole clients, so that no bit depends on how many threads there are.
        images = [own.images for own in held]
        into = [own[:size] for own, size in zip(outputs, sizes.tolist(), strict=True)]
        self.helpers.share(threads, Tensor.addmm_, into, images, matrices.mT.unbind())
        losses = sum(descent.epoch(places) for places in self._epochs(orders, most))
        given = [own[:size].t() for own, size in zip(descent.given, sizes.tolist(), strict=True)]
        self.helpers.share(threads, _multiply, given, images, changes.unbind())
        torch.sum(descent.given, dim=1, out=bias_changes.squeeze(2))
        descent.upper.subtract(updates)
        return steps, losses.double().numpy()

    def _epochs(self, orders: Sequence[Order], most: int) -> Iterator[Tensor | None]:
        """(clients, points) places in the order of each epoch; None: as they are stored."""
        how = self.how
        if not how.shuffle or not 0 < how.batch < most:
            yield from [None] * how.epochs
            return
        places = np.empty((how.epochs, len(orders), most), np.int64)
        places[:] = np.arange(most)
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
    """The steps of stacked clients; everything is (clients, points, ...) unless it says else."""

    classes: int
    activation: str  # of the first layer
    rate: float
    batch: int
    outputs: Tensor  # of the first layer under the weights it starts from, before the activation
    products: Tensor | None  # with all points; None: there is but one step
    labels: Tensor  # (clients, points)
    shares: Tensor  # (clients, 1, points) 1/batch size by place in an epoch, 0 for fillers
    masks: Tensor | None  # (clients, classes, 1)
    given: Tensor  # A above
    upper: Upper
    moved: bool = False  # whether anything was given yet

    def epoch(self, places: Tensor | None) -> Tensor:
        """All batches once, points in the order of `places`; (clients,) sums of their losses."""
        outputs, products, labels = self.outputs, self.products, self.labels
        into, rows = self.given, self.given.flatten(0, 1)
        if places is not None:
            clients, most = places.shape
            into = places + torch.arange(0, clients * most, most).unsqueeze(1)
            outputs, labels = _reordered(outputs, into), _reordered(labels, into)
            products = None if products is None else _reordered(products, into)
        target, weights = labels.unsqueeze(1), self.shares * self.rate
        onehot = (target == torch.arange(self.classes).unsqueeze(1)) * -weights
        by_point = [x.split(self.batch, dim=1) for x in (outputs, products, into) if x is not None]
        by_class = [x.split(self.batch, dim=2) for x in (weights, onehot)]
        seen = []
        for before, *across, place, weight, hit in zip(*by_point, *by_class, strict=True):
            values = before
            if self.moved:
                values = torch.baddbmm(before, across[0], self.given, alpha=-1)
            logits = self._masked(self.upper.forward(values, self.activation))
            seen.append(logits)
            # weight * (softmax - onehot)
            back = self._masked(torch.addcmul(hit, torch.softmax(logits, dim=1), weight))
            back = self.upper.descend(back, self.activation)
            if places is None:
                place.add_(back)
            else:
                rows.index_add_(0, place.flatten(), back.flatten(0, 1))
            self.moved = True
        odds = torch.log_softmax(torch.cat(seen, dim=2), dim=1)
        return -(odds.gather(1, target) * self.shares).sum(dim=(1, 2))

    def _masked(self, values: Tensor) -> Tensor:
        return values if self.masks is None else values * self.masks


def _multiply(left: Tensor, right: Tensor, into: Tensor) -> None:
    torch.mm(left, right, out=into)


def _reordered(values: Tensor, rows: Tensor) -> Tensor:
    """(clients, points, ...) with the points in another order."""
    return values.flatten(0, 1).index_select(0, rows.flatten()).view_as(values)


def _filled(parts: Sequence[Tensor], most: int) -> Tensor:
    """Stacked, with zeros behind those of fewer than `most` points."""
    if all(len(part) == most for part in parts):
        return torch.stack(parts)
    stacked = parts[0].new_zeros((len(parts), *[most] * parts[0].dim()))
    for into, part in zip(stacked, parts, strict=True):
        into[tuple(slice(size) for size in part.shape)] = part
    return stacked


@lru_cache(maxsize=16)
def _shares(sizes: tuple[int, ...], batch: int) -> Tensor:
    """(clients, 1, points) 1/size of the batch at each place of an epoch, 0 behind the last."""
    place, count = np.arange(max(sizes)), np.array(sizes)[:, None]
    left = count - place // batch * batch  # points from the beginning of the place's batch on
    return torch.from_numpy((place < count) / left.clip(1, batch)).unsqueeze(1)
