"""FedJAX: its own `federated_averaging`, on one or more XLA devices of the CPU.

One device is FedJAX's jit backend, several are its pmap backend, which trains a client on each.
If an epoch is a whole number of batches, clients hold their points in its `ClientDataset`, not
shuffled. Otherwise its batches would run over the end of an epoch, unlike those of the other sides.
Images have their channels last, as XLA prefers; weights are converted to torch's layout at the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from benchmarks.peers.protocol import Channel, Gate, Orders
from numpy.typing import NDArray

from fedsteer.bench.workloads import Work, Workload


@dataclass(frozen=True)
class Layer:
    """A dense layer (kernel 0) or a convolution, then its activation, then 2 x 2 pooling."""

    size: int
    activation: str = ""  # relu, tanh or none
    kernel: int = 0
    padding: int = 0
    pool: bool = False


LAYERS = {
    "a": (Layer(64, "relu"), Layer(10)),
    "b": (
        Layer(16, "tanh", kernel=5, padding=2, pool=True),
        Layer(24, "tanh", kernel=5, padding=2, pool=True),
        Layer(32, "tanh", kernel=5, padding=2),
        Layer(256, "tanh"),
        Layer(84, "tanh"),
        Layer(47),
    ),
    "c": (
        Layer(32, "relu", kernel=3),
        Layer(64, "relu", kernel=3, pool=True),
        Layer(128, "relu"),
        Layer(10),
    ),
}
"""The networks of the workloads."""


class StoredOrder:
    """What FedAvg uses of a ClientDataset, for epochs that end with a smaller batch.

    Batches are views that are cut once; FedJAX's own class copies every batch in every round.
    """

    def __init__(self, images: NDArray[Any], labels: NDArray[Any], workload: Workload) -> None:
        cuts = range(0, len(labels), workload.batch)
        self.count, self.epochs = len(labels), workload.epochs
        self.batches = [
            {"x": images[at : at + workload.batch], "y": labels[at : at + workload.batch]}
            for at in cuts
        ]

    def __len__(self) -> int:
        return self.count

    def shuffle_repeat_batch(self, hparams: object) -> Iterator[dict[str, NDArray[Any]]]:
        """All batches of all epochs."""
        for _ in range(self.epochs):
            yield from self.batches


def run(work: Work, orders: Orders, channel: Channel) -> None:
    """Rounds of FedJAX's FedAvg."""
    flags = [f"--xla_force_host_platform_device_count={orders.processes}"]
    if orders.threads == 1:
        flags += ["--xla_cpu_multi_thread_eigen=false", "intra_op_parallelism_threads=1"]
    os.environ["XLA_FLAGS"] = " ".join(flags)  # read when JAX is imported
    os.environ["JAX_PLATFORMS"] = "cpu"
    import fedjax
    import jax
    from fedjax.algorithms import fed_avg

    workload = work.workload
    fedjax.set_for_each_client_backend("pmap" if orders.processes > 1 else "jit")
    images = np.ascontiguousarray(work.images.transpose(0, 2, 3, 1))
    labels = work.labels.astype(np.int32)
    clients = []
    for client in range(workload.clients):
        own: slice = work.own(client)
        if workload.points % workload.batch:
            points = StoredOrder(images[own], labels[own], workload)
        else:
            points = fedjax.ClientDataset({"x": images[own], "y": labels[own]})
        key = jax.random.PRNGKey(client)  # nothing is drawn from it
        clients.append((client, points, key))
    algorithm = fed_avg.federated_averaging(
        jax.grad(make_loss(workload)),
        fedjax.optimizers.sgd(workload.rate),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=workload.batch, num_epochs=workload.epochs, skip_shuffle=True
        ),
    )
    initial = jax.tree_util.tree_map(jax.numpy.array, from_torch(workload, work.initial))
    state = algorithm.init(initial)
    gate = Gate(
        channel,
        lambda: to_torch(workload, state.params),
        settle=lambda: jax.block_until_ready(state.params),
        version=f"fedjax {version('fedjax')}, jax {jax.__version__}",
    )
    round = 0
    while gate.next_round():
        state, _ = algorithm.apply(state, [clients[client] for client in work.cohort(round)])
        round += 1


