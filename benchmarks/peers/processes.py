"""The simulators that take part, and a worker process for each."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.measure import Side
from numpy.typing import NDArray

from fedsteer.bench.sides import threads_to_try
from fedsteer.bench.workloads import Work

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0
"""Seconds without an answer after which a worker counts as stuck."""


@dataclass(frozen=True)
class Variant:
    """One way to use the cores."""

    label: str
    threads: int
    processes: int = 1


@dataclass(frozen=True)
class Peer:
    """A simulator, and the ways it documents to use several cores."""

    name: str
    title: str
    module: str  # below `sides`
    parallel: str = ""  # what `processes` are called, if it can spread clients over them
    single: bool = True  # whether one thread is worth a try if there are more cores
    launcher: tuple[str, ...] = ()  # arguments of Python before the worker, for several processes

    def variants(self, cores: int) -> list[Variant]:
        """One thread, a thread per core, and a process per core if it offers that."""
        found = [Variant(*threads) for threads in threads_to_try(cores).items()]
        if cores > 1 and not self.single:
            found = found[1:]
        if cores > 1 and self.parallel:
            found.append(Variant(f"{cores} {self.parallel}", 1, cores))
        return found

    def side(self, python: str, folder: Path, cores: int) -> Side:
        """As the measuring core takes it; `folder` holds the work."""

        def start(work: Work, variant: Variant) -> Worker:
            return Worker(self, variant, folder, python)

        ways = {one.label: partial(start, variant=one) for one in self.variants(cores)}
        return Side(name=self.name, title=self.title, ways=ways)


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node={processes}")
PEERS = {
    peer.name: peer
    for peer in (
        Peer("fedsteer", "fedsteer", module="own"),
        Peer("plain", "plain PyTorch loop", module="own"),
        Peer("pfl", "pfl-research", module="pfl", parallel="processes", launcher=TORCHRUN),
        Peer("fedjax", "FedJAX", module="fedjax", parallel="devices"),
        Peer("flower", "Flower", module="flower", parallel="actors", single=False),
    )
}


class WorkerFailed(RuntimeError):
    """A worker died or does not answer; the message ends with the last line it printed."""


class Worker:
    """A contestant in a process of its own; `log` is what it printed."""

    def __init__(
        self, peer: Peer, variant: Variant, folder: Path, python: str, patience: float = PATIENCE
    ) -> None:
        self.variant, self.patience = variant, patience
        number, name = tempfile.mkstemp(f"-{peer.name}.log", dir=folder)
        self.log = Path(name)
        self._rest = b""
        with os.fdopen(number, "wb") as log:
            self.process = subprocess.Popen(
                command(peer, variant, folder, python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(variant.threads),
                start_new_session=True,  # so that its own children can be ended with it
            )
        try:
            self.facts = self._answer()
        except BaseException:
            self.close(0)
            raise

    def rounds(self, count: int) -> float:
        """Do the next rounds; the seconds they took."""
        return float(self._ask(f"rounds {count}")["seconds"])

    def weights(self) -> NDArray[np.float32]:
        """The model as it is now."""
        path = self.log.with_suffix(".npy")
        self._ask(f"weights {path}")
        found: NDArray[np.float32] = np.load(path)
        path.unlink()
        return found

    def close(self, grace: float = 15.0) -> None:
        """Ask it to stop; kill it after a while."""
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.stdin.closed:
            return
        with suppress(OSError):
            self.process.stdin.write(b"end\n")
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(grace)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def _ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{command}\n".encode())
            self.process.stdin.flush()
        except OSError:
            raise self._failed("died") from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        until = time.monotonic() + self.patience
        while b"\n" not in self._rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise self._failed(f"did not answer for {self.patience:.0f} s")
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            if not part:
                raise self._failed("died")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _failed(self, what: str) -> WorkerFailed:
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        last = lines[-1].strip() if lines else "it printed nothing"
        return WorkerFailed(f"({self.variant.label}) {what}: {last}")


def command(peer: Peer, variant: Variant, folder: Path, python: str) -> list[str]:
    """The command line of a worker."""
    launcher = peer.launcher if variant.processes > 1 else ()
    return [
        python,
        *(word.format(processes=variant.processes) for word in launcher),
        *("-m", "benchmarks.peers.worker", peer.module, peer.name, str(folder)),
        *(str(variant.threads), str(variant.processes)),
    ]


def _environment(threads: int) -> dict[str, str]:
    paths = (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": str(threads),
    }
