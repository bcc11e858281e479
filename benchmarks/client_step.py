"""Microseconds per client-step of stacked local training, and how far that is from the floor.

    python benchmarks/client_step.py --device cuda

One client-step is one SGD step of one client. For every network the gradients by formula are
checked against torch.func in float64 before anything is timed. The floor counts the operations
of the step at the matrix rate measured here and the fewest bytes it can move (parameters and
activations once each way) at the copy bandwidth measured here; the larger of the two.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from fedsteer.training.formula import FormulaGradient, known_layers
from fedsteer.training.models import make_network
from fedsteer.training.networks import Network
from fedsteer.training.vmapped import VmappedGradient

NETWORKS: dict[str, tuple[str, tuple[int, int, int], int, dict[str, Any]]] = {
    "emnist-cnn": ("emnist-cnn", (1, 28, 28), 47, {}),
    "fashion-cnn": ("fashion-cnn", (1, 28, 28), 10, {}),
    "mlp 784-64-10": ("mlp", (1, 28, 28), 10, {"hidden": [64]}),
}


def seconds(work: Callable[[], object], device: str, least: float = 0.3) -> float:
    """Median time of `work`, warmed up."""

    def once() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    for _ in range(3):
        single = once()
    return median(once() for _ in range(max(5, min(200, int(least / max(single, 1e-6))))))


def ceilings(device: str) -> tuple[float, float]:
    """Bytes per second of a copy (read plus write) and operations per second of a product."""
    size = 1 << 28 if device == "cuda" else 1 << 24
    source = torch.rand(size, device=device)
    target = torch.empty_like(source)
    copy = 8 * size / seconds(lambda: target.copy_(source), device)
    side = 8192 if device == "cuda" else 1024
    left, right = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
    torch.backends.cuda.matmul.allow_tf32 = True
    product = 2 * side**3 / seconds(lambda: left @ right, device)
    torch.backends.cuda.matmul.allow_tf32 = False
    return copy, product


def work_of(network: Network, shape: tuple[int, int, int], batch: int) -> tuple[float, float]:
    """Operations and fewest bytes of one client-step."""
    flops, activations = 0.0, batch * shape[0] * shape[1] * shape[2]
    hooks = []

    def count(module: Any, inputs: Any, output: Tensor) -> None:
        nonlocal flops, activations
        if hasattr(module, "weight"):
            per_output = module.weight.numel() / module.weight.shape[0]
            flops += 3 * 2 * per_output * output.numel()
            activations += output.numel()

    for module in network.module.modules():
        if not list(module.children()):
            hooks.append(module.register_forward_hook(count))
    network.module(torch.zeros(batch, *shape, device=next(network.module.parameters()).device))
    for hook in hooks:
        hook.remove()
    # Parameters are read forward, backward and for the update, and written once; activations are
    # written and read once each way.
    return flops, 4.0 * (4 * network.dim + 4 * activations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--variants", default="formula tf32,formula float32,torch.func")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiles", action="append", default=[], metavar="NAME=VALUE",
                        help="try other tile sizes of fedsteer.training.convolution_kernels")  # fmt: skip
    options = parser.parse_args()
    device, clients, batch = options.device, options.clients, options.batch
    for setting in options.tiles:
        tile, _, value = setting.partition("=")
        setattr(import_module("fedsteer.training.convolution_kernels"), tile, int(value))
    copy, product = ceilings(device)
    print(f"copy {copy / 1e12:.2f} TB/s, product {product / 1e12:.1f} TFLOP/s")
    rows = []
    for name in options.networks.split(","):
        model, shape, classes, settings = NETWORKS[name]
        network = make_network(model, shape, classes, settings)
        network.module.to(device)
        flops, least = work_of(network, shape, batch)
        floor = max(flops / product, least / copy) * 1e6
        flat = torch.stack([network.initial(seed) for seed in range(clients)]).to(device)
        images = torch.rand(clients, batch, *shape, device=device)
        labels = torch.randint(0, classes, (clients, batch), device=device)
        shares = torch.full((clients, batch), 1 / batch, device=device)
        few = slice(0, 4)
        exact, _ = VmappedGradient(network)(
            flat[few].double(), images[few].double(), labels[few], shares[few].double(), None
        )
        for variant in options.variants.split(","):
            torch.backends.cuda.matmul.allow_tf32 = variant.endswith("tf32")
            torch.backends.cudnn.allow_tf32 = False
            layers = known_layers(network, exact=not variant.endswith("tf32"))
            assert layers is not None
            gradient: Any = FormulaGradient(layers)
            if variant == "torch.func":
                gradient = VmappedGradient(network)
            found, _ = gradient(flat[few], images[few], labels[few], shares[few], None)
            error = float((found.double() - exact).norm() / exact.norm())

            moving = flat.clone()

            def step(
                moving: Tensor = moving,
                gradient: Any = gradient,
                batch: tuple[Tensor, ...] = (images, labels, shares),
            ) -> None:
                change, _ = gradient(moving, *batch, None)
                moving.add_(change, alpha=-1e-6)

            spent = seconds(step, device) / clients * 1e6
            rows.append({"network": name, "variant": variant, "microseconds": spent,
                         "floor": floor, "error": error})  # fmt: skip
            print(f"{name:<14} {variant:<16} {spent:9.1f} us/client-step   floor {floor:6.1f}   "
                  f"{spent / floor:5.1f} x   error {error:.1e}")  # fmt: skip
            if options.profile and variant == "formula tf32":
                with torch.profiler.profile() as found_profile:
                    for _ in range(5):
                        step()
                    torch.cuda.synchronize()
                table = found_profile.key_averages().table(sort_by="cuda_time_total", row_limit=14)
                print("\n".join(line[:60] + line[-95:] for line in table.splitlines()))
        torch.backends.cuda.matmul.allow_tf32 = False
    if options.out:
        options.out.write_text(json.dumps({"clients": clients, "batch": batch, "rows": rows}))


if __name__ == "__main__":
    main()
