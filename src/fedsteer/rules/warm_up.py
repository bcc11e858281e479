"""The paper's warm-up: collect, select, aggregate, start anew.

In each cycle the model stands still until every client has answered once. Then the rule selects
(FedSteer its core set, ClusterFedVARP its clusters), and one full aggregation follows. After the
last cycle the model starts anew and the rule takes over, with the memory prepared for it.

Waiting once for 100 clients takes about 111 rounds at p = .04, and the snapshot is N x d.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from fedsteer.rules.algorithm import Algorithm, Memory, Outcome, Requests
from fedsteer.rules.options import WarmUpOptions
from fedsteer.steering.clients import Clients
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, Integers, Pass, kernels_for
from fedsteer.steering.memory import RowStore
from fedsteer.steering.rounds import Active
from fedsteer.steering.table import Table


@dataclass(frozen=True)
class Collected:
    """A complete snapshot: the latest update of every member, all from one model."""

    slots: Integers
    rows: Array  # (capacity, d), by slot
    sizes: Floats  # n_i
    probabilities: Floats  # p_i as used when the client answered

    @property
    def shares(self) -> Floats:
        """d_i = n_i / n."""
        return self.sizes / self.sizes.sum()

    def gram(self, columns: slice = slice(None)) -> Floats:
        """(N, N) in the order of `slots`."""
        part = self._members()[:, columns]
        return kernels_for(part).products(part, part)

    def sketch(self, width: int, seed: int) -> Floats:
        """(N, width) in the order of `slots`."""
        return kernels_for(self.rows).sketch(self._members(), width, seed)

    def _members(self) -> Array:
        # Usually every row is a member's: then nothing needs to be copied.
        everyone = np.array_equal(self.slots, np.arange(len(self.rows)))
        return self.rows if everyone else self.rows[self.slots]


@dataclass
class Collection(Component):
    """How far the collecting is."""

    cycles: int
    done: int = 0
    snapshot: RowStore = field(default_factory=RowStore)
    inverse: Table = field(default_factory=lambda: Table.empty(0))  # 1/p_i; 0: not yet answered

    @property
    def over(self) -> bool:
        """Whether the last cycle is complete."""
        return self.done >= self.cycles

    def asked(self, clients: Clients, available: Sequence[ClientId]) -> tuple[ClientId, ...]:
        """The available clients that have not answered in this cycle."""
        slots = clients.roster.preview(available)
        missing = self.inverse[slots] <= 0
        return tuple(c for c, due in zip(available, missing, strict=True) if due)

    def compute(self, clients: Clients, active: Active) -> tuple[Pass, bool]:
        """Nothing (a zero delta), or sum_i d_i g_i if this round completes the snapshot."""
        members = self._members(clients)
        missing = members[self.inverse[members] <= 0]
        complete = bool(len(members)) and bool(np.isin(missing, active.slots).all())
        if not complete:
            return active.one_pass(np.zeros(len(active))), False
        others = np.setdiff1d(members, active.slots)
        coefficients = clients.sizes[others] / active.total
        rows = self.snapshot.rows if len(others) else None
        result = active.one_pass(active.shares, rows, coefficients, rows=others)
        return result, True

    def commit(self, clients: Clients, active: Active, *, complete: bool) -> Collected | None:
        """Keep the updates. Returns the snapshot if it is complete now."""
        if len(active):
            self.snapshot.write(active.slots, active.round.updates, len(clients.sizes.values))
            self.inverse[active.slots] = active.inverse_probabilities
        if not complete:
            return None
        members = np.union1d(self._members(clients), active.slots)
        sizes = clients.sizes_now(int(members[-1]) + 1, active)
        collected = Collected(
            slots=members,
            rows=self.snapshot.rows,
            sizes=sizes[members],
            probabilities=1.0 / self.inverse[members],
        )
        self.inverse.values[:] = 0.0
        self.done += 1
        if self.over:
            self.snapshot = RowStore()
        return collected

    def forget(self, slots: Integers) -> None:
        """These clients leave: stop waiting for them."""
        self.inverse[slots] = 0.0

    @staticmethod
    def _members(clients: Clients) -> Integers:
        return np.flatnonzero(clients.sizes.values > 0)


@dataclass
class WarmUpMemory(Component):
    """A warm-up in progress, and the memory of the algorithm that follows it."""

    collection: Collection
    prepared: Component


@final
class WarmUp(Algorithm):
    """Stands in for an algorithm until its warm-up is over."""

    name = "warm-up"
    options: WarmUpOptions

    def __init__(self, algorithm: Algorithm) -> None:
        super().__init__(algorithm.options)
        self.algorithm = algorithm

    def begin(self, clients: Clients) -> Component:
        collection = Collection(cycles=self.options.cycles)
        return WarmUpMemory(collection=collection, prepared=self.algorithm.begin(clients))

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        return Requests(collect=memory.own.collection.asked(memory.clients, asked.train))

    def compute(self, memory: Memory, active: Active) -> Outcome:
        """Hold the model, or move it by the full aggregate once all clients have answered."""
        collection: Collection = memory.own.collection
        result, complete = collection.compute(memory.clients, active)
        last = complete and collection.done + 1 >= collection.cycles
        return Outcome(
            result=result,
            weights=active.shares if complete else np.zeros(len(active)),
            action=(
                "restart" if last and self.options.reinitialise else "move" if complete else "hold"
            ),
            phase="warm-up",
            scratch=complete,
        )

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        own: WarmUpMemory = memory.own
        collection = own.collection
        collected = collection.commit(memory.clients, active, complete=outcome.scratch)
        if collected is None:
            return
        own.prepared = self.algorithm.after_cycle(
            self._prepared(memory), collected, collection.done, last=collection.over
        )
        if collection.over:
            memory.own = own.prepared

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        memory.own.collection.forget(slots)
        self.algorithm.forget(self._prepared(memory), slots, sizes)

    def coordinates_of(self, memory: Memory, slots: Any) -> Floats | None:
        return self.algorithm.coordinates_of(self._prepared(memory), slots)

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        return self.algorithm.estimates(self._prepared(memory), slots)

    @staticmethod
    def _prepared(memory: Memory) -> Memory:
        """The memory as the algorithm will have it."""
        return replace(memory, own=memory.own.prepared)
