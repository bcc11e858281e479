"""Who takes part, what it needs, and which threads or processes are tried for it.

Every file here has `run(work, how, channel)`: set up, then rounds through a `Gate` until the end.
A side uses its library as the library's documentation recommends for this kind of work.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

AUTO = 0
"""Threads: as in a run of fedsteer's own; for a GPU, where there is nothing to try."""


@dataclass(frozen=True)
class How:
    """What a worker is told."""

    threads: int
    processes: int
    device: str
    folder: Path


@dataclass(frozen=True)
class Variant:
    """One way to use the cores."""

    label: str
    threads: int
    processes: int = 1


@dataclass(frozen=True)
class Side:
    """A simulator under test."""

    name: str
    title: str
    needs: tuple[str, ...]  # modules that must be importable
    parallel: str = ""  # what `processes` are called, if the library can spread clients over them
    choose: bool = True  # whether threads are ours to try
    alone: bool = True  # whether a single thread is worth a try where there are more cores
    launcher: tuple[str, ...] = ()  # python arguments before the worker, where there are processes
    module: str = ""  # the file here, where it is not the name
    device: str = "cpu"

    def variants(self, cores: int) -> list[Variant]:
        """One thread, a thread per core, and a process per core where there is such a thing."""
        if not self.choose:
            return [Variant("its own choice", AUTO)]
        found = [Variant("1 thread", 1)] if self.alone or cores == 1 else []
        if cores > 1:
            found.append(Variant(f"{cores} threads", cores))
            if self.parallel:
                found.append(Variant(f"{cores} {self.parallel}", 1, cores))
        return found


def installed(side: Side) -> bool:
    """Whether it can run in this environment."""
    if not all(find_spec(module) for module in side.needs):
        return False
    if side.device == "cuda":
        import torch

        return bool(torch.cuda.is_available())
    return True


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node={processes}")
SIDES = {
    side.name: side
    for side in (
        Side("fedsteer", "fedsteer", ("torch",)),
        Side(
            "fedsteer-gpu",
            "fedsteer, GPU",
            ("torch",),
            choose=False,
            module="fedsteer",
            device="cuda",
        ),
        Side("plain", "plain PyTorch loop", ("torch",)),
        Side("pfl", "pfl-research", ("pfl", "torch"), "processes", launcher=TORCHRUN),
        Side("fedjax", "FedJAX", ("fedjax",), "devices"),
        Side("flower", "Flower", ("flwr", "ray", "torch"), "actors", alone=False),
    )
}
