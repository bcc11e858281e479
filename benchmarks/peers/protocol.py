"""What passes between the measuring process and its workers: files, commands, answers.

The work is in a folder that every worker reads. A command is a line on standard input, an answer
a line of JSON on standard output:

    rounds N        do the next N rounds; answers with the seconds they took
    weights FILE    write the weights as they are now
    end             stop

The owner of the training loop, our code or the library, calls `Gate.next_round` before every round.
Between two blocks it waits there, blocked in a read, so that idle workers take no time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.bench.workloads import Work, Workload

Weights = Callable[[], NDArray[np.float32]]


@dataclass(frozen=True)
class Orders:
    """What a worker is told when it starts."""

    side: str
    folder: Path
    threads: int
    processes: int


def save_work(work: Work, folder: Path) -> None:
    """Write a workload with its data for the workers."""
    arrays = {name: getattr(work, name) for name in ("images", "labels", "cohorts", "initial")}
    np.savez(folder / "work.npz", **arrays)
    (folder / "workload.json").write_text(json.dumps(asdict(work.workload)))


def load_work(folder: Path) -> Work:
    """Read it back."""
    table = json.loads((folder / "workload.json").read_text())
    workload = Workload(**(table | {"shape": tuple(table["shape"])}))
    with np.load(folder / "work.npz") as arrays:
        return Work(workload, **{name: arrays[name] for name in arrays.files})


class Channel:
    """Standard input and output; what libraries print goes to standard error from now on."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def receive(self) -> list[str]:
        """The next command, in words; the end of the input is `end`."""
        return sys.stdin.readline().split() or ["end"]

    def send(self, **answer: Any) -> None:
        """One line of JSON."""
        self._answers.write(json.dumps(answer) + "\n")


class Gate:
    """Lets rounds pass in blocks and times them.

    settle  waits for work that still runs when a block ends (JAX returns early)
    share   tells all processes of a simulator how long the next block is: each calls it with what
            it knows (None without a channel), and all get the same number
    """

    def __init__(
        self,
        channel: Channel | None,
        weights: Weights,
        settle: Callable[[], object] = lambda: None,
        share: Callable[[int | None], int] = lambda count: count or 0,
        **facts: Any,
    ) -> None:
        self.channel, self.weights, self.settle, self.share = channel, weights, settle, share
        self.left = 0
        self._began: float | None = None
        if channel is not None:
            channel.send(ready=True, **facts)

    def next_round(self) -> bool:
        """Call it before every round; False when there is none."""
        if not self.left:
            self._answer()
            self.left = self.share(None if self.channel is None else self._commanded())
            if not self.left:
                return False
            self._began = perf_counter()
        self.left -= 1
        return True

    def _answer(self) -> None:
        if self._began is not None:
            self.settle()
            spent = perf_counter() - self._began
            if self.channel is not None:
                self.channel.send(seconds=spent)

    def _commanded(self) -> int:
        assert self.channel is not None
        while True:
            command, *rest = self.channel.receive()
            if command == "rounds":
                return int(rest[0])
            if command == "weights":
                np.save(" ".join(rest), self.weights())
                self.channel.send(saved=True)
            else:
                return 0
