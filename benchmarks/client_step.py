"""Microseconds per client-step of stacked local training, and how far that is from the floor.

    python benchmarks/client_step.py --device cuda

One client-step is one SGD step of one client. For every network the gradients by formula are
checked against torch.func in float64 before anything is timed. The floor is the larger of two
times: the operations of the step at the matrix rate, and the fewest bytes it can move (parameters
and activations once each way) at the copy bandwidth, both rates measured in the same run.
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
from torch.func import grad_and_value, vmap

from fedsteer.training import Network, make_network
from fedsteer.training.layers.formula import FormulaGradient

NETWORKS: dict[str, tuple[str, tuple[int, int, int], int, dict[str, Any]]] = {
    "emnist-cnn": ("emnist-cnn", (1, 28, 28), 47, {}),
    "fashion-cnn": ("fashion-cnn", (1, 28, 28), 10, {}),
    "mlp 784-64-10": ("mlp", (1, 28, 28), 10, {"hidden": [64]}),
    "preact-resnet18": ("preact-resnet18", (3, 32, 32), 10, {}),
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


def ceilings(device: str) -> tuple[float, dict[str, float]]:
    """Bytes per second of a copy (read plus write), operations per second of products."""
    size = 1 << 28 if device == "cuda" else 1 << 24
    source = torch.rand(size, device=device)
    target = torch.empty_like(source)
    copy = 8 * size / seconds(lambda: target.copy_(source), device)
    side = 8192 if device == "cuda" else 1024
    left, right = torch.rand(side, side, device=device), torch.rand(side, side, device=device)
    rates = {}
    for kind in ("float32", "tf32", "bfloat16"):
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        one, other = (m.bfloat16() if kind == "bfloat16" else m for m in (left, right))
        rates[kind] = 2 * side**3 / seconds(lambda a=one, b=other: a @ b, device)
    torch.backends.cuda.matmul.allow_tf32 = False
    return copy, rates


def work_of(
    network: Network, shape: tuple[int, int, int], batch: int, width: int
) -> tuple[float, float]:
    """Operations and fewest bytes of one client-step, activations `width` bytes each."""
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
    return flops, 4.0 * 4 * network.dim + width * 4.0 * activations


class VmappedGradient:
    """The same gradients by torch.func, of any network."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def arrange(self, flat: Tensor) -> Tensor:
        return flat

    def restore(self, flat: Tensor) -> Tensor:
        return flat

    def __call__(
        self, flat: Tensor, images: Tensor, labels: Tensor, weights: Tensor, masks: None
    ) -> tuple[Tensor, Tensor]:
        gradient, losses = vmap(grad_and_value(self._loss))(flat, images, labels, weights)
        return gradient, losses

    def _loss(self, flat: Tensor, images: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        log_odds = torch.log_softmax(self.network.logits(flat, images), dim=-1)
        return -(log_odds.gather(-1, labels.unsqueeze(-1)).squeeze(-1) * weights).sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--variants", default="fast,float32,torch.func")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tiles", action="append", default=[], metavar="NAME=VALUE",
                        help="try other tile sizes of the convolution kernels")  # fmt: skip
    options = parser.parse_args()
    device, clients, batch = options.device, options.clients, options.batch
    for setting in options.tiles:
        tile, _, value = setting.partition("=")
        setattr(import_module("fedsteer.training.layers.convolution_kernels"), tile, int(value))
    copy, products = ceilings(device)
    words = ", ".join(f"{kind} {rate / 1e12:.0f}" for kind, rate in products.items())
    print(f"copy {copy / 1e12:.2f} TB/s, products in TFLOP/s: {words}")
    rows = []
    for name in options.networks.split(","):
        model, shape, classes, settings = NETWORKS[name]
        network = make_network(model, shape, classes, settings)
        network.module.to(device)
        flat = torch.stack([network.initial(seed) for seed in range(clients)]).to(device)
        images = torch.rand(clients, batch, *shape, device=device)
        labels = torch.randint(0, classes, (clients, batch), device=device)
        shares = torch.full((clients, batch), 1 / batch, device=device)
        given = (images, labels, shares)
        few = slice(0, 2)
        exact, _ = VmappedGradient(network)(
            flat[few].double(), images[few].double(), labels[few], shares[few].double(), None
        )
        for variant in options.variants.split(","):
            gradient: Any = VmappedGradient(network)
            if variant != "torch.func":
                gradient = FormulaGradient(network, device, exact=variant != "fast")
            torch.backends.cuda.matmul.allow_tf32 = variant == "fast"
            torch.backends.cudnn.allow_tf32 = False
            kind = "float32"
            if variant == "fast":
                kind = "bfloat16" if getattr(gradient, "shortens", False) else "tf32"
            arranged = gradient.arrange(flat)
            found, _ = gradient(arranged[few], *(part[few] for part in given), None)
            found = gradient.restore(found)
            error = float((found.double() - exact).norm() / exact.norm())

            def step(
                moving: Tensor = arranged, gradient: Any = gradient, given: Any = given
            ) -> None:
                change, _ = gradient(moving, *given, None)
                moving.add_(change, alpha=-1e-6)

            spent = seconds(step, device) / clients * 1e6
            flops, least = work_of(network, shape, batch, 2 if kind == "bfloat16" else 4)
            floor = max(flops / products[kind], least / copy) * 1e6
            rows.append({"network": name, "variant": variant, "numbers": kind,
                         "microseconds": spent, "floor": floor, "error": error})  # fmt: skip
            print(f"{name:<16} {variant:<11} {kind:<9} {spent:9.1f} us/client-step   "
                  f"floor {floor:6.1f}   {spent / floor:5.1f} x   error {error:.1e}",
                  flush=True)  # fmt: skip
            if options.profile and variant == "fast":
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
