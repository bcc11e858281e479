"""One round as it arrives (`Round`), and as the rules compute with it once checked (`Active`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedsteer.errors import RoundRefused
from fedsteer.steering.kernels import (
    Array,
    Floats,
    Integers,
    Kernels,
    Pass,
    kernels_for,
    library_of,
)
from fedsteer.steering.roster import ClientId
from fedsteer.values import value

LARGEST_COUNT = 1e15
"""Points or steps of a client: sums of such numbers are exact, and no product leaves the range."""
RAREST = 1e-300
"""The least probability: its inverse is a number."""
Faults = dict[int, str]
"""Position in the round -> what is wrong with that client."""


@value
class Round:
    """What the server has in hand at the end of a round.

    number          1, 2, 3, ...; must rise from step to step
    clients         ids (int or str) of whoever answered
    updates         (m, d) NumPy or torch, w_sent - w_returned, one row per client; or a sequence
                    of m vectors
    probabilities   (m,) p_i, where the rule takes them as known
    sizes           (m,) data points n_i, where they changed or the client is new
    steps           (m,) local steps taken (SCAFFOLD)
    starts          (m, d) models the clients started from, where not the global one (FedAWE)
    model           (d,) the global model the round started from (FedAWE)
    refresh         ids among `clients` that were asked only to refresh what is known of them
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


@value
class Active:
    """The clients of a round, checked, with everything a rule needs of size m."""

    number: int
    clients: tuple[ClientId, ...]
    slots: Integers  # newcomers have the slot they will get
    updates: Array  # (m, d)
    kernels: Kernels
    fresh: Any  # (m,) bool; False: asked only to refresh, enters no aggregate
    sizes: Floats  # n_i, this round's
    old_sizes: Floats  # n_i before this round; 0 for newcomers
    total: float  # n
    shares: Floats  # d_i = n_i / n
    inverse: Floats  # 1 / p_i
    weights: Floats  # a_i = d_i / p_i, capped if asked; 0 where not fresh
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
    """The updates at these positions of the round are not finite."""

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__()
        self.positions = positions


def plain_id(client: Any) -> ClientId:
    """An id as int or str; NumPy integers become int, anything else is refused."""
    if type(client) is int or isinstance(client, str):
        return client
    if isinstance(client, (int, np.integer)) and not isinstance(client, bool):
        return int(client)
    raise RoundRefused(f"client ids are int or str, not {client!r}")


def whole_number(number: Any) -> int:
    """The number of a round as int."""
    if type(number) is int:
        return number
    if isinstance(number, (int, np.integer)) and not isinstance(number, bool):
        return int(number)
    raise RoundRefused(f"the number of a round is a whole number, not {number!r}")


def settle_arrays(round: Round, dim: int) -> tuple[Round, Faults]:
    """The round with plain ids, float64 vectors and one (m, d) array, and the clients at fault.

    Raises where the round as a whole makes no sense; what concerns one client is a fault.
    """
    number = whole_number(round.number)
    clients = list(round.clients)
    if not {int, str}.issuperset(map(type, clients)):
        clients = [plain_id(client) for client in clients]
    count = len(clients)
    probabilities = _vector(round.probabilities, "probabilities", count)
    sizes, steps = _vector(round.sizes, "sizes", count), _vector(round.steps, "steps", count)
    updates, faults = _matrix(round.updates, clients, dim)
    if round.refresh is not None and (strangers := set(round.refresh) - set(clients)):
        raise RoundRefused("refresh names clients that sent no update", sorted(strangers, key=str))
    if len(set(clients)) < count:
        repeated = Counter(clients)
        _fault(faults, [repeated[client] > 1 for client in clients], "appears more than once")
    # No comparison holds for nan.
    if probabilities is not None:
        bad = [not RAREST <= p <= 1 for p in probabilities.tolist()]
        if round.refresh and True in bad:
            # Whoever only refreshes weighs nothing, and may be one that never comes by itself.
            asked = set(round.refresh)
            idle = [wrong and client in asked for wrong, client in zip(bad, clients, strict=True)]
            probabilities = np.where(idle, 1.0, probabilities)
            bad = [wrong and not excused for wrong, excused in zip(bad, idle, strict=True)]
        _fault(faults, bad, "probabilities must be in (0, 1]")
    for name, given in (("sizes", sizes), ("steps", steps)):
        if given is not None:
            bad = [not 0 < value <= LARGEST_COUNT for value in given.tolist()]
            _fault(faults, bad, f"{name} must be positive and finite (at most {LARGEST_COUNT:.0e})")
    vectors = probabilities, sizes, steps
    rest = _plain(round.starts), _plain(round.model), round.refresh
    return Round(number, clients, updates, *vectors, *rest), faults


def _plain(array: Array | None) -> Array | None:
    return None if array is None else kernels_for(array).plain(array)


def _fault(faults: Faults, bad: list[bool], reason: str) -> None:
    if True in bad:
        for position, wrong in enumerate(bad):
            if wrong:
                faults.setdefault(position, reason)


def _vector(values: Any, name: str, count: int) -> Floats | None:
    if values is None:
        return None
    try:
        vector = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise RoundRefused(f"{name} must be {count} numbers") from None
    if vector.shape != (count,):
        raise RoundRefused(f"{name} has shape {vector.shape}, expected ({count},)")
    return vector


def _matrix(updates: Any, clients: list[ClientId], dim: int) -> tuple[Array, Faults]:
    """One (m, d) array; vectors of the wrong length in a sequence are faults of their clients."""
    faults: Faults = {}
    if isinstance(updates, (list, tuple)) and len(updates) == len(clients) > 0:
        for position, update in enumerate(updates):
            if problem := kernels_for(update).check(update):
                faults[position] = f"cannot be used: {problem}"
            elif tuple(update.shape) != (dim,):
                faults[position] = f"update has shape {tuple(update.shape)}, expected ({dim},)"
            elif library_of(update) != library_of(updates[0]):
                faults[position] = "sent an array of another library than the first client"
        if faults:
            return updates, faults
        updates = kernels_for(updates[0]).stack(updates)
    elif isinstance(updates, (list, tuple)):
        if updates or clients:
            raise RoundRefused(f"{len(updates)} updates for {len(clients)} clients", clients)
        updates = np.zeros((0, dim), np.float32)
    kernels = kernels_for(updates)
    if problem := kernels.check(updates):
        raise RoundRefused(problem, clients)
    if updates.shape != (len(clients), dim):
        raise RoundRefused(
            f"updates have shape {tuple(updates.shape)}, expected ({len(clients)}, {dim}): "
            "one row per client, one column per model weight",
            clients,
        )
    return kernels.plain(updates), faults
