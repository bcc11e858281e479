"""Clients side by side on the cores of a CPU, each by one thread, gradients by formula.

One thread takes one client at a time and computes it alone, so nobody waits for anybody in the
middle of a product, and a client's numbers depend neither on how many threads there are nor on
which one took it. Torch gives the interpreter's lock back while it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedsteer.draws import generator
from fedsteer.errors import FedsteerError, TrainingFailed, first_line
from fedsteer.training.direct import DirectGradient
from fedsteer.training.layers import Sink
from fedsteer.training.local import (
    Job,
    Trained,
    Trainer,
    augmented,
    batches,
    descend,
)


@dataclass(eq=False)
class Threaded(Trainer):
    """Train clients side by side, on as many threads as torch was given."""

    name: ClassVar[str] = "threaded"
    gradient: DirectGradient

    def train(
        self, model: Tensor, jobs: Sequence[Job], round: int, proximal: float = 0.0
    ) -> Trained:
        """Every job from its start model (default: `model`); `round` keys the random draws."""
        updates = model.new_empty((len(jobs), self.network.dim))
        steps, losses = np.zeros(len(jobs), np.int64), np.zeros(len(jobs))

        def carry_out(place: int) -> None:
            steps[place], losses[place] = self._client(
                model, jobs[place], round, proximal, updates[place]
            )

        sizes = [len(self.data.clients[job.client]) for job in jobs]
        longest_first = sorted(range(len(jobs)), key=lambda place: (-sizes[place], place))
        with _workers(len(jobs)) as workers:
            futures = {place: workers.submit(carry_out, place) for place in longest_first}
            for place, job in enumerate(jobs):
                try:
                    futures[place].result()
                except FedsteerError:
                    raise
                except Exception as error:
                    raise TrainingFailed(
                        f"client {job.client} failed in local training: {first_line(error)}"
                    ) from error
        return Trained(updates, steps, losses)

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _client(
        self, model: Tensor, job: Job, round: int, proximal: float, update: Tensor
    ) -> tuple[int, float]:
        """One client; `update` receives start - end."""
        data, how = self.data, self.how
        points = data.clients[job.client]
        start = model if job.start is None else job.start
        weights = start.clone()
        velocity = torch.zeros_like(weights) if how.momentum else None
        mask = data.label_mask(points) if how.mask_absent_labels else None
        pull = (proximal, start) if proximal else None
        plain = not (how.momentum or how.weight_decay or proximal) and job.correction is None
        gradient = weights if plain else torch.empty_like(weights)
        sink = Sink(gradient, adds=plain, scale=-how.rate if plain else 1.0)
        flips = generator(self.seed, "augment", round=round, client=job.client)
        schedule = batches(how, points, self.seed, round, job.client)
        total = 0.0
        for batch in schedule:
            picked = torch.as_tensor(batch)
            images = data.images.index_select(0, picked)
            if how.augment == "crop-flip":
                images = augmented(images, flips)
            total += self.gradient(weights, images, data.labels[picked], mask, sink)
            if not plain:
                descend(how, weights, gradient, velocity, pull, job.correction)
        torch.sub(start, weights, out=update)
        return len(schedule), total / len(schedule)


@contextmanager
def _workers(most: int) -> Iterator[ThreadPoolExecutor]:
    """Threads whose products take one core each; whatever fails ends them before it goes on."""
    most = max(1, min(torch.get_num_threads(), most))
    # A thread's own number is set in it; a library's number for all threads is set with it.
    with using(1):
        workers = ThreadPoolExecutor(most, "client", torch.set_num_threads, (1,))
        try:
            yield workers
        finally:
            workers.shutdown(cancel_futures=True)


class using:
    """A block with so many threads for torch's products.

    No generator: that would take as long as a short product.
    """

    def __init__(self, threads: int) -> None:
        self.threads = self.before = threads

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        if self.before != self.threads:
            torch.set_num_threads(self.threads)

    def __exit__(self, *error: object) -> None:
        if self.before != self.threads:
            torch.set_num_threads(self.before)
