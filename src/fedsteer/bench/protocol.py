"""A worker's side of the talk: one command a line in, one line of JSON out.

    rounds N        do the next N rounds and say how many seconds they took
    weights FILE    write the weights as they are now
    end             stop

Whoever owns the loop, we or the library, calls `Gate.next_round` before every round. Between two
blocks it waits there for a command, blocked in a read, so that idle workers take no time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = Callable[[], NDArray[np.float32]]


class Channel:
    """Standard input and output; what libraries print goes to standard error from now on."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)

    def receive(self) -> list[str]:
        """The next command, in words; an end of input is the end."""
        return sys.stdin.readline().split() or ["end"]

    def send(self, **answer: Any) -> None:
        """One line of JSON."""
        self._answers.write(json.dumps(answer) + "\n")


class Gate:
    """Lets rounds pass in blocks and times them.

    `settle` waits for work that is still under way when a block ends (JAX returns early). `share`
    tells the processes of one simulator how long the next block is: all of them call it with what
    they know (None in those without a channel) and get the same number.
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
