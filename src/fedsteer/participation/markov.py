"""Bursts: a client that takes part tends to stay, a client that is away tends to stay away.

Each client is a two-state chain with a long-run probability p of being on, and it stays on for m
rounds on average: it leaves with chance 1 / m and returns with chance p / (1 - p) / m. The same
chain can be written with redraws: in every round the state is drawn anew with chance
r = 1 / (m (1 - p)), then on with probability p, and is kept otherwise. (On to on:
(1 - r) + r p = 1 - 1/m. Off to on: r p.) Then the state of round t is that of the last redraw
before it, which looking back finds without any history.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsteer import draws
from fedsteer.errors import ConfigurationError
from fedsteer.options import option
from fedsteer.participation.base import (
    ClientNumbers,
    LongRunOptions,
    Probabilities,
    check_whole,
    checked_probabilities,
)


@dataclass(frozen=True)
class MarkovOptions(LongRunOptions):
    """Bursts of presence and absence."""

    kind = "markov"
    mean_on: float = option(4.0, "mean number of rounds a client stays", above=0)

    def process(self, clients: int, seed: int) -> Markov:
        """A two-state chain per client."""
        return Markov(self.long_run(clients, seed), self.mean_on, seed=seed)


@dataclass(frozen=True, eq=False)
class Markov:
    """A two-state chain per client, started from its long-run distribution.

    `mean_on` is the mean number of consecutive rounds a client is present: one value, or one per
    client. Independent draws give 1 / (1 - p); less than that is no burst and is refused.
    A client with p = 1 is always present.
    """

    probabilities: Probabilities
    mean_on: float | Probabilities
    seed: int = 0
    _redraw: Probabilities = field(init=False, repr=False)  # r of the module's docstring
    # The last round asked for and its states: a cache that saves looking further back.
    _known: list[tuple[int, NDArray[np.bool_]]] = field(
        init=False, repr=False, default_factory=list
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "probabilities", checked_probabilities(self.probabilities))
        check_whole("seed", self.seed)
        mean_on = np.asarray(self.mean_on, dtype=np.float64)
        if mean_on.shape not in ((), (self.clients,)):
            raise ConfigurationError("mean_on must be one number, or one per client")
        mean_on = np.broadcast_to(mean_on, (self.clients,))
        away = 1 - self.probabilities
        away[away == 0] = 1.0  # always on: a redraw changes nothing
        # The slack admits a mean_on computed as 1 / (1 - p).
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
        check_whole("round", round)
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
            # Below r the state is drawn anew, below r p it becomes on: one draw serves both.
            on[drawn] = (chance < redraw * self.probabilities)[drawn]
            pending &= ~drawn
            if not pending.any():
                break
        if known is not None:
            on[pending] = known[pending]
        self._known[:] = [(round, on)]
        return on
