"""Wide dense networks on a CPU: the first layer as a combination of each client's own points.

In a network like 784-64-10 nearly all weights are in the first matrix W, and an SGD step of the
usual kind reads and writes all of them. But plain SGD moves W only within the span of the client's
points X (n, inputs). Let A (n, outputs) hold, for every point, the sum of rate * delta over the
steps that met it; delta is the gradient of the loss with respect to what the first layer puts out,
before its activation. Then at any time

    W = W_0 - A^T X        b = b_0 - A^T 1

and the first layer puts out, for all points at once,

    X W^T + b = (X W_0^T + b_0) - (X X^T + 1) A = Z - G A

So the large matrix is read twice a round and never in a step:

    before the steps    Z = X W_0^T + b_0      one long product
    every step          rows of Z - G A for the batch; the layers above as usual; A += rate delta
    after the steps     W_0 - W = A^T X        one long product, the update itself

A step reads one number per point of the client (say 100) instead of one per pixel of an image
(784). Its results are those of ordinary SGD, up to rounding. G never changes, because the client's
points do not, so it is kept from round to round for the clients seen last (`GramMatrices`).

All of this is stacked over clients. If a client has fewer points than others, points of weight
zero fill its rows. A batch of only such points changes nothing, so all clients take part in all
steps. Threads share out whole clients or images in the two long products and nothing else, so
results do not depend on how many there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsteer.training.engines.base import Losses, torch_threads
from fedsteer.training.layers import activate_, activation_gradient
from fedsteer.training.layers.basic import Flat, Layer, Linear
from fedsteer.training.layers.formula import through
from fedsteer.training.layers.known import is_dense
from fedsteer.training.local import PLAIN_SGD, LocalTraining, Order, TrainingData

WIDE = 256
"""Fewest inputs of the first layer; below that, the number of calls counts more than the work."""
MOST_NUMBERS = 1 << 24
"""Most numbers of all clients' points and their products at once."""
OPTIONS = PLAIN_SGD - {"augment"}
"""The options of local training that `DenseTrainer` honours."""
Points = NDArray[np.int64]
"""The indices of a client's points: the same array every round."""


def is_wide(layers: list[Layer]) -> TypeGuard[list[Linear]]:
    """Whether `DenseTrainer` can train the network."""
    if not is_dense(layers) or layers[0].inside < WIDE:
        return False
    first = layers[0]
    return (first.weight, first.bias) == (0, first.inside * first.outside)


