"""A linear classifier of digits, its weights as a list of two NumPy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import SGDClassifier

from fedsteer.data import Dirichlet, digits
from fedsteer.draws import generator

Weights = list[NDArray[np.float64]]
CLASSES = np.arange(10)


def zero_weights() -> Weights:
    """Coefficients and intercepts."""
    return [np.zeros((10, 64)), np.zeros(10)]


def partition(
    client: int, clients: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The digits of one client, with skewed labels."""
    images, labels = digits().train()
    rows = Dirichlet(clients=clients, alpha=0.3).divide(labels, seed).indices[client]
    return images[rows].reshape(len(rows), -1).astype(np.float64), labels[rows]


def is_there(client: int, number: int, often: float, rarely: float, seed: int) -> bool:
    """Draw with the client's probability; a function of (seed, round, client)."""
    draw = generator(seed, "is there", round=number, client=client)
    return bool(draw.random() < (rarely if client % 2 else often))


def fit(
    weights: Weights, images: NDArray[np.float64], labels: NDArray[np.int64], rate: float, seed: int
) -> Weights:
    """One pass over the client's data."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=rate, random_state=seed)
    model.partial_fit(images[:1], labels[:1], CLASSES)  # gives the model its shape
    model.coef_, model.intercept_ = (array.copy() for array in weights)
    model.partial_fit(images, labels)
    return [model.coef_, model.intercept_]


def accuracy(weights: Weights) -> float:
    """On the half of the digits that no client holds."""
    images, labels = digits().test()
    scores = images.reshape(len(images), -1) @ weights[0].T + weights[1]
    return float((scores.argmax(1) == labels).mean())
