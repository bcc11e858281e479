"""Bursts: a client that is there tends to stay, one that is away tends to stay away.

Each client is a two-state chain with a given long-run probability p of being on and a given mean
number m of rounds it stays on, so it leaves with chance 1 / m and returns with chance
p / (1 - p) / m. The same chain reads: in every round the client's state is *drawn anew* with
chance r = 1 / (m (1 - p)), on with probability p, and is otherwise kept. (On to on:
(1 - r) + r p = 1 - 1/m. Off to on: r p.) In this form the state of round t is that of the
last round at which it was drawn anew, so it can be found by looking back and needs no history.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsteer import draws
from fedsteer.errors import ConfigurationError
from fedsteer.participation.base import (
    ClientNumbers,
    Probabilities,
    checked_probabilities,
    checked_round,
    checked_seed,
)


@dataclass(frozen=True, eq=False)
class Markov:
    """A two-state chain per client, started from its long-run distribution.

    `mean_on` is the average number of consecutive rounds a client is present, one value or one per
    client. Independent draws would give 1 / (1 - p); less than that is no burst and is
    refused. A client with p = 1 is always there.
    """

    probabilities: Probabilities
    mean_on: float | Probabilities
    seed: int = 0
    _redraw: Probabilities = field(init=False, repr=False)  # r of the module's docstring
    # A round and its states: only saves looking further back, never changes what is found.
    _known: list[tuple[int, NDArray[np.bool_]]] = field(
        init=False, repr=False, default_factory=list
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "probabilities", checked_probabilities(self.probabilities))
        checked_seed(self.seed)
        mean_on = np.asarray(self.mean_on, dtype=np.float64)
        if mean_on.shape not in ((), (self.clients,)):
            raise ConfigurationError("mean_on must be one number, or one per client")
        mean_on = np.broadcast_to(mean_on, (self.clients,))
        away = 1 - self.probabilities
        away[away == 0] = 1.0  # always on: being drawn anew changes nothing
        # The slack admits a mean_on that was computed as 1 / (1 - p).
        fits = np.isfinite(mean_on) & (mean_on * away >= 1 - 1e-9)
        if not fits.all():
            client = int(fits.argmin())
            raise ConfigurationError(
                f"mean_on must be finite and at least 1 / (1 - p), "
                f"which is {1 / away[client]:.3g} for client {client}; got {mean_on[client]:g}"
            )
        object.__setattr__(self, "mean_on", mean_on)
        object.__setattr__(self, "_redraw", 1 / (mean_on * away))

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.probabilities)

    def present(self, round: int) -> ClientNumbers:
        """The clients whose chain is on in this round."""
        checked_round(round)
        return np.flatnonzero(self._states(round))

    def _states(self, round: int) -> NDArray[np.bool_]:
        known_round, known = self._known[0] if self._known else (-1, None)
        if known_round > round:
            known_round, known = -1, None
        on = np.zeros(self.clients, dtype=bool)
        pending = np.ones(self.clients, dtype=bool)
        for past in range(round, known_round, -1):
            redraw: float | Probabilities = self._redraw if past > 0 else 1.0
            chance = draws.generator(self.seed, "participation", round=past).random(self.clients)
            drawn = pending & (chance < redraw)
            # Below r it is drawn anew, and below r p it comes out on: one number serves for both.
            on[drawn] = (chance < redraw * self.probabilities)[drawn]
            pending &= ~drawn
            if not pending.any():
                break
        if known is not None:
            on[pending] = known[pending]
        self._known[:] = [(round, on)]
        return on
