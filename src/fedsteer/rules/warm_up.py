"""The paper's warm-up: collect, select, aggregate, start anew.

In each cycle the model stands still until every client has answered once. Then the rule selects
(FedSteer its core set, ClusterFedVARP its clusters), and one full aggregation follows. After the
last cycle the model starts anew and the rule takes over, with the memory prepared for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from fedsteer.rules.algorithm import Algorithm, Memory, Outcome, Requests
from fedsteer.rules.options import WarmUpOptions
from fedsteer.steering.clients import Clients
from fedsteer.steering.collection import Collection
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats
from fedsteer.steering.rounds import Active


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
