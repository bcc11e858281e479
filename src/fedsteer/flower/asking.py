"""What a round asked of whom, and the `Round` that the replies make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fedsteer.flower.options import StrategyOptions
from fedsteer.flower.replies import Reply, size_of
from fedsteer.rules import Round
from fedsteer.rules.base import Requests, Rule


@dataclass
class Asked:
    """A round that is under way."""

    online: set[int]
    share: float  # of the nodes online, chosen to train
    requests: Requests
    names: dict[int, str] = field(default_factory=dict)  # node -> client it is thought to be
    sent: dict[int, NDArray[Any]] = field(default_factory=dict)  # node -> its steered vector
    messages: list[Message] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Of all arrays that were sent."""
        return sum(size_of(message.content) for message in self.messages)


def make_round(
    number: int,
    usable: Mapping[int, Reply],
    asked: Asked,
    rule: Rule,
    options: StrategyOptions,
    sampling: bool,
    model: NDArray[Any],
) -> Round:
    """What the rule has to know; `sampling`: probabilities are the share that was asked."""
    replies = list(usable.values())
    clients = [reply.client for reply in replies]
    known = options.known_probabilities
    # nan for a client nobody knows the probability of: the rule drops it
    probabilities = None if known is None else [known.get(client, np.nan) for client in clients]
    refreshed = [usable[n].client for n in usable if asked.names[n] in asked.requests.refresh]
    starts = [asked.sent[node] for node in usable] if "starts" in rule.needs else []
    return Round(
        number=number,
        clients=clients,
        updates=[reply.update for reply in replies],
        probabilities=[asked.share] * len(clients) if sampling else probabilities,
        # Of a population that is known the rule has the sizes, and strangers have none.
        sizes=[r.size for r in replies] if replies and options.population is None else None,
        steps=[r.steps for r in replies] if replies and "steps" in rule.needs else None,
        starts=np.stack(starts) if starts else None,
        model=model,
        refresh=refreshed or None,
    )
