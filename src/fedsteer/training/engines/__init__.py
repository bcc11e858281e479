"""The engines of local training, and how one is chosen.

An engine trains the clients of a list of orders. All engines take the same batches and make the
same steps (`training.local`), so they differ in how they take gradients and in what runs at the
same time. Their results agree up to rounding, and tests compare each with `sequential`.

    sequential   one client after the other, by autograd: the reference, which can do everything
    threaded     CPU: one thread per client, gradients by formula; plain stacks of convolutions
    batched      all clients at once, parameters stacked, gradients by formula (`training.layers`)
    dense        part of `batched`, for wide dense networks on a CPU: never touches the first
                 layer's weights in a step
    captured     GPU: any network; autograd's step as a CUDA graph, clients on several streams

run.engine = "auto" chooses by network, options of local training, device and precision, never by
measuring (`choose_engine`). The choice is written to the manifest and kept when a run is resumed,
so numbers are reproducible. `Engine.supports` says what an engine cannot do.
"""

from fedsteer.errors import ConfigurationError, unknown
from fedsteer.training.engines.base import Engine
from fedsteer.training.engines.batched import BatchedEngine
from fedsteer.training.engines.captured import CapturedEngine
from fedsteer.training.engines.sequential import SequentialEngine
from fedsteer.training.engines.threaded import ThreadedEngine
from fedsteer.training.layers.known import is_dense, known_layers, mixes_samples
from fedsteer.training.local import LocalTraining, TrainingData
from fedsteer.training.networks import Network

ENGINES: dict[str, type[Engine]] = {
    engine.name: engine
    for engine in (SequentialEngine, ThreadedEngine, BatchedEngine, CapturedEngine)
}
OLD_NAMES = {"stacked": "batched"}  # in older configurations and manifests


def choose_engine(network: Network, options: LocalTraining, device: str, exact: bool = True) -> str:
    """The fastest engine that can do it, else sequential; `exact`: a GPU multiplies in float32."""
    layers, on_gpu = known_layers(network), device != "cpu"
    best: type[Engine] = CapturedEngine if on_gpu else ThreadedEngine
    if layers is not None:
        cudnn_is_faster = exact and mixes_samples(layers)  # networks that normalise, in float32
        if is_dense(layers) or (on_gpu and not cudnn_is_faster):
            best = BatchedEngine
    return best.name if best.supports(network, options, device) is None else SequentialEngine.name


def choose_threads(network: Network, cores: int) -> int:
    """One thread for dense networks, for which more are mostly in the way; else up to four."""
    layers = known_layers(network)
    return 1 if layers is not None and is_dense(layers) else min(cores, 4)


def make_engine(
    name: str, network: Network, data: TrainingData, options: LocalTraining, exact: bool = True
) -> Engine:
    """An engine by name, or "auto"; `exact` False allows shorter numbers in products on a GPU."""
    device = data.images.device.type
    if name == "auto":
        name = choose_engine(network, options, device, exact)
    engine = ENGINES.get(OLD_NAMES.get(name, name))
    if engine is None:
        raise unknown("engine", name, ("auto", *ENGINES))
    reason = engine.supports(network, options, device)
    if reason is not None:
        raise ConfigurationError(
            f"run.engine={name} cannot train this: {reason}; run.engine=sequential trains anything"
        )
    return engine(network, data, options, exact)


__all__ = ["ENGINES", "Engine", "choose_engine", "choose_threads", "make_engine"]
