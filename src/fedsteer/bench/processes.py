"""The other end of the talk: worker processes, one for each simulator."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.bench.sides import AUTO, Side, Variant

PATIENCE = 300.0
"""Seconds without an answer after which a worker counts as stuck."""
SOURCE = Path(__file__).resolve().parents[2]


class WorkerFailed(Exception):
    """A worker died, or does not answer; the message ends with its last words."""


@dataclass
class Worker:
    """A simulator that is ready and waits; `log` is what it printed."""

    side: Side
    variant: Variant
    folder: Path
    python: str
    patience: float = PATIENCE
    facts: dict[str, Any] = field(default_factory=dict)
    start_up: float = 0.0

    def __post_init__(self) -> None:
        number, name = tempfile.mkstemp(f"-{self.side.name}.log", dir=self.folder)
        self.log = Path(name)
        self._rest = b""
        began = time.perf_counter()
        with os.fdopen(number, "wb") as log:
            self.process = subprocess.Popen(
                self._command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment(),
                start_new_session=True,  # so that its own children can be ended with it
            )
        try:
            self.facts = self._answer()
        except BaseException:
            self.close(0)
            raise
        self.start_up = time.perf_counter() - began

    def rounds(self, count: int) -> float:
        """Seconds that the next rounds take."""
        return float(self._ask(f"rounds {count}")["seconds"])

    def weights(self) -> NDArray[np.float32]:
        """The model as it is now."""
        path = self.log.with_suffix(".npy")
        self._ask(f"weights {path}")
        found: NDArray[np.float32] = np.load(path)
        path.unlink()
        return found

    def close(self, grace: float = 15.0) -> None:
        """Ask it to stop; after a while, insist."""
        assert self.process.stdin is not None and self.process.stdout is not None
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

    def _command(self) -> list[str]:
        launcher = self.side.launcher if self.variant.processes > 1 else ()
        numbers = (str(self.variant.threads), str(self.variant.processes))
        return [
            self.python,
            *(word.format(processes=self.variant.processes) for word in launcher),
            *("-m", "fedsteer.bench.worker", self.side.module or self.side.name),
            *(str(self.folder), *numbers, self.side.device),
        ]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        paths = [str(SOURCE), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        if self.variant.threads != AUTO:
            environment["OMP_NUM_THREADS"] = str(self.variant.threads)
        return environment

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
        return WorkerFailed(f"{self.side.title} ({self.variant.label}) {what}: {last}")
