"""Replies of a round: which client sent what, and why the rest cannot be used.

Nothing a client sends can stop a round. Late, failed, malformed and misattributed replies are
recorded with a reason and left out. Updates that are not finite pass here; the rule drops them and
says so in its diagnostics.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from fedsteer.errors import DataError
from fedsteer.flower.asking import Asked, array_bytes, is_enough, log
from fedsteer.flower.identity import Identities, reported_id
from fedsteer.flower.metrics import data_points, is_possible, number_in
from fedsteer.flower.model import Layout, to_named
from fedsteer.flower.outdated import SentModels
from fedsteer.records.rows import headline
from fedsteer.rules import Rule
from fedsteer.steering.kernels.difference import Difference
from fedsteer.steering.rounds import REPORTED
from fedsteer.steering.state import Arrays, State

LOSS_KEYS = ("train_loss", "train-loss", "loss")
VERSION_KEY = "model-version"
"""Where a client may say which round's model it began from: the "server-round" it was sent."""
CUT_OFF = "did not answer before the round was closed"
LONGEST_REASON = 2000
MOST_WARNINGS = 3
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RAISED = re.compile(
    r"<class '(?:\w+\.)*(?P<kind>\w+)'>:<'"
    r"(?:\s*Exception \w+ occurred\. Message: )?(?P<message>.*)'>",
    re.DOTALL,
)
"""How Flower writes an exception of a ClientApp."""


@dataclass(eq=False)
class Reply:
    """A reply that can be used."""

    node: int
    client: str
    reported: str | None
    update: Difference | NDArray[Any]  # (d,) what was sent minus what came back
    size: float  # data points
    numbers: dict[str, float]  # by vector of a `Round`; nan: not reported
    loss: float | None
    rest: Arrays  # arrays that are not steered
    content: RecordDict

    @property
    def columns(self) -> dict[str, Any]:
        """What clients.jsonl says of it, besides the numbers of the rule."""
        steps, node = self.numbers["steps"], f"node-{self.node}"
        return {"node": node, "loss": self.loss, "steps": steps, "reported": self.reported}


@dataclass(frozen=True)
class Reading:
    """The replies of a round."""

    usable: list[Reply]  # in the order of client names
    failed: dict[str, str]  # client -> why it has no usable reply
    received: int  # bytes of arrays
    answered: set[str]  # clients whose node sent anything but an error
    missed: set[str]  # clients that failed, or did not answer until the timeout


def read_replies(
    replies: Iterable[Message],
    asked: Asked,
    layout: Layout,
    identities: Identities,
    weighted_by_key: str,
    enough: float = 1.0,
) -> Reading:
    """Take the updates from replies, one by one; what a metrics function gets has no arrays.

    A round is closed once the share `enough` has answered.
    """
    node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in asked.messages}
    read: dict[int, Reply] = {}
    failed: dict[int, str] = {}
    received = count = 0
    answered: set[int] = set()
    for reply in replies:
        count += not reply.has_error()
        # The SuperLink answers for a node that is gone, so the source alone says nothing.
        source = reply.metadata.src_node_id
        node = node_of.get(reply.metadata.reply_to_message_id, source)
        if node not in asked.sent:
            failed[node] = "was not asked in this round"
        elif reply.has_error():
            failed[node] = f"failed: {tidy(reply.error.reason)}"
        elif node != source:
            failed[source] = f"answered for node {node}"
        elif node not in read:
            answered.add(node)
            content = reply.content
            received += array_bytes([content])
            try:
                read[node] = _parse(node, content, asked, layout, weighted_by_key)
            except Exception as error:  # bytes from outside can be wrong in any way
                failed[node] = f"sent a malformed reply: {tidy(str(error))}"
            for name in list(content.array_records):
                del content[name]
    missed = asked.sent.keys() - answered
    if enough < 1.0 and is_enough(count, len(asked.sent), enough):
        missed &= failed.keys()  # the others were cut off, and might have answered
    for node in asked.sent.keys() - read.keys():
        failed.setdefault(node, "did not answer in time" if node in missed else CUT_OFF)
    claims = {node: reply.reported for node, reply in read.items()}
    clients, refused = identities.resolve(claims, asked.online)
    failed |= {node: f"was refused: {reason}" for node, reason in refused.items()}
    for node, client in clients.items():
        read[node].client = client
    return Reading(
        usable=sorted((read[node] for node in clients), key=lambda reply: reply.client),
        failed={asked.clients.get(n, f"node-{n}"): reason for n, reason in failed.items()},
        received=received,
        answered={asked.clients[node] for node in answered},
        missed={asked.clients[node] for node in missed},
    )


