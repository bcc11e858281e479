"""Random but repeatable histories of a federation, to drive rules and references alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsteer.steering.ids import ClientId


@dataclass
class Event:
    """One round, or clients leaving."""

    number: int
    clients: list[ClientId] = field(default_factory=list)
    updates: Any = None
    probabilities: list[float] = field(default_factory=list)
    sizes: list[float] | None = None
    steps: list[int] = field(default_factory=list)
    refresh: list[ClientId] = field(default_factory=list)
    leaving: list[ClientId] = field(default_factory=list)


def story(
    seed: int,
    *,
    rounds: int = 50,
    dim: int = 12,
    members: int = 9,
    closed: bool = True,
    refreshes: bool = False,
    departures: bool = True,
) -> Iterator[Event]:
    """Clients 0..members-1 and newcomers with names; sizes change, some leave, some send zeros.

    Updates drift over the rounds and are correlated between clients, as real ones are.
    """
    draw = np.random.default_rng(seed)
    present: list[ClientId] = list(range(members))
    directions = draw.standard_normal((3, dim))
    for number in range(1, rounds + 1):
        directions += 0.1 * draw.standard_normal(directions.shape)
        active = [client for client in present if draw.random() < 0.35]
        newcomer = draw.random() < 0.1
        if newcomer:
            name: ClientId = f"late-{number}"
            present.append(name)
            active.insert(int(draw.integers(len(active) + 1)), name)
        draw.shuffle(active)  # type: ignore[arg-type]
        updates = draw.standard_normal((len(active), 3)) @ directions
        updates += 0.3 * draw.standard_normal(updates.shape)
        if len(active) and draw.random() < 0.1:
            updates[0] = 0.0
        resized = newcomer or draw.random() < 0.2
        sizes = draw.integers(1, 30, len(active)).astype(float).tolist() if resized else None
        refresh = []
        if refreshes and draw.random() < 0.3:
            refresh = [client for client in active if draw.random() < 0.4]
        yield Event(
            number=number,
            clients=active,
            updates=updates,
            probabilities=draw.uniform(0.1, 1.0, len(active)).tolist(),
            sizes=sizes,
            steps=draw.integers(1, 9, len(active)).tolist(),
            refresh=refresh,
        )
        seen = [client for client in present if closed or isinstance(client, str)]
        if departures and draw.random() < 0.08 and len(seen) > 4:
            gone = seen[int(draw.integers(len(seen)))]
            present.remove(gone)
            yield Event(number=number, leaving=[gone])
