"""Large networks on a GPU: steps captured as CUDA graphs, several clients on streams side by side.

A client of a large network keeps a GPU busy only while its big layers run; the small ones, and the
launching of some hundred kernels, leave it idle. So the gradient of one batch (any network, by
autograd, images and filters with channels last) is captured once per batch size. Replaying it costs
one launch, and `SLOTS` clients at a time run side by side on streams of their own.

A slot keeps its weights in float32. Unless `exact`, the network computes on a bfloat16 copy of it,
made by one cast, and the SGD step adds the bfloat16 gradient to the float32 weights. Filters in
the slot are (out, row, column, in), which is how the convolutions want them; they are permuted when
a client starts and back when it ends.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.func import functional_call

from fedsteer.errors import TrainingFailed
from fedsteer.gpu.precision import precision
from fedsteer.training.engines.base import Engine, Losses, longest_first
from fedsteer.training.engines.sequential import naming_by_reference
from fedsteer.training.local import Descent, LocalTraining, Order
from fedsteer.training.loss import cross_entropy
from fedsteer.training.networks import Network, Parameter

SLOTS = 4
WARM_UP = 3
"""Steps before a capture, in which libraries choose their kernels and take their workspace."""


class CapturedEngine(Engine):
    """Trains clients on `SLOTS` streams, their steps replayed from captured graphs."""

    name = "captured"
    joins_runs = True

    def __post_init__(self) -> None:
        self.slots: list[Slot] = []  # made when first needed, because they hold memory

    @classmethod
    def supports(cls, network: Network, options: LocalTraining, device: str) -> str | None:
        return "it needs a GPU" if device == "cpu" else super().supports(network, options, device)

    def _train(self, orders: Sequence[Order]) -> tuple[Tensor, Losses]:
        with naming_by_reference(self, orders), precision(self.exact, self.data.images):
            updates = self.no_updates(len(orders))
            losses = updates.new_zeros(len(orders))
            sizes = [order.schedule(self.options)[1] for order in orders]
            tasks = iter([(orders[i], updates[i], losses[i]) for i in longest_first(orders)])
            self.slots = self.slots or [Slot(self) for _ in range(SLOTS)]
            # Graphs are captured before anything runs: a capture must be alone on the device.
            for size in sorted({int(size) for own in sizes for size in own}):
                for slot in self.slots:
                    slot.capture(size)
            here = torch.cuda.current_stream(updates.device)
            for slot in self.slots:
                slot.stream.wait_stream(here)
            working = {slot: slot.train(tasks) for slot in self.slots}
            while working:
                for slot, own_steps in list(working.items()):
                    with torch.cuda.stream(slot.stream):
                        if not next(own_steps, False):
                            del working[slot]
            for slot in self.slots:
                here.wait_stream(slot.stream)
            return updates, losses.double().cpu().numpy()


class Slot:
    """The buffers and graphs of one client at a time, on a stream of its own."""

    def __init__(self, engine: CapturedEngine) -> None:
        self.network, self.data, self.options = engine.network, engine.data, engine.options
        network, device = self.network, self.data.images.device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.own, self.usual = network.filter_order((0, 2, 3, 1), device)
        self.weights = torch.zeros(network.dim, device=device)
        self.low = self.weights if engine.exact else self.weights.bfloat16()
        self.gradient = torch.zeros_like(self.low)
        self.views = {p.name: view.requires_grad_() for p, view in _views(network, self.low)}
        self.into = [view for _, view in _views(network, self.gradient)]
        self.loss = torch.zeros((), device=device)
        self.mask = torch.ones(1, self.data.classes, device=device)
        # The captured gradient for each batch size, and where its batch goes.
        self.graphs: dict[int, tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}

    def train(self, tasks: Iterator[tuple[Order, Tensor, Tensor]]) -> Iterator[bool]:
        """Take task after task: an order, and where its update and its loss go.

        Yields after every step it has launched. All slots take from the same tasks, so a slot that
        is free takes the next one.
        """
        for order, update, loss in tasks:
            memory = self.weights[None]
            descent = Descent(self.options, [order], lambda flat: flat[:, self.own], memory)
            mask = self.data.label_masks(self.options, [order])
            self.loss.zero_()
            if mask is not None:
                self.mask.copy_(mask)
            for images, labels in self.data.batches(self.options, order):
                graph, its_images, its_labels = self.graphs[len(labels)]
                its_images.copy_(images)
                its_labels.copy_(labels)
                graph.replay()
                # What is added to a gradient is added in float32.
                adds = not order.plain or self.options.weight_decay
                gradient = self.gradient.float() if adds else self.gradient
                descent.step(gradient[None])
                yield True
            torch.index_select(descent.update()[0], 0, self.usual, out=update)
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
        self.graphs[size] = graph, images, labels

    def _gradient(self, images: Tensor, labels: Tensor) -> None:
        if self.low is not self.weights:
            self.low.copy_(self.weights)
        logits = functional_call(self.network.module, self.views, (images,)).float()
        masks = self.options.mask_absent_labels
        loss = cross_entropy(logits, labels, self.mask if masks else None)
        found = torch.autograd.grad(loss, list(self.views.values()))
        torch._foreach_copy_(self.into, list(found))
        self.loss += loss.detach()


def _views(network: Network, flat: Tensor) -> Iterator[tuple[Parameter, Tensor]]:
    """Every parameter as a view of a slot's vector, filters with channels last."""
    for p in network.parameters:
        part = flat.detach()[p.start : p.end]
        if len(p.shape) == 4:
            out, inside, rows, columns = p.shape
            yield p, part.view(out, rows, columns, inside).permute(0, 3, 1, 2)
        else:
            yield p, part.view(p.shape)
