"""A network as a function of one flat parameter vector."""

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsteer.errors import ConfigurationError


@dataclass(frozen=True)
class Parameter:
    """Where one parameter tensor is in the flat vector."""

    name: str
    shape: torch.Size
    start: int
    end: int


class Network:
    """A module whose parameters are passed in as one (d,) vector and used as views of it."""

    def __init__(self, factory: Callable[[], nn.Module]) -> None:
        self.factory = factory
        self.module = self._build(0).train()
        for name, _ in self.module.named_buffers():
            raise ConfigurationError(
                f"the network has a buffer {name!r}, which averaging updates would corrupt; use "
                "batch norm with track_running_stats=False, or group norm"
            )
        self.parameters: list[Parameter] = []
        start = 0
        for name, value in self.module.named_parameters():
            if not value.requires_grad:
                raise ConfigurationError(
                    f"the network has a frozen parameter {name!r}, which would be trained; keep "
                    "what is frozen out of the module"
                )
            if value._backward_hooks:
                raise ConfigurationError(
                    f"the network has a hook on parameter {name!r}, which would not be called; put "
                    "what it does into the module"
                )
            self.parameters.append(Parameter(name, value.shape, start, start + value.numel()))
            start += value.numel()
        self.dim = start
        if not self.dim:
            raise ConfigurationError("the network has no parameters")

    def initial(self, seed: int) -> Tensor:
        """A fresh (d,) vector, a function of the seed alone; global generators are not touched."""
        values = self._build(seed).parameters()
        return torch.cat([value.detach().reshape(-1).float() for value in values])

    def logits(self, flat: Tensor, images: Tensor) -> Tensor:
        """The module's output under these parameters."""
        views = {p.name: flat[p.start : p.end].view(p.shape) for p in self.parameters}
        return functional_call(self.module, views, (images,))

    def filter_order(
        self, axes: tuple[int, int, int, int], device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Indices that permute the axes (out, in, row, column) of all filters, and back again.

        `flat[there]` has permuted filters, and `flat[there][back]` is `flat`.
        """
        places = torch.arange(self.dim, device=device)
        parts = [places[p.start : p.end].view(p.shape) for p in self.parameters]
        moved = [part.permute(axes) if part.ndim == 4 else part for part in parts]
        there = torch.cat([part.flatten() for part in moved])
        return there, there.argsort()

    def _build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed((seed * 1_000_003 + crc32(b"initial model")) % 2**63)
            return self.factory()