class DenseTrainer:
    """Trains the orders that it `suits`."""

    def __init__(
        self, layers: list[Linear], dim: int, data: TrainingData, options: LocalTraining
    ) -> None:
        self.dim, self.data, self.options = dim, data, options
        self.first = layers[0]
        self.above = self.first.bias + self.first.outside  # where the other layers' weights start
        self.upper = [
            replace(layer, weight=layer.weight - self.above, bias=layer.bias - self.above)
            for layer in layers[1:]
        ]
        self.pixels = data.images.flatten(1)
        self.grams = GramMatrices(most=self.pixels.numel() // 2)

    def suits(self, orders: Sequence[Order]) -> bool:
        """Whether all steps are plain, and clients have few points and about as many each."""
        if not orders or self.options.beyond(OPTIONS) or not all(o.plain for o in orders):
            return False
        counts = [len(order.points) for order in orders]
        most = max(counts)
        if 2 * most > self.first.inside or most * most > self.dim:
            return False
        return len(counts) * most <= 2 * sum(counts)

    def train(self, orders: Sequence[Order]) -> tuple[Tensor, Losses]:
        """(m, d) updates, start - end, and (m,) losses summed over the steps."""
        most = max(len(order.points) for order in orders)
        width = max(1, MOST_NUMBERS // (most * (most + self.first.inside)))
        # Made here because what inference mode makes cannot be changed afterwards.
        rows = -(-self.dim // self.first.inside)  # as long as the first matrix's
        room = self.pixels.new_empty((len(orders), rows, self.first.inside))
        losses = np.zeros(len(orders))
        for begin in range(0, len(orders), width):
            part = slice(begin, begin + width)
            losses[part] = self._train(orders[part], room[part]).numpy()
        return room.flatten(1)[:, : self.dim], losses

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _train(self, orders: Sequence[Order], room: Tensor) -> Tensor:
        """Summed losses; `room` (clients, rows, inputs) receives start - end."""
        first, rate, threads = self.first, self.options.rate, torch.get_num_threads()
        most = max(len(order.points) for order in orders)
        start = orders[0].start
        shared = all(order.start is start for order in orders)
        starts = start.contiguous()[None] if shared else torch.stack([o.start for o in orders])
        # A client that has fewer points than others repeats them.
        held = [o.points if len(o.points) == most else np.resize(o.points, most) for o in orders]
        points = torch.from_numpy(np.concatenate(held))
        images = self.pixels.index_select(0, points).unflatten(0, (len(orders), most))
        with torch_threads(1):
            outputs = self._first_outputs(starts, images, threads)
            upper = starts[:, self.above :].expand(len(orders), -1).clone()
            # The last product is fast only into memory without gaps. If the other layers take up
            # few rows, it fills these as well, with zeros from columns of A that stay 0.
            rows = room.shape[1] if 8 * room.shape[1] <= 9 * first.outside else first.outside
            padded = images.new_zeros((len(orders), most, rows))
            given = padded[:, :, : first.outside]
            labels = self.data.labels.index_select(0, points).view(len(orders), most)
            losses = self._steps(orders, images, labels, outputs, upper, given)
            padded *= rate
            with torch_threads(threads if len(orders) >= threads else 1):
                if rows == room.shape[1]:
                    torch.bmm(padded.mT, images, out=room)
                else:
                    room[:, :rows] = torch.bmm(padded.mT, images)
            updates = room.flatten(1)
            torch.sum(given, dim=1, out=updates[:, first.bias : self.above])
            torch.sub(starts[:, self.above :], upper, out=updates[:, self.above : self.dim])
        return losses

    def _steps(
        self,
        orders: Sequence[Order],
        images: Tensor,
        labels: Tensor,
        outputs: Tensor,
        upper: Tensor,
        given: Tensor,
    ) -> Tensor:
        """All steps: changes `upper` and adds to `given`, which is A / rate."""
        options, activation, most = self.options, self.first.activation, images.shape[1]
        batch, rate = min(options.batch or most, most), options.rate
        counts = np.array([len(order.points) for order in orders])
        gram = images
        if options.steps(most) > 1:
            gram = self.grams.stacked([order.points for order in orders], images)
        shares = _shares(tuple(counts.tolist()), batch, images.dtype)
        masks = self.data.label_masks(options, orders)
        above = Flat(weights=upper, rate=rate)
        losses = images.new_zeros(len(orders), dtype=torch.float64)
        for epoch, places in enumerate(self._epochs(orders, most)):
            points = [outputs, gram, labels]
            if places is not None:
                rows = places.flatten()
                points = [p.flatten(0, 1).index_select(0, rows).view_as(p) for p in points]
            parts = [part.split(batch, dim=1) for part in (*points, shares, given)]
            for step, (before, inner, own, weights, place) in enumerate(zip(*parts, strict=True)):
                # At first only the points before this batch have given anything back.
                met = most if epoch or places is not None else step * batch
                value = torch.baddbmm(before, inner[:, :, :met], given[:, :met], alpha=-rate)
                value = activate_(value, activation)
                loss, back = through(self.upper, above, value, own, weights, masks, first=False)
                losses += loss
                back = activation_gradient(value, back, activation)
                if places is None:
                    place.add_(back)
                else:
                    rows = places[:, step * batch : (step + 1) * batch].flatten()
                    given.flatten(0, 1).index_add_(0, rows, back.flatten(0, 1))
        return losses

    def _first_outputs(self, starts: Tensor, images: Tensor, threads: int) -> Tensor:
        """(clients, n, out) of the first layer under the starting models."""
        matrix, bias = self.first.views(starts)
        with torch_threads(min(threads, len(images))):
            if len(starts) == 1 and torch.backends.mkldnn.is_available():
                # As a convolution whose window is a whole image, because torch has those done by
                # oneDNN. It takes half the time of torch's matrix products on AMD processors.
                windows = images.flatten(0, 1).unsqueeze(1)
                outputs = torch.conv1d(windows, matrix.transpose(0, 1), bias[0])
                return outputs.view(*images.shape[:2], -1)
            return torch.baddbmm(bias.unsqueeze(1), images, matrix.mT.expand(len(images), -1, -1))

    def _epochs(self, orders: Sequence[Order], most: int) -> Iterator[Tensor | None]:
        """(clients, points) rows of the stack in the order of each epoch; None: as it is."""
        options = self.options
        if not options.shuffle or not 0 < options.batch < most:
            yield from [None] * options.epochs
            return
        places = np.tile(np.arange(most), (options.epochs, len(orders), 1))  # fillers stay behind
        for client, order in enumerate(orders):
            count = len(order.points)
            table, _ = replace(order, points=np.arange(count)).schedule(options)
            places[:, client, :count] = table.reshape(options.epochs, -1)[:, :count]
        yield from torch.from_numpy(places + most * np.arange(len(orders))[:, None])


class GramMatrices:
    """X X^T + 1 of the clients seen last; `most` is how many numbers they may have together."""

    def __init__(self, most: int) -> None:
        self.most, self.numbers = most, 0
        # By identity of the array of points, which is kept so that no other array can have it.
        self._kept: dict[int, tuple[Points, Tensor]] = {}  # the one used last at the end

    def of(self, points: Points, images: Tensor) -> Tensor:
        """(n, n); the first n images are the client's own."""
        _, gram = self._kept.pop(id(points), (points, None))
        if gram is None:
            own = images[: len(points)]
            gram = torch.mm(own, own.t()).add_(1.0)
            self.numbers += gram.numel()
        self._kept[id(points)] = points, gram
        while self.numbers > self.most:
            _, oldest = self._kept.pop(next(iter(self._kept)))
            self.numbers -= oldest.numel()
        return gram

    def stacked(self, clients: list[Points], images: Tensor) -> Tensor:
        """(clients, n, n) for images (clients, n, inputs); 0 behind a client's last point."""
        grams = [self.of(points, own) for points, own in zip(clients, images, strict=True)]
        if min(len(points) for points in clients) == images.shape[1]:
            return torch.stack(grams)
        found = images.new_zeros((*images.shape[:2], images.shape[1]))
        for gram, place in zip(grams, found, strict=True):
            place[: len(gram), : len(gram)] = gram
        return found


@lru_cache(maxsize=8)
def _shares(counts: tuple[int, ...], batch: int, dtype: torch.dtype) -> Tensor:
    """(clients, points) 1/size of the batch at each place of an epoch, 0 behind the last point."""
    place, count = np.arange(max(counts)), np.array(counts)[:, None]
    left = count - place // batch * batch  # points from where the batch starts
    return torch.from_numpy((place < count) / left.clip(1, batch)).to(dtype)
