"""The reference engine: one client at a time, gradients by autograd, batch after batch.

Slow, obvious, and it names the client at which something fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsteer.draws import generator
from fedsteer.errors import FedsteerError, TrainingFailed, first_line
from fedsteer.gpu.precision import precision
from fedsteer.training.local import (
    Job,
    Trained,
    Trainer,
    augmented,
    batches,
    descend,
)


class Sequential(Trainer):
    """Train clients one after the other."""

    name: ClassVar[str] = "sequential"

    def train(
        self, model: Tensor, jobs: Sequence[Job], round: int, proximal: float = 0.0
    ) -> Trained:
        """Every job from its start model (default: `model`); `round` keys the random draws."""
        updates = model.new_empty((len(jobs), self.network.dim))
        steps, losses = np.zeros(len(jobs), np.int64), np.zeros(len(jobs))
        for place, job in enumerate(jobs):
            # Dropout and the like draw from torch's generator: make that this client's own.
            draw = generator(self.seed, "network", round=round, client=job.client)
            try:
                own = [model.device] if model.is_cuda else []
                with torch.random.fork_rng(devices=own), precision(self.exact, model):
                    torch.manual_seed(int(draw.integers(2**63)))
                    updates[place], steps[place], losses[place] = self._client(
                        model, job, round, proximal
                    )
            except FedsteerError:
                raise
            except Exception as error:
                raise TrainingFailed(
                    f"client {job.client} failed in local training: {first_line(error)}"
                ) from error
        return Trained(updates, steps, losses)

    def _client(
        self, model: Tensor, job: Job, round: int, proximal: float
    ) -> tuple[Tensor, int, float]:
        data, how = self.data, self.how
        start = model if job.start is None else job.start
        weights = start.clone()
        velocity = torch.zeros_like(weights) if how.momentum else None
        mask = data.label_mask(data.clients[job.client]) if how.mask_absent_labels else None
        pull = (proximal, start) if proximal else None
        flips = generator(self.seed, "augment", round=round, client=job.client)
        schedule = batches(how, data.clients[job.client], self.seed, round, job.client)
        total = 0.0
        for batch in schedule:
            picked = torch.as_tensor(batch, device=data.images.device)
            images = data.images[picked]
            if how.augment == "crop-flip":
                images = augmented(images, flips)
            leaf = weights.detach().requires_grad_()
            logits = self.network.logits(leaf, images)
            if mask is not None:
                logits = logits * mask
            loss = F.cross_entropy(logits, data.labels[picked])
            (gradient,) = torch.autograd.grad(loss, leaf)
            total += float(loss.detach())
            descend(how, weights, gradient, velocity, pull, job.correction)
        return start - weights, len(schedule), total / len(schedule)
