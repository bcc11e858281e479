"""What is done: three workloads that every simulator can do in exactly the same way.

Plain SGD on batches in stored order, no dropout, everybody with equally many points and a global
rate of 1: the new model is the mean of the local ones, so final weights can be compared.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Layer:
    """A dense layer (kernel 0) or a convolution, then its activation, then 2 x 2 pooling."""

    size: int
    activation: str = ""  # relu, tanh or none
    kernel: int = 0
    padding: int = 0
    pool: bool = False


@dataclass(frozen=True)
class Workload:
    """One federated task."""

    key: str
    title: str
    model: str  # as fedsteer's make_network takes it; the same as `layers`
    layers: tuple[Layer, ...]
    shape: tuple[int, int, int]
    classes: int
    clients: int
    points: int
    cohort: int
    batch: int
    epochs: int
    rate: float = 0.1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @staticmethod
    def of(table: dict[str, Any]) -> Workload:
        """The inverse of `as_dict`."""
        layers = tuple(Layer(**layer) for layer in table["layers"])
        return Workload(**(table | {"layers": layers, "shape": tuple(table["shape"])}))

    def parameter_shapes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Weight and bias of every layer, as torch orders and lays them out."""
        channels, height, width = self.shape
        features = 0
        shapes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for layer in self.layers:
            if layer.kernel:
                weight: tuple[int, ...] = (layer.size, channels, layer.kernel, layer.kernel)
                channels, shrink = layer.size, 2 * layer.padding - layer.kernel + 1
                height, width = height + shrink, width + shrink
                if layer.pool:
                    height, width = height // 2, width // 2
            else:
                weight = (layer.size, features or channels * height * width)
                features = layer.size
            shapes.append((weight, (layer.size,)))
        return shapes


MLP = Workload(
    key="a",
    title="MLP 784-64-10, 100 clients x 100 points, 10 active, batch 20, 1 epoch",
    model="mlp",
    layers=(Layer(64, "relu"), Layer(10)),
    shape=(1, 28, 28),
    classes=10,
    clients=100,
    points=100,
    cohort=10,
    batch=20,
    epochs=1,
)
EMNIST = Workload(
    key="b",
    title="EMNIST CNN, 100 clients x 100 points, 10 active, batch 64, 5 epochs",
    model="emnist-cnn",
    layers=(
        Layer(16, "tanh", kernel=5, padding=2, pool=True),
        Layer(24, "tanh", kernel=5, padding=2, pool=True),
        Layer(32, "tanh", kernel=5, padding=2),
        Layer(256, "tanh"),
        Layer(84, "tanh"),
        Layer(47),
    ),
    shape=(1, 28, 28),
    classes=47,
    clients=100,
    points=100,
    cohort=10,
    batch=64,
    epochs=5,
)
CIFAR = Workload(
    key="c",
    title="CNN of pfl's CIFAR-10, no dropout, 1000 clients x 50, 50 active, batch 10, 1 epoch",
    model="fedsteer.bench.networks:pfl_cnn",
    layers=(
        Layer(32, "relu", kernel=3),
        Layer(64, "relu", kernel=3, pool=True),
        Layer(128, "relu"),
        Layer(10),
    ),
    shape=(3, 32, 32),
    classes=10,
    clients=1_000,
    points=50,
    cohort=50,
    batch=10,
    epochs=1,
    rate=0.001,  # pfl takes 0.1, at which rounding grows to 1e-3 of the weights in ten rounds
)
WORKLOADS = {workload.key: workload for workload in (MLP, EMNIST, CIFAR)}
