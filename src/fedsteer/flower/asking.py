"""What a round asked of whom, and the `Round` that the replies make of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from fedsteer.flower.model import GlobalModel
from fedsteer.flower.options import StrategyOptions
from fedsteer.flower.payload import write_content
from fedsteer.flower.replies import Reply, size_of
from fedsteer.rules import Round, Rule
from fedsteer.rules.algorithm import Requests
from fedsteer.steering.roster import ClientId
from fedsteer.steering.state import State


@dataclass
class Asked:
    """A round that is under way."""

    online: set[int]
    share: float  # of the nodes online, chosen to train
    requests: Requests
    names: dict[int, str] = field(default_factory=dict)  # node -> client it is thought to be
    sent: dict[int, NDArray[Any]] = field(default_factory=dict)  # node -> its steered vector
    messages: list[Message] = field(default_factory=list)

    def chosen(self, everyone: Mapping[int, str], nodes: Collection[int]) -> dict[int, str]:
        """Who is asked for anything: of these nodes whoever is wanted, and who is to refresh."""
        wanted, refreshed = set(self.requests.everyone), set(self.requests.refresh)
        return {
            node: name
            for node, name in everyone.items()
            if name in wanted and (node in nodes or name in refreshed)
        }

    def contents(
        self,
        arrays: ArrayRecord,
        config: ConfigRecord,
        model: GlobalModel,
        options: StrategyOptions,
    ) -> Iterator[tuple[int, RecordDict]]:
        """What each of `names` is sent; `sent` keeps the part that is steered."""
        as_sent = model.flat(arrays)
        for node, name in self.names.items():
            given = self.requests, arrays, config, model.layout, model.rest, options
            start, content = write_content(name, *given)
            self.sent[node] = as_sent if start is arrays else model.flat(start)
            yield node, content

    @property
    def bytes(self) -> int:
        """Of all arrays that were sent."""
        return sum(size_of(message.content) for message in self.messages)


def personal(
    asked: Asked, usable: Mapping[int, Reply], rule: Rule, state: State, number: int
) -> set[ClientId]:
    """Clients whose message was, or would have been, like no other's."""
    mistaken = [reply.client for node, reply in usable.items() if reply.client != asked.names[node]]
    return {*asked.requests.each, *rule.plan(state, number, mistaken).each}


def make_round(
    number: int,
    usable: Mapping[int, Reply],
    asked: Asked,
    rule: Rule,
    options: StrategyOptions,
    sampling: bool,
    model: NDArray[Any],
    left: Collection[str],
) -> Round:
    """What the rule has to know.

    sampling   probabilities are the share that was asked
    left       clients that left for good once; whoever comes back is a newcomer
    """
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
        sizes=_sizes(replies, options.population, left),
        steps=[r.steps for r in replies] if replies and "steps" in rule.needs else None,
        starts=np.stack(starts) if starts else None,
        model=model,
        refresh=refreshed or None,
    )


def _sizes(
    replies: Sequence[Reply], population: Mapping[int | str, float] | None, left: Collection[str]
) -> list[float] | None:
    """Data points by what replies say, or by the population, which the rule knows but for whoever
    left and is back; strangers to it have no size (nan), and are dropped."""
    if population is None:
        return [reply.size for reply in replies] if replies else None
    if not any(reply.client in left for reply in replies):
        return None
    return [population.get(reply.client, np.nan) for reply in replies]
