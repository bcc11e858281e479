"""Reading replies: who sent what, and why the others cannot be used.

Nothing a client sends can stop a round: late, failed, malformed and misattributed replies are
recorded with a reason and left out. Updates that are not finite pass here and are dropped by the
rule, which names them in its diagnostics.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from logging import WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from fedsteer.flower.identity import REPORTED_KEYS, Identities, reported_id
from fedsteer.flower.layout import Layout, Malformed
from fedsteer.steering.roster import ClientId
from fedsteer.steering.rounds import LARGEST_COUNT

log = getLogger("flwr").log
LOSS_KEYS = ("train_loss", "train-loss", "loss")
LONGEST_REASON = 200
MOST_WARNINGS = 3
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Reply:
    """A usable reply."""

    client: str
    reported: str | None
    update: NDArray[Any]  # (d,) what was sent minus what came back
    size: float
    steps: float  # nan: not reported
    loss: float | None
    rest: dict[str, NDArray[Any]]
    content: RecordDict


@dataclass(frozen=True)
class Reading:
    """The replies of a round."""

    usable: dict[int, Reply]  # by node, in the order of client names
    failed: dict[str, str]  # client -> why its reply cannot be used, or that there was none
    received: int  # bytes of arrays


def read_replies(
    replies: Iterable[Message],
    messages: Sequence[Message],
    sent: Mapping[int, NDArray[Any]],
    online: Collection[int],
    layout: Layout,
    identities: Identities,
    weighted_by_key: str,
) -> Reading:
    """Sort out the replies to `messages`; `sent` is the steered vector that each node was sent."""
    before = {node: identities.expected(node) for node in sent}
    node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
    contents: dict[int, RecordDict] = {}
    failed: dict[int, str] = {}
    for reply in replies:
        # An unavailable node is excused by the SuperLink, so the source alone says nothing.
        source = reply.metadata.src_node_id
        node = node_of.get(reply.metadata.reply_to_message_id, source)
        if node not in sent:
            failed[node] = "was not asked in this round"
        elif reply.has_error():
            failed[node] = f"failed: {brief(reply.error.reason)}"
        elif node != source:
            failed[source] = f"answered for node {node}"
        else:
            contents.setdefault(node, reply.content)
    for node in sent:
        if node not in contents:
            failed.setdefault(node, "did not answer in time")
    read: dict[int, Reply] = {}
    for node, content in contents.items():
        try:
            read[node] = _parse(content, sent[node], layout, weighted_by_key)
        except Exception as error:  # bytes from outside can be wrong in any way
            failed[node] = f"sent a malformed reply: {brief(str(error))}"
    clients, refused = identities.resolve({n: reply.reported for n, reply in read.items()}, online)
    failed |= {node: f"was refused: {reason}" for node, reason in refused.items()}
    _tell(failed)
    usable = {node: replace(read[node], client=name) for node, name in clients.items()}
    return Reading(
        dict(sorted(usable.items(), key=lambda item: item[1].client)),
        {before.get(node, f"node-{node}"): reason for node, reason in failed.items()},
        sum(size_of(content) for content in contents.values()),
    )


def leave_out_mistaken(
    reading: Reading, asked: Mapping[int, str], personal: Collection[ClientId]
) -> None:
    """A start or correction made for somebody else makes an update useless, once.

    `personal` are clients whose message is like no other's.
    """
    for node, reply in list(reading.usable.items()):
        taken_for = asked[node]
        if taken_for != reply.client and (taken_for in personal or reply.client in personal):
            del reading.usable[node]
            reason = f"was taken for {taken_for} and sent what is meant for it"
            reading.failed[reply.client] = reason
            log(WARNING, "fedsteer: %s %s; from now on it is known", reply.client, reason)


def brief(reason: str | None) -> str:
    """One line: Flower hands on whole tracebacks, and only their end says what happened."""
    lines = [line.strip() for line in COLOUR.sub("", reason or "").splitlines() if line.strip()]
    return lines[-1][:LONGEST_REASON] if lines else "no reason given"


def points(content: RecordDict, key: str) -> float | None:
    """The client's number of data points, if it is one."""
    size = _number(content, key)
    return size if size is not None and 0 < size <= LARGEST_COUNT else None


def size_of(content: RecordDict) -> int:
    """Bytes of all arrays."""
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


def weighted_metrics(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
    """Means over the clients' metric records, weighted by data points, as Flower's FedAvg does.

    A key that is not in every reply is left out instead of failing the round.
    """
    weights = np.array([_number(content, weighted_by_key) or 0.0 for content in contents])
    shares = weights / (weights.sum() or 1.0)
    tables = [
        {key: value for record in content.metric_records.values() for key, value in record.items()}
        for content in contents
    ]
    result = MetricRecord()
    for key in tables[0]:
        if key == weighted_by_key or key in REPORTED_KEYS or any(key not in t for t in tables):
            continue
        values = [np.asarray(table[key], np.float64) for table in tables]
        if len({value.shape for value in values}) == 1:
            result[key] = np.tensordot(shares, np.stack(values), axes=1).tolist()
    return result


def _parse(content: RecordDict, sent: NDArray[Any], layout: Layout, weighted_by_key: str) -> Reply:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise Malformed(f"{len(records)} array records instead of one")
    named = {name: array.numpy() for name, array in records[0].items()}
    layout.check(named)
    size = points(content, weighted_by_key)
    if size is None:
        raise Malformed(f"no positive {weighted_by_key!r} in its metrics")
    steps = _number(content, "num-steps")
    losses = [loss for key in LOSS_KEYS if (loss := _number(content, key)) is not None]
    with np.errstate(over="ignore", invalid="ignore"):
        update = sent - layout.flatten(named)
    return Reply(
        client="",
        reported=reported_id({**content.config_records, **content.metric_records}),
        update=update,
        size=size,
        steps=float("nan") if steps is None else steps,
        loss=losses[0] if losses else None,
        rest=layout.rest(named),
        content=content,
    )


def _tell(failed: Mapping[int, str]) -> None:
    for count, (node, reason) in enumerate(failed.items()):
        if count == MOST_WARNINGS:
            log(WARNING, "fedsteer: and %s more; clients.jsonl has them", len(failed) - count)
            return
        log(WARNING, "fedsteer: node %s %s", node, reason)


def _number(content: RecordDict, key: str) -> float | None:
    for record in content.metric_records.values():
        value = record.get(key)
        if isinstance(value, (int, float)):
            return float(value)
    return None