def make_loss(workload: Workload) -> Any:
    """The mean cross entropy of a batch, as a function of the parameters."""
    import jax
    import jax.numpy as jnp

    activations = {"relu": jax.nn.relu, "tanh": jnp.tanh, "": lambda values: values}

    def loss(parameters: Any, batch: Any, key: Any) -> Any:
        values = batch["x"]
        for layer, (weight, bias) in zip(LAYERS[workload.key], parameters, strict=True):
            if layer.kernel:
                values = jax.lax.conv_general_dilated(
                    values,
                    weight,
                    window_strides=(1, 1),
                    padding=[(layer.padding, layer.padding)] * 2,
                    dimension_numbers=("NHWC", "HWIO", "NHWC"),
                )
            else:
                values = values.reshape(len(values), -1) @ weight
            values = activations[layer.activation](values + bias)
            if layer.pool:
                window = (1, 2, 2, 1)
                values = jax.lax.reduce_window(
                    values, -jnp.inf, jax.lax.max, window, window, "VALID"
                )
        odds = jax.nn.log_softmax(values)
        return -jnp.mean(jnp.take_along_axis(odds, batch["y"][:, None], axis=1))

    return loss


@dataclass(frozen=True)
class Shapes:
    """Weight of a layer in torch's layout; image before it if it is the first dense layer."""

    weight: tuple[int, ...]
    image: tuple[int, int, int] | None = None


def shapes(workload: Workload) -> list[Shapes]:
    """Of every layer; each has one bias per output, too."""
    channels, height, width = workload.shape
    features = 0
    found = []
    for layer in LAYERS[workload.key]:
        if layer.kernel:
            found.append(Shapes((layer.size, channels, layer.kernel, layer.kernel)))
            channels, change = layer.size, 2 * layer.padding - layer.kernel + 1
            height, width = height + change, width + change
            if layer.pool:
                height, width = height // 2, width // 2
        else:
            image = None if features else (channels, height, width)
            features = features or channels * height * width
            found.append(Shapes((layer.size, features), image))
            features = layer.size
    return found


def from_torch(workload: Workload, flat: NDArray[np.float32]) -> list[tuple[Any, Any]]:
    """(weight, bias) of every layer in JAX's layout."""
    found, start = [], 0
    for shape in shapes(workload):
        outputs = shape.weight[0]
        end = start + int(np.prod(shape.weight))
        values, bias = flat[start:end].reshape(shape.weight), flat[end : end + outputs]
        if len(shape.weight) == 4:
            values = values.transpose(2, 3, 1, 0)
        elif shape.image is not None:  # torch flattens images with their channels first
            values = values.reshape(outputs, *shape.image).transpose(2, 3, 1, 0)
            values = values.reshape(-1, outputs)
        else:
            values = values.T
        found.append((np.ascontiguousarray(values), bias))
        start = end + outputs
    return found


def to_torch(workload: Workload, parameters: list[tuple[Any, Any]]) -> NDArray[np.float32]:
    """The inverse of `from_torch`."""
    parts: list[NDArray[np.float32]] = []
    for (values, bias), shape in zip(parameters, shapes(workload), strict=True):
        weight = np.asarray(values)
        if weight.ndim == 4:
            weight = weight.transpose(3, 2, 0, 1)
        elif shape.image is not None:
            channels, height, width = shape.image
            weight = weight.reshape(height, width, channels, -1).transpose(3, 2, 0, 1)
        else:
            weight = weight.T
        parts += [weight.reshape(-1), np.asarray(bias)]
    return np.concatenate(parts)
