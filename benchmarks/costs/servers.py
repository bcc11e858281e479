"""What is measured: a FedSteer server that takes rounds, and a core-set search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsteer import Round, Rule, State, make_rule
from fedsteer.rules.fedsteer.search import Snapshot, search


class Server:
    """A rule that takes the same round again and again."""

    def __init__(
        self, rule: Rule, clients: int, updates: Any, active: Sequence[int], first: Sequence[int]
    ) -> None:
        self.rule = rule
        self.state: State = rule.init(len(updates[0]), np.ones(clients))
        self.number = 0
        self.updates = updates
        self.take(first)  # so that every column is there
        self.active = list(active)

    def take(self, clients: Sequence[int]) -> None:
        self.number += 1
        updates = self.updates[: len(clients)]
        round = Round(
            number=self.number,
            clients=clients,
            updates=updates,
            probabilities=np.full(len(clients), 0.1),
        )
        self.state = self.rule.step(self.state, round).state

    def __call__(self) -> None:
        self.take(self.active)


class Stacking:
    """The same server, which puts its updates into a matrix first."""

    def __init__(self, server: Server) -> None:
        self.server, self.updates = server, server.updates

    def __call__(self) -> None:
        first = self.updates[0]
        if isinstance(first, np.ndarray):
            self.server.updates = np.stack(self.updates)
        else:
            import torch

            self.server.updates = torch.stack(self.updates)
        self.server()
        self.server.updates = self.updates


def steering(
    clients: int, columns: int, active: int, core: int, updates: Any, spread: bool = False
) -> Server:
    """FedSteer with `core` of its `columns` core clients among the `active` ones of each round."""
    outsiders = np.arange(columns, columns + active - core)
    if spread:
        outsiders = np.linspace(columns, clients - 1, active - core).astype(int)
    rule = make_rule("fedsteer", core_set=tuple(range(columns)))
    chosen = [*range(core), *outsiders.tolist()]
    return Server(rule, clients, updates, chosen, range(columns))


def one_by_one(updates: Any) -> list[Any]:
    """The rows as separate vectors, as a server receives them."""
    return [row + 0 for row in updates]


def make_updates(library: str, rows: int, dim: int) -> Any:
    updates = np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32)
    if library == "numpy":
        return updates
    import torch

    return torch.from_numpy(updates)


def make_gram(clients: int) -> np.ndarray:
    """Of updates with a common part, thirty shared directions, and noise."""
    draw = np.random.default_rng(1)
    mixed = draw.standard_normal((clients, 30)) @ draw.standard_normal((30, 400))
    updates = 2.0 + mixed + draw.standard_normal((clients, 400))
    updates *= draw.uniform(0.5, 2.0, (clients, 1))
    return updates @ updates.T


def seek(gram: np.ndarray, columns: int, swaps: int) -> np.ndarray:
    """The search as the rule runs it, from the Gram matrix on."""
    weights = np.full(len(gram), 1.0 / len(gram))
    return search(Snapshot.of(gram, weights), np.arange(columns), 0.5, swaps)
