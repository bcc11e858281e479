"""Memory of stacked clients and views of it, used round after round.

The system takes its time to hand out new memory, and a view takes as long to make as a small
product: so memory is kept, and its views while rounds are alike in clients, points and batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PIECE = 512
"""Most rows in one product where all clients share the other side; with far fewer it is slower."""


class Shape(NamedTuple):
    """Of all that belongs to a round."""

    clients: int
    points: int  # of the client that has most
    batch: int
    inside: int  # inputs and outputs of the first layer
    outside: int
    rows: int  # of the last product: `outside`, and some that mean nothing
    classes: int


class Batch(NamedTuple):
    """What a step reads, and where it writes."""

    outputs: Tensor  # (clients, batch, out) of the first layer at its start
    across: Tensor  # (clients, batch, j) products with points that may have given something
    given: Tensor  # (clients, j, out) what these gave back
    into: Tensor  # (clients, batch, out) where to put what this batch gives back
    hits: Tensor  # (clients, classes, batch)
    weights: Tensor  # (clients, 1, batch)


def piece_count(rows: int) -> int:
    """Into how many pieces rows are cut, none above PIECE: a power of two, for threads to share."""
    return 1 << (rows // PIECE).bit_length()


def keep_freed_memory() -> None:
    """Have the C library keep the memory of a round's updates for those of the next.

    glibc hands the end of its heap back to the system where more is free there than twice the
    largest block it ever freed by itself, up to 32 MiB (mallopt(3), dynamic mmap threshold); what
    is handed back costs a page fault for every 4 KiB when it is needed again. One large block,
    never touched, raises that bound for good. Other C libraries do not notice.
    """
    torch.empty(31 << 20, dtype=torch.uint8)


class Workspace:
    """All memory of a round, with anything in it.

    images      (clients, points, inside), and as `rows` (clients * points, inside)
    pieces      (pieces, n, inside) the same rows, whoever they belong to, and a few that mean
                nothing; `piece_outputs` (pieces, n, outside) are those of `outputs`
    products    (clients, points, points)
    outputs     (clients, points, outside) of the first layer at its start, not yet activated
    given       (clients, points, outside) what each point gave back so far, in `padded`
    weights     (clients, 1, points) rate/batch size by place in an epoch, 0 for fillers
    negated     (clients, 1, points) less than 0 by as much
    hits        (clients, classes, points) the same, each at the label of its point; and a row a
                client for NumPy as `hit_by_client`
    """

    def __init__(self, shape: Shape, memory: Tensor | None, like: Tensor) -> None:
        """`memory` is that of an earlier one; where it is too short, there is new one."""
        self.shape = shape
        clients, points, _, inside, outside, rows, classes = shape
        count = clients * points
        pieces = piece_count(count)
        in_pieces = pieces, -(-count // pieces)
        shapes = [
            (*in_pieces, inside),
            (clients, points, points),
            (*in_pieces, outside),
            (clients, points, rows),
            (clients, classes, points),
            (clients, 1, points),
            (clients, 1, points),
        ]
        lengths = [math.prod(shape) for shape in shapes]
        if memory is None or len(memory) < sum(lengths):
            memory = like.new_empty(sum(lengths))
        self.memory = memory
        parts = memory[: sum(lengths)].split(lengths)
        (
            self.pieces,
            self.products,
            self.piece_outputs,
            self.padded,
            self.hits,
            self.weights,
            self.negated,
        ) = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        self.rows, outputs = (
            part.flatten(0, 1)[:count] for part in (self.pieces, self.piece_outputs)
        )
        self.images, self.outputs = (
            part.unflatten(0, (clients, points)) for part in (self.rows, outputs)
        )
        self.hit_by_client = self.hits.flatten(1).numpy()
        self.given = self.padded.zero_()[:, :, :outside]
        # Of the clients that `weights` are for: points, steps and the most of these.
        self.sizes: tuple[int, ...] = ()
        self.steps: NDArray[np.int64] = np.zeros(0, np.int64)
        self.most_steps = 0
        self.first = [
            batch._replace(across=batch.across[:, :, :before], given=self.given[:, :before])
            for before, batch in zip(
                range(0, points, shape.batch),
                self.batches(self.outputs, self.products, self.given),
                strict=True,
            )
        ]

    def batches(self, outputs: Tensor, products: Tensor, into: Tensor) -> list[Batch]:
        """The batches of an epoch whose points are in the order of these."""
        size = self.shape.batch
        by_point = [values.split(size, 1) for values in (outputs, products, into)]
        by_class = [values.split(size, 2) for values in (self.hits, self.weights)]
        return [
            Batch(values, across, self.given, place, hits, weights)
            for values, across, place, hits, weights in zip(*by_point, *by_class, strict=True)
        ]
