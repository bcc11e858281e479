"""One round as it arrives (`Round`), and as the rules compute with it once checked (`Active`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fedsteer.steering.kernels import Array, Flags, Floats, Integers, Kernels, Pass
from fedsteer.steering.roster import ClientId
from fedsteer.values import value

LARGEST_COUNT = 1e15
"""Points or steps of a client: sums of such numbers are exact, and no product leaves the range."""
NOT_FINITE = "sent a non-finite update, or one too long for its length to be a number"


@value
class Round:
    """What the server has in hand at the end of a round.

    number          1, 2, 3, ...; must rise from step to step
    clients         ids (int or str) of whoever answered
    updates         (m, d) NumPy or torch, w_sent - w_returned, one row per client; or a sequence
                    of m vectors, which are read where they lie if the model is large
    probabilities   (m,) p_i, where the rule takes them as known
    sizes           (m,) data points n_i, where they changed or the client is new
    steps           (m,) local steps taken (SCAFFOLD)
    starts          (m, d) models the clients started from, where not the global one (FedAWE)
    model           (d,) the global model the round started from (FedAWE)
    refresh         ids among `clients` that were asked only to refresh what is known of them
    given           deprecated and ignored
    """

    number: int
    clients: Sequence[ClientId]
    updates: Array
    probabilities: Any = None
    sizes: Any = None
    steps: Any = None
    starts: Array | None = None
    model: Array | None = None
    refresh: Sequence[ClientId] | None = None
    given: bool = False

    def without(self, positions: set[int]) -> Round:
        """The same round as if the clients at these positions had not answered."""
        keep = [i for i in range(len(self.clients)) if i not in positions]

        def pick(values: Any) -> Any:
            if values is None:
                return None
            return [values[i] for i in keep] if isinstance(values, (list, tuple)) else values[keep]

        clients = [self.clients[i] for i in keep]
        return replace(
            self,
            clients=clients,
            updates=pick(self.updates),
            probabilities=pick(self.probabilities),
            sizes=pick(self.sizes),
            steps=pick(self.steps),
            starts=pick(self.starts),
            refresh=None if self.refresh is None else [c for c in self.refresh if c in clients],
        )


class PopulationEstimate(NamedTuple):
    """What rounds tell of the size of an open population, this one included; see `Clients`."""

    mass: float
    unseen: float
    doubt: float

    @property
    def surely_unseen(self) -> float:
        """As far as it is beyond doubt."""
        return max(self.unseen - self.doubt, 0.0)


@value
class Active:
    """The clients of a round, checked, with everything a rule needs of size m."""

    number: int
    clients: tuple[ClientId, ...]
    slots: Integers  # newcomers have the slot they will get
    updates: Array  # (m, d)
    kernels: Kernels
    fresh: Flags  # (m,) False: asked only to refresh, enters no aggregate
    sizes: Floats  # n_i, this round's
    old_sizes: Floats  # n_i before this round; 0 for newcomers
    resized: bool  # False: `sizes` equal `old_sizes`
    total: float  # n
    shares: Floats  # d_i = n_i / n
    inverse_probabilities: Floats  # 1 / p_i
    weights: Floats  # a_i = d_i / p_i, capped if asked; 0 where not fresh
    population: PopulationEstimate | None = None  # of an open one
    steps: Floats | None = None
    starts: Array | None = None
    model: Array | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def one_pass(
        self,
        weights: Floats,
        basis: Array | None = None,
        coefficients: Floats | None = None,
        **more: Any,
    ) -> Pass:
        """`Kernels.one_pass` over the updates; raises `NotFinite`, so that rules need not look."""
        result = self.kernels.one_pass(self.updates, weights, basis, coefficients, **more)
        if result.bad:
            raise NotFinite(result.bad)
        return result


class NotFinite(Exception):
    """What the clients at these positions of the round sent is not finite."""

    def __init__(self, positions: Sequence[int], reason: str = NOT_FINITE) -> None:
        super().__init__()
        self.positions = positions
        self.reason = reason
