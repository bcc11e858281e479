"""One round as it arrives (`Round`), and as algorithms compute with it once checked (`Active`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Flags, Floats, Integers, Kernels, Pass, Sweep
from fedsteer.steering.population import PopulationEstimate

LARGEST_COUNT = 1e15
"""Points of a client: their sums are exact, and no product overflows."""
MOST_STEPS = 1e9
"""Local steps of a client in a round."""
RAREST = 1e-280
"""The smallest probability: many of its inverses times LARGEST_COUNT still sum to a number."""
NOT_FINITE = "sent a non-finite update, or one with numbers too large to compute with"


@dataclass(frozen=True, kw_only=True)
class PerClient:
    """What a vector with one number per client may hold, and where clients report theirs.

    By default it counts something.
    """

    low: float = math.ulp(0.0)
    high: float = LARGEST_COUNT
    must: str = f"must be positive and finite (at most {LARGEST_COUNT:.0e})"
    whole: bool = False
    metric: str | None = None  # key in the metrics of a Flower client; None: not from clients
    if_refreshed: float | None = None  # in place of an impossible number of a refreshed client


def per_client(**declared: Any) -> Any:
    """A field of `Round` with one number per client; everything else follows from it.

    Such a field is checked, dropped with its client, and handed to algorithms in `active.round`.
    With a `metric`, Flower's replies and the simulator's training results fill it in for the
    algorithms that name it in `needs`.
    """
    return field(default=None, metadata={"per_client": PerClient(**declared)})


@dataclass(frozen=True)
class Round:
    """What the server has in hand at the end of a round.

    number          1, 2, 3, ...; must rise from step to step
    clients         ids (int or str) of the clients that answered
    updates         (m, d) NumPy or torch, w_sent - w_returned, one row per client; or a sequence
                    of m vectors, which are not copied into a matrix if the model is large
    probabilities   (m,) p_i, if the rule takes them as known
    sizes           (m,) data points n_i, if they changed or a client is new
    steps           (m,) local steps taken (SCAFFOLD, FedSteer's drift): whole numbers
    starts          (m, d) models the clients started from, if not the global one (FedAWE)
    model           (d,) the global model the round started from (FedAWE)
    refresh         ids among `clients` that were asked only to refresh what is known of them
    given           deprecated and ignored
    """

    number: int
    clients: Sequence[ClientId]
    updates: Array
    # Of clients that are only refreshed p_i is not used, and may well be 0.
    probabilities: Any = per_client(
        low=RAREST, high=1.0, must="must be in (0, 1]", if_refreshed=1.0
    )
    sizes: Any = per_client()
    steps: Any = per_client(
        low=1.0,
        high=MOST_STEPS,
        must=f"must be a whole number from 1 to {MOST_STEPS:.0e}",
        whole=True,
        metric="num-steps",
    )
    starts: Array | None = None
    model: Array | None = None
    refresh: Sequence[ClientId] | None = None
    given: bool = False

    def without(self, positions: set[int]) -> Round:
        """The same round as if the clients at these positions had not answered."""
        keep = [i for i in range(len(self.clients)) if i not in positions]
        clients = [self.clients[i] for i in keep]
        rows = {
            name: _rows(getattr(self, name), keep) for name in ("updates", "starts", *PER_CLIENT)
        }
        refresh = None if self.refresh is None else [c for c in self.refresh if c in clients]
        return replace(self, clients=clients, refresh=refresh, **rows)


PER_CLIENT: Mapping[str, PerClient] = {
    entry.name: entry.metadata["per_client"]
    for entry in fields(Round)
    if "per_client" in entry.metadata
}
"""The vectors of a `Round` that have one number per client."""

REPORTED = {name: kind.metric for name, kind in PER_CLIENT.items() if kind.metric is not None}
"""Those that clients report, by the key in their metrics."""


def _rows(values: Any, keep: list[int]) -> Any:
    if values is None:
        return None
    return [values[i] for i in keep] if isinstance(values, (list, tuple)) else values[keep]


@dataclass(frozen=True, kw_only=True)
class Active:
    """The clients of a checked round, with everything an algorithm needs of size m."""

    round: Round  # checked: plain ids, one (m, d) array, float64 vectors
    kernels: Kernels  # the operations for the library of the updates
    slots: Integers  # newcomers have the slot they will get
    fresh: Flags  # (m,) False: asked only to refresh, enters no aggregate
    sizes: Floats  # n_i, this round's
    old_sizes: Floats  # n_i before this round; 0 for newcomers
    new: Flags  # (m,) never came before
    resized: bool  # False: `sizes` equal `old_sizes`
    total: float  # n
    shares: Floats  # d_i = n_i / n
    inverse_probabilities: Floats  # 1 / p_i
    weights: Floats  # a_i = d_i / p_i, capped if asked; 0 if not fresh
    population: PopulationEstimate | None = None  # after this round, if the population is open
    trust: float = 1.0  # what the estimates of this round count for
    claimed_sizes: Floats | None = None  # n_i as reported; None: not reported
    update_factors: Floats | None = None  # what shortened the updates; None: they are whole
    whole_norms: Floats | None = None  # |g_i| before that; None: they are whole

    def __len__(self) -> int:
        return len(self.round.clients)

    def shortened(self, factors: Floats, norms: Floats) -> Active:
        """The same clients with their updates, which have these norms, times these factors."""
        scaled = zip(self.round.updates, factors.tolist(), strict=True)
        rows = [update if factor == 1.0 else factor * update for update, factor in scaled]
        updates = self.kernels.stack(rows)
        round = replace(self.round, updates=updates)
        return replace(self, round=round, update_factors=factors, whole_norms=norms)

    def one_pass(
        self,
        weights: Floats,
        basis: Array | None = None,
        coefficients: Floats | None = None,
        *,
        longest: float = math.inf,
        **more: Any,
    ) -> Pass:
        """`Kernels.one_pass` over the updates; raises `NotFinite` so that algorithms need not.

        Without a basis, the coefficients are ignored. An update of length `longest` or more counts
        as not finite. `more` are further fields of `Sweep`.
        """
        sweep = Sweep(
            updates=self.round.updates,
            weights=weights,
            basis=basis,
            coefficients=np.zeros(0) if basis is None or coefficients is None else coefficients,
            **more,
        )
        result = self.kernels.one_pass(sweep)
        finite = result.squared_norms < longest**2  # nan is not
        if not finite.all():
            raise NotFinite(np.flatnonzero(~finite).tolist())
        return result


class NotFinite(Exception):
    """What the clients at these positions of the round sent is not finite."""

    def __init__(self, positions: Sequence[int], reason: str = NOT_FINITE) -> None:
        super().__init__()
        self.positions = positions
        self.reason = reason
