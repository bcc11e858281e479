"""Accuracy and loss on held-out data: overall, per class, per label group, over clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedsteer.errors import TrainingFailed, first_line
from fedsteer.training.layers.convolution import channels_last
from fedsteer.training.layers.known import is_dense, known_layers
from fedsteer.training.networks import Network

Floats = NDArray[np.float64]
MOST = 2_048  # points at once


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a model."""

    accuracy: float
    loss: float
    class_accuracy: Floats  # (classes,); nan for a class without test points

    def group_accuracy(self, groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
        """Mean class accuracy of each label group."""
        return {name: _mean(self.class_accuracy[list(labels)]) for name, labels in groups.items()}

    def client_accuracy(self, holds: Floats) -> dict[str, float]:
        """Accuracy over clients: each one's is that of its own label mix.

        holds (clients, classes): points of each class; classes without test points do not count.
        The mean over all hides what skew does; the tenth percentile and the minimum show it.
        """
        known = ~np.isnan(self.class_accuracy)
        judged = holds[:, known]
        judged = judged[judged.sum(axis=1) > 0]
        if not len(judged):
            return dict.fromkeys(("mean", "std", "p10", "min"), float("nan"))
        own = judged @ self.class_accuracy[known] / judged.sum(axis=1)
        low = float(np.percentile(own, 10))
        return {"mean": _mean(own), "std": float(own.std()), "p10": low, "min": float(own.min())}


@torch.no_grad()  # type: ignore[untyped-decorator]
def evaluate(
    network: Network, model: Tensor, images: Tensor, labels: Tensor, classes: int
) -> Evaluation:
    """Evaluate in parts of about equal size, with the network in evaluation mode."""
    loss, hits = 0.0, []
    # Known layers do not depend on the order in memory: take the one in which a CPU pools fastest.
    layers = None if images.is_cuda else known_layers(network)
    by_pixel = layers is not None and not is_dense(layers)
    parts = -(-len(images) // MOST)
    batches = zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True)
    network.module.eval()
    try:
        for part, target in batches:
            given = channels_last(part).movedim(-1, -3) if by_pixel else part
            logits = _logits(network, model, given)
            loss += float(F.cross_entropy(logits, target, reduction="sum"))
            hits.append(logits.argmax(dim=-1) == target)
    finally:
        network.module.train()
    hit = torch.cat(hits)
    seen = torch.bincount(labels, minlength=classes)
    right = torch.bincount(labels[hit], minlength=classes)
    return Evaluation(
        accuracy=float(hit.double().mean()),
        loss=loss / len(images),
        class_accuracy=(right.double() / seen).cpu().numpy(),
    )


def _logits(network: Network, model: Tensor, images: Tensor) -> Tensor:
    try:
        logits = network.logits(model, images)
    except Exception as error:
        raise TrainingFailed(f"the network failed in evaluation: {first_line(error)}") from error
    if not isinstance(logits, Tensor):
        kind = type(logits).__name__
        raise TrainingFailed(f"the network gave {kind} in evaluation, not a tensor of logits")
    return logits


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