def leave_out_mistaken(
    reading: Reading, asked: Asked, rule: Rule, state: State, number: int
) -> None:
    """Leave out updates that began from arrays made for another client.

    Before a node answers, we assume which client it is. If that was wrong, and either of the two
    clients has a start or correction of its own, the update is useless, this once.
    """
    if not asked.requests.each and "control" not in asked.requests.shared:
        return
    mistaken = [reply for reply in reading.usable if reply.client != asked.clients[reply.node]]
    requests = rule.plan(state, number, [reply.client for reply in mistaken])
    own = asked.requests.each.keys() | requests.each.keys()
    for reply in mistaken:
        assumed = asked.clients[reply.node]
        if assumed in own or reply.client in own:
            reading.usable.remove(reply)
            reading.failed[reply.client] = (
                f"was taken for {assumed} and received what is meant for it; its next update counts"
            )


def leave_out_outdated(reading: Reading, models: SentModels) -> None:
    """Leave out updates that began from the model of an earlier round."""
    for reply in list(reading.usable):
        if (number := models.origin(reply.client, reply.update)) is not None:
            reading.usable.remove(reply)
            reading.failed[reply.client] = f"began from the model of round {number}"


def warn_of(words: str, clients: Mapping[Any, object]) -> None:
    """Log the first few clients and the headline of what is said of each; clients.jsonl has all."""
    for client, said in list(clients.items())[:MOST_WARNINGS]:
        shown = headline(said) if isinstance(said, str) else said
        log(WARNING, f"fedsteer: {words}", client, shown)
    if (more := len(clients) - MOST_WARNINGS) > 0:
        log(WARNING, "fedsteer: and %s more, see clients.jsonl", more)


def tidy(reason: str | None) -> str:
    """What a client says of its failure, without what Flower wraps it in."""
    text = COLOUR.sub("", reason or "").strip()
    if found := RAISED.fullmatch(text):
        text = f"{found['kind']}: {found['message'].strip()}"
    return text[:LONGEST_REASON].strip() or "no reason given"


def _parse(
    node: int, content: RecordDict, asked: Asked, layout: Layout, weighted_by_key: str
) -> Reply:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise DataError(f"{len(records)} array records instead of one")
    named = to_named(records[0])
    layout.check(named)
    size = data_points(content, weighted_by_key)
    if size is None:
        raise DataError(f"no positive {weighted_by_key!r} in its metrics")
    version = number_in({**content.metric_records, **content.config_records}, VERSION_KEY)
    if version is not None and version != asked.number:
        raise DataError(f"it began from the model of round {version:g}, not {asked.number}")
    numbers = {name: number_in(content.metric_records, key) for name, key in REPORTED.items()}
    losses = [number_in(content.metric_records, key) for key in LOSS_KEYS]
    return Reply(
        node=node,
        client="",  # `read_replies` fills it in
        reported=reported_id({**content.config_records, **content.metric_records}),
        update=layout.difference(asked.sent[node], named),
        size=size,
        numbers={name: np.nan if x is None else x for name, x in numbers.items()},
        loss=next((x for x in losses if x is not None and is_possible("loss", x)), None),
        rest=layout.rest(named),
        content=content,
    )
