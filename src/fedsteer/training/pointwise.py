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
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training.descent import Descent
from fedsteer.training.known import is_dense
from fedsteer.training.layers import Layer, Linear
from fedsteer.training.local import LocalTraining, Trained, TrainingData, joined, schedule
from fedsteer.training.orders import Order
from fedsteer.training.products import Products
from fedsteer.training.threaded import using
from fedsteer.training.upper import Parts, Upper
from fedsteer.training.workspace import Shape, Workspace, keep_freed_memory

WIDE = 256
"""Fewest inputs of the first layer: with less, steps are short and their number of calls counts."""
TOGETHER = 1 << 24
"""Most numbers of all clients' points and their products at once."""


def is_wide(layers: Sequence[Layer]) -> bool:
    """Whether this is a way to train the network."""
    linear = [layer for layer in layers if isinstance(layer, Linear)]
    if not linear or not is_dense(list(layers)) or linear[0].inside < WIDE:
        return False
    begins = [begin for layer in linear for begin in (layer.weight, layer.bias)]
    return begins == [0, *accumulate(_lengths(linear))][:-1]


class Pointwise:
    """Plain SGD of clients with few points; `suits` says for whom it is."""

    def __init__(
        self, layers: Sequence[Layer], dim: int, data: TrainingData, how: LocalTraining
    ) -> None:
        self.layers = [layer for layer in layers if isinstance(layer, Linear)]
        self.dim, self.data, self.how = dim, data, how
        self.images = data.images.flatten(1)
        self.first, self.classes = self.layers[0], self.layers[-1].outside
        # Threads share out the products of a batch well only where these fill their tensor: if
        # all other weights are but a few rows more of the first matrix, that is what they are.
        rows = -(-dim // self.first.inside)
        self.rows = rows if rows - self.first.outside <= rows // 8 else self.first.outside
        self._row = max(dim, self.rows * self.first.inside)  # of the updates as they are computed
        self.plain = not how.momentum and not how.weight_decay and how.augment == "none"
        self.products = Products(room=self.images.numel() // 2)
        self._workspace: Workspace | None = None
        self._above = Upper(self.layers[1:], self.first.activation)
        keep_freed_memory()

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
        threads = torch.get_num_threads()
        done = []
        for begin in range(0, len(orders), width):
            part = orders[begin : begin + width]
            # Threads share out whole clients, so that no bit depends on how many threads there are;
            # where clients are fewer, threads would share out parts of a product.
            # Made out here: what inference mode makes nobody may change afterwards.
            updates = part[0].start.new_empty((len(part), self._row))
            with using(threads if len(part) >= threads else 1):
                done.append(self._together(part, updates))
        return done[0] if len(done) == 1 else joined(done)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _together(self, orders: Sequence[Order], updates: Tensor) -> Trained:
        clients, start = [order.points for order in orders], orders[0].start
        sizes = tuple(map(len, clients))
        most = max(sizes)
        batch = min(self.how.batch or most, most)
        room = self._room(sizes, batch)
        every = torch.from_numpy(_filled(clients, most))
        torch.index_select(self.images, 0, every, out=room.rows)
        images, outputs = room.images, room.outputs
        if all(
            order.start is start for order in orders
        ):  # then rows of several may share a product
            images, outputs, starts = room.pieces, room.piece_outputs, start.contiguous()
        else:
            starts = torch.stack([order.start for order in orders])
        first = self._parts(self.first, starts, len(images))
        upper = [self._parts(layer, starts, len(orders)) for layer in self.layers[1:]]
        with using(min(torch.get_num_threads(), len(images))):
            torch.baddbmm(first.bias.mT, images, first.matrix.mT, out=outputs)
        with using(1):  # all that is small
            if room.most_steps > 1:
                self.products.of(clients, room.images, room.products)
            self._above.begin(upper, batch)
            labels = self.data.labels.index_select(0, every).view(len(orders), 1, most)
            descent = Descent(room, labels, self._masks(orders), self._above)
            losses = sum(descent.epoch(places) for places in self._epochs(orders, most))
            small = torch.cat([room.given.sum(dim=1), *self._above.moved()], dim=1)
        moved = updates[:, : self.rows * self.first.inside]
        with using(torch.get_num_threads() if moved.is_contiguous() else 1):
            torch.bmm(room.padded.mT, room.images, out=moved.unflatten(1, (self.rows, -1)))
        updates = updates[:, : self.dim]
        updates[:, self.first.bias :] = small
        return Trained(updates, room.steps.copy(), losses / (self.how.rate * room.steps))

    def _parts(self, layer: Linear, starts: Tensor, times: int) -> Parts:
        """A layer's weights in (times, d) models, or in one (d,) as often."""
        inside, outside = layer.inside, layer.outside
        stride, begin = (self.dim if starts.ndim > 1 else 0), starts.storage_offset()
        matrix = (times, outside, inside), (stride, inside, 1), begin + layer.weight
        bias = (times, outside, 1), (stride, 1, 1), begin + layer.bias
        return Parts(starts.as_strided(*matrix), starts.as_strided(*bias))

    def _room(self, sizes: tuple[int, ...], batch: int) -> Workspace:
        inside, outside, room = self.first.inside, self.first.outside, self._workspace
        most, rows, classes = max(sizes), self.rows, self.classes
        shape = Shape(len(sizes), most, batch, inside, outside, rows, classes)
        if room is None or room.shape != shape:
            room = Workspace(shape, None if room is None else room.memory, self.images)
            self._workspace = room
        if room.sizes != sizes:
            room.weights.copy_(_weights(sizes, batch, self.how.rate))
            torch.neg(room.weights, out=room.negated)
            room.sizes = sizes
            room.steps = self.how.epochs * -(-np.array(sizes) // batch)
            room.most_steps = int(room.steps.max())
        return room

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


def _lengths(layers: Sequence[Linear]) -> list[int]:
    """Weights of every matrix and bias, one after the other."""
    return [n for layer in layers for n in (layer.inside * layer.outside, layer.outside)]


def _filled(clients: Sequence[NDArray[np.int64]], most: int) -> NDArray[np.int64]:
    """All clients' points; whoever has fewer than `most` has its first ones again."""
    return np.concatenate([p if len(p) == most else np.resize(p, most) for p in clients])


def _weights(sizes: tuple[int, ...], batch: int, rate: float) -> Tensor:
    """(clients, 1, points) rate/size of the batch at each place of an epoch, 0 behind the last."""
    place, count = np.arange(max(sizes)), np.array(sizes)[:, None]
    left = count - place // batch * batch  # points from the beginning of the place's batch on
    weights = rate * (place < count) / left.clip(1, batch)
    return torch.from_numpy(weights).unsqueeze(1)
