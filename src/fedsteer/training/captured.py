"""Large networks on a GPU: steps captured as CUDA graphs, several clients on streams side by side.

A client of a large network keeps a GPU busy only while its big layers run; the small ones and the
launching of some hundred kernels leave it idle. So the gradient of one batch (any network, by
autograd, images and filters with channels last) is captured once per batch size, replaying it costs
one launch, and `SLOTS` clients at a time run side by side on streams of their own.

A slot keeps its weights in float32. Unless `exact`, the network computes on a bfloat16 copy of it,
made by one cast, and the SGD step adds the bfloat16 gradient to the float32 weights. Filters lie in
the slot as (out, row, column, in), which is how the convolutions want them; they are put in that
order when a client begins and back when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedsteer.draws import generator
from fedsteer.errors import TrainingFailed
from fedsteer.gpu.precision import precision
from fedsteer.training.arrangement import filter_order
from fedsteer.training.local import (
    LocalTraining,
    Trained,
    TrainingData,
    augmented,
    batches,
    descend,
)
from fedsteer.training.networks import Network, Parameter
from fedsteer.training.orders import Order, Together

SLOTS = 4
WARM_UP = 3
"""Steps before a capture: libraries choose their kernels and take their workspace in these."""


@dataclass(eq=False)
class Captured(Together):
    """Train clients on `count` streams, their steps replayed from captured graphs."""

    name: ClassVar[str] = "captured"
    count: int = SLOTS
    slots: list[Slot] = field(default_factory=list)  # made when first needed: they hold memory

    def carry_out(self, orders: Sequence[Order], like: Tensor) -> Trained:
        """Train all orders; `like` gives type and device where there are none."""
        updates = like.new_empty((len(orders), self.network.dim))
        losses = like.new_zeros(len(orders))
        schedules = [batches(self.how, o.points, o.seed, o.round, o.client) for o in orders]
        steps = np.array([len(schedule) for schedule in schedules], np.int64)
        if not orders:
            return Trained(updates, steps, np.zeros(0))
        if not self.slots:
            self.slots = [
                Slot(self.network, self.data, self.how, self.exact) for _ in range(self.count)
            ]
        with precision(self.exact, self.data.images):
            # Graphs are captured before anything runs: a capture must be alone on the device.
            for size in sorted({len(batch) for schedule in schedules for batch in schedule}):
                for slot in self.slots:
                    slot.capture(size)
            queues = _longest_first(steps, len(self.slots))
            work = [
                slot.clients([(orders[i], schedules[i], updates[i], losses[i]) for i in queue])
                for slot, queue in zip(self.slots, queues, strict=True)
            ]
            here = torch.cuda.current_stream(like.device)
            for slot in self.slots:
                slot.stream.wait_stream(here)
            while work:
                work = [steps_of_slot for steps_of_slot in work if next(steps_of_slot, False)]
            for slot in self.slots:
                here.wait_stream(slot.stream)
        return Trained(updates, steps, losses.double().cpu().numpy() / steps)


@dataclass(frozen=True)
class Graph:
    """A captured gradient for one batch size, and where its batch goes."""

    replay: torch.cuda.CUDAGraph
    images: Tensor
    labels: Tensor


Task = tuple[Order, list[NDArray[np.int64]], Tensor, Tensor]
"""An order, its batches, and where its update and loss go."""


class Slot:
    """The buffers and graphs of one client at a time, on a stream of its own."""

    def __init__(
        self, network: Network, data: TrainingData, how: LocalTraining, exact: bool
    ) -> None:
        self.network, self.data, self.how = network, data, how
        device = data.images.device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.own, self.usual = filter_order(network, (0, 2, 3, 1), device)
        self.weights = torch.zeros(network.dim, device=device)
        kind = torch.float32 if exact else torch.bfloat16
        self.low = self.weights if exact else torch.zeros(network.dim, dtype=kind, device=device)
        self.gradient = torch.zeros_like(self.low)
        self.views = {p.name: view.requires_grad_() for p, view in _views(network, self.low)}
        self.into = [view for _, view in _views(network, self.gradient)]
        self.loss = torch.zeros((), device=device)
        self.mask = torch.ones(data.classes, device=device)
        self.graphs: dict[int, Graph] = {}

    def clients(self, tasks: Sequence[Task]) -> Iterator[bool]:
        """Work through the tasks; gives way after every step it has launched."""
        for order, schedule, update, loss in tasks:
            with torch.cuda.stream(self.stream):
                start = order.start[self.own]
                correction = None if order.correction is None else order.correction[self.own]
                pull = (order.proximal, start) if order.proximal else None
                velocity = torch.zeros_like(start) if self.how.momentum else None
                self.weights.copy_(start)
                self.loss.zero_()
                if self.how.mask_absent_labels:
                    self.mask.copy_(self.data.label_mask(order.points))
                points = torch.as_tensor(np.concatenate(schedule), device=start.device)
            flips = generator(order.seed, "augment", round=order.round, client=order.client)
            first = 0
            for batch in schedule:
                graph, last = self.graphs[len(batch)], first + len(batch)
                with torch.cuda.stream(self.stream):
                    images = self.data.images[points[first:last]]
                    if self.how.augment == "crop-flip":
                        images = augmented(images, flips)
                    graph.images.copy_(images)
                    torch.index_select(self.data.labels, 0, points[first:last], out=graph.labels)
                    graph.replay.replay()
                    gradient = self.gradient
                    changed = pull or correction is not None or self.how.weight_decay
                    if gradient.dtype != start.dtype and changed:
                        gradient = gradient.float()
                    descend(self.how, self.weights, gradient, velocity, pull, correction)
                first = last
                yield True
            with torch.cuda.stream(self.stream):
                torch.index_select(start.sub_(self.weights), 0, self.usual, out=update)
                loss.copy_(self.loss)

    def capture(self, size: int) -> None:
        """The gradient of a batch of `size` as a graph, once."""
        if size in self.graphs:
            return
        shape = (size, *self.data.images.shape[1:])
        images = torch.zeros(shape, dtype=self.low.dtype, device=self.low.device)
        images = images.contiguous(memory_format=torch.channels_last)
        labels = torch.zeros(size, dtype=torch.int64, device=self.low.device)
        random = torch.cuda.default_generators[images.device.index or 0]
        before = random.get_offset()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self._gradient(images, labels)
        torch.cuda.current_stream().wait_stream(self.stream)
        if random.get_offset() != before:
            raise TrainingFailed(
                "the network draws random numbers (dropout?), which a captured step cannot key by "
                "client and round; run.engine=sequential can"
            )
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self._gradient(images, labels)
        self.graphs[size] = Graph(graph, images, labels)

    def _gradient(self, images: Tensor, labels: Tensor) -> None:
        if self.low is not self.weights:
            self.low.copy_(self.weights)
        loss = self._loss(images, labels)
        found = torch.autograd.grad(loss, list(self.views.values()))
        torch._foreach_copy_(self.into, list(found))
        self.loss += loss.detach()

    def _loss(self, images: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.network.module, self.views, (images,)).float()
        if self.how.mask_absent_labels:
            logits = logits * self.mask
        return F.cross_entropy(logits, labels)


def _views(network: Network, flat: Tensor) -> Iterator[tuple[Parameter, Tensor]]:
    """Every parameter as a view of a slot's vector, filters with channels last."""
    for p in network.parameters:
        part = flat.detach()[p.start : p.end]
        if len(p.shape) == 4:
            out, inside, rows, columns = p.shape
            yield p, part.view(out, rows, columns, inside).permute(0, 3, 1, 2)
        else:
            yield p, part.view(p.shape)


def _longest_first(steps: NDArray[np.int64], slots: int) -> list[list[int]]:
    """Tasks for every slot, each given to the one that is done first."""
    queues: list[list[int]] = [[] for _ in range(slots)]
    load = [0] * slots
    for task in sorted(range(len(steps)), key=lambda i: (-int(steps[i]), i)):
        least = load.index(min(load))
        queues[least].append(task)
        load[least] += int(steps[task])
    return queues
