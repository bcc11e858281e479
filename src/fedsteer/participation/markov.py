"""Bursts: a client that takes part tends to stay, a client that is away tends to stay away.

Each client is a two-state chain with a long-run probability p of being on, and it stays on for m
rounds on average: it leaves with chance 1 / m and returns with chance p / (1 - p) / m. The same
chain can be written with redraws: in every round the state is drawn anew with chance
r = 1 / (m (1 - p)), then on with probability p, and is kept otherwise. (On to on:
(1 - r) + r p = 1 - 1/m. Off to on: r p.) Then the state of round t is that of the last redraw
before it, which looking back finds without any history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedsteer.errors import ConfigurationError
from fedsteer.options import option
from fedsteer.participation.base import DrawnProcess, LongRunOptions, Probabilities


@dataclass(frozen=True)
class MarkovOptions(LongRunOptions):
    """Bursts of presence and absence."""

    kind = "markov"
    mean_on: float = option(4.0, "mean number of rounds a client stays", above=0)

    def process(self, clients: int, seed: int) -> Markov:
        return Markov(self.long_run(clients, seed), self.mean_on, seed)


class Markov(DrawnProcess):
    """A two-state chain per client, started from its long-run distribution.

    `mean_on` is the mean number of consecutive rounds a client is present. Independent draws give
    1 / (1 - p); less than that is no burst and is refused. A client with p = 1 is always present.
    """

    def __init__(self, probabilities: ArrayLike, mean_on: float, seed: int = 0) -> None:
        super().__init__(probabilities, seed)
        away = 1 - self.base
        away[away == 0] = 1.0  # always on: a redraw changes nothing
        # The slack admits a mean_on computed as 1 / (1 - p).
        fits = np.isfinite(mean_on) & (mean_on * away >= 1 - 1e-9)
        if not fits.all():
            client = int(fits.argmin())
            raise ConfigurationError(
                f"mean_on must be finite and at least 1 / (1 - p), "
                f"which is {1 / away[client]:.3g} for client {client}; got {mean_on:g}"
            )
        self._redraw = 1 / (mean_on * away)  # r of the module's docstring
        # The last round asked for and its states: a cache that saves looking further back.
        self._known = -1, np.zeros(self.clients, dtype=bool)

    def on(self, round: int) -> NDArray[np.bool_]:
        known_round, known = self._known
        if known_round > round:
            known_round = -1
        on = np.zeros(self.clients, dtype=bool)
        pending = np.ones(self.clients, dtype=bool)
        for past in range(round, known_round, -1):
            redraw: float | Probabilities = self._redraw if past > 0 else 1.0
            chance = self.chance(past)
            drawn = pending & (chance < redraw)
            # Below r the state is drawn anew, below r p it becomes on: one draw serves both.
            on[drawn] = (chance < redraw * self.base)[drawn]
            pending &= ~drawn
            if not pending.any():
                break
        on[pending] = known[pending]  # round 0 leaves none pending
        self._known = round, on
        return on
