"""Wide dense networks on a CPU: the first layer as a combination of a client's own points.

With plain SGD the first weight matrix only ever moves within the span of the client's points. If
A holds what all steps so far gave back to each point (rate times the gradient of its outputs),

    W = W_0 - A^T X,    b = b_0 - A^T 1,    X W^T + b = (X W_0^T + b_0) - (X X^T + 1) A

So the large matrix is met twice a round, in one long product before the steps and one after them,
which is the update itself; a step costs as many numbers as the client has points, not as an image
has pixels. The same numbers come out, up to rounding. X X^T + 1 is kept from round to round: for
clients whom this suits all of it is smaller than half of the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training.convolution import activate_, activation_gradient
from fedsteer.training.formula import backpropagate
from fedsteer.training.known import is_dense
from fedsteer.training.layers import Layer, Linear, Sink, Weights
from fedsteer.training.local import LocalTraining, Trained, TrainingData, schedule
from fedsteer.training.orders import Order
from fedsteer.training.planned import Integers, Planned, longest_first
from fedsteer.training.threaded import using

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
        linear = [layer for layer in layers if isinstance(layer, Linear)]
        self.first, self.size = linear[0], linear[0].bias + linear[0].outside
        self.rest = [
            replace(layer, weight=layer.weight - self.size, bias=layer.bias - self.size)
            for layer in linear[1:]
        ]
        self.dim, self.data, self.how = dim, data, how
        self.images = data.images.flatten(1)
        self.plain = not how.momentum and not how.weight_decay and how.augment == "none"
        self._kept = dict[bytes, Tensor]()
        self.kept = 0  # numbers

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
        places = [
            schedule(self.how, np.arange(len(o.points)), o.seed, o.round, o.client) for o in orders
        ]
        order = longest_first(places)
        most = max(len(o.points) for o in orders)
        width = max(1, TOGETHER // (most * (most + self.first.inside)))
        threads = torch.get_num_threads()
        updates = orders[0].start.new_empty((len(orders), self.dim))
        steps, losses = np.zeros(len(orders), np.int64), np.zeros(len(orders))
        for begin in range(0, len(order), width):
            part = order[begin : begin + width]
            planned = Planned([places[i] for i in part], updates.device, updates.dtype)
            whole = part == list(range(len(orders)))
            into = updates if whole else updates.new_empty((len(part), self.dim))
            with using(1):
                losses[part] = self._together([orders[i] for i in part], planned, into, threads)
            steps[part] = planned.lengths
            if not whole:
                updates[part] = into
        return Trained(updates, steps, losses)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _together(
        self, orders: Sequence[Order], planned: Planned, updates: Tensor, threads: int
    ) -> NDArray[np.float64]:
        """Mean losses of the steps; `updates` receives start - end."""
        count, most = len(orders), max(len(order.points) for order in orders)
        # Threads share out whole clients, so that no bit depends on how many threads there are;
        # where clients are fewer, threads would share out parts of a product.
        threads = threads if count >= threads else 1
        # A client with fewer points has its first one again: at the end, and no step asks for it.
        table = np.empty((count, most), np.int64)
        for row, order in zip(table, orders, strict=True):
            row[: len(order.points)], row[len(order.points) :] = order.points, order.points[0]
        every = torch.from_numpy(table).flatten()
        with using(threads):
            points = self.images.index_select(0, every).view(count, most, -1)
        # From places within a client's points to places among all of them.
        rows = planned.table + torch.from_numpy(
            np.repeat(np.arange(0, count * most, most), planned.lengths)[:, None]
        )
        labels = self.data.labels.index_select(0, every)[rows]
        spanned = self._spanned(orders, points, threads)
        if len(planned.table) > count:  # the first step meets nothing given back
            spanned.products = self._products(orders, points)
        masks = None
        if self.how.mask_absent_labels:
            masks = torch.stack([self.data.label_mask(order.points) for order in orders])
        starts = torch.stack([order.start[self.size :] for order in orders])
        rest, losses = starts.clone(), points.new_zeros(count)
        layers: list[Layer] = [spanned, *self.rest]
        for step in range(int(planned.lengths.max())):
            for group in planned.groups(step, pads=True):
                pick = slice(group.first, group.last)
                own, spanned.pick = rest[pick], pick
                losses[pick] += backpropagate(
                    layers,
                    Weights(own, own),
                    planned.of(rows, step, group),
                    planned.of(labels, step, group),
                    group.shares,
                    None if masks is None else masks[pick],
                    Sink(own, adds=True, scale=-self.how.rate),
                )
        back = spanned.back
        matrix = updates[:, : self.first.bias].unflatten(1, (self.first.outside, -1))
        with using(threads):
            torch.bmm(back.transpose(1, 2), points, out=matrix)
        torch.sum(back, dim=1, out=updates[:, self.first.bias : self.size])
        torch.sub(starts, rest, out=updates[:, self.size :])
        means: NDArray[np.float64] = losses.double().numpy() / planned.lengths
        return means

    def _spanned(self, orders: Sequence[Order], points: Tensor, threads: int) -> Spanned:
        """The first layer before the first step."""
        first, start = self.first, orders[0].start
        count, most, _ = points.shape
        if all(order.start is start for order in orders):
            starts = start[None, : self.size].expand(count, -1)
        else:
            starts = torch.stack([order.start[: self.size] for order in orders])
        matrix = starts[:, : first.bias].unflatten(1, (first.outside, first.inside))
        bias = starts[:, first.bias :].unsqueeze(1)
        with using(threads):
            outputs = torch.baddbmm(bias, points, matrix.transpose(1, 2)).flatten(0, 1)
        back = points.new_zeros((count, most, first.outside))
        return Spanned(outputs, None, back, self.how.rate, first.activation, slice(None))

    def _products(self, orders: Sequence[Order], points: Tensor) -> Tensor:
        """(clients * points, points) of all clients."""
        count, most, _ = points.shape
        products = [self._product(o.points, own) for o, own in zip(orders, points, strict=True)]
        if all(len(product) == most for product in products):
            return torch.cat(products)
        stacked = points.new_zeros((count * most, most))
        for index, product in enumerate(products):
            begin, size = index * most, len(product)
            stacked[begin : begin + size, :size] = product
        return stacked

    def _product(self, points: Integers, images: Tensor) -> Tensor:
        """X X^T + 1 of a client's points."""
        key = points.tobytes()
        found = self._kept.get(key)
        if found is None:
            own = images[: len(points)]
            found = torch.mm(own, own.t()).add_(1.0)
            # Simulations of other seeds share the engine, but hold their points otherwise.
            if self.kept + found.numel() > self.images.numel() // 2:
                self._kept, self.kept = {}, 0
            self._kept[key] = found
            self.kept += found.numel()
        return found


@dataclass
class Spanned:
    """The first layer of stacked clients; its inputs are places (clients, samples) of points."""

    outputs: Tensor  # (clients * points, outside) under the weights they start from
    products: Tensor | None  # (clients * points, points); None: there is but one step
    back: Tensor  # (clients, points, outside): A above
    rate: float
    activation: str
    pick: slice  # the clients of the step

    def forward(self, weights: Weights, inputs: Tensor) -> tuple[Tensor, Any]:
        rows, shape = inputs.flatten(), inputs.shape
        before = self.outputs.index_select(0, rows).unflatten(0, shape)
        if self.products is not None:
            across = self.products.index_select(0, rows).unflatten(0, shape)
            before.baddbmm_(across, self.back[self.pick], alpha=-1)
        return activate_(before, self.activation), before

    def backward(
        self,
        weights: Weights,
        sink: Sink,
        inputs: Tensor,
        seen: Any,
        back: Tensor,
        first: bool,
    ) -> Tensor:
        back = activation_gradient(seen, back, self.activation).flatten(0, 1)
        self.back.flatten(0, 1).index_add_(0, inputs.flatten(), back, alpha=self.rate)
        return back
