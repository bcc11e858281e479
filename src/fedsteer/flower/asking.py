"""The requests of a round: which nodes take part, what each receives, and waiting for answers."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from logging import INFO, WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError
from fedsteer.flower.model import GlobalModel, to_named, to_record
from fedsteer.flower.options import StrategyOptions
from fedsteer.rules import Requests

log = getLogger("flwr").log
CORRECTION = "correction"
"""Name of the second array record, which clients add to their gradients."""


def await_nodes(
    grid: Grid, wanted: int, seconds: float, able: Callable[[dict[int, bytes]], int] = len
) -> dict[int, bytes]:
    """Wait until `wanted` nodes are online or the time is up; `able` says how many of them count.

    Returns the nodes that are online and their public keys (empty if Flower has none).
    """
    deadline, announced = time.monotonic() + seconds, -1
    while True:
        online = {node.node_id: bytes(node.public_key) for node in grid.get_nodes()}
        left = deadline - time.monotonic()
        if (count := able(online)) >= wanted or left <= 0:
            return online
        if count != announced:
            announced = count
            log(INFO, "fedsteer: waiting up to %.0f s: %s of %s nodes", left, announced, wanted)
        time.sleep(min(1.0, left))


def await_registration(grid: Grid, options: StrategyOptions) -> None:
    """Wait for `min_available_nodes`, before the first round only."""
    wanted, limit = options.min_available_nodes, options.registration_timeout
    if (count := len(await_nodes(grid, wanted, limit))) < wanted:
        raise ConfigurationError(
            f"{count} of {wanted} nodes had registered after {limit:g} seconds; start "
            "SuperNodes, or change min_available_nodes or registration_timeout"
        )


def sample(
    clients: Mapping[int, str], options: StrategyOptions, purpose: str, *, seed: int, number: int
) -> list[int]:
    """Draw a fraction of the nodes: a function of the seed, the round and who is online.

    `purpose` is "train" or "evaluate".
    """
    order = sorted(clients, key=lambda node: (clients[node], node))
    fraction = getattr(options, f"fraction_{purpose}")
    least = getattr(options, f"min_{purpose}_nodes")
    if fraction <= 0:
        return []
    count = min(max(least, 1, round(fraction * len(order))), len(order))
    if count == len(order):
        return order
    draw = generator(seed, f"sample for {purpose}", round=number)
    return [order[i] for i in sorted(draw.choice(len(order), count, replace=False).tolist())]


@dataclass
class Asked:
    """A round that has been sent out and not been answered yet."""

    number: int
    requests: Requests
    online: set[int]
    share: float  # of the nodes online that was sampled
    clients: dict[int, str]  # node -> the client it counts as
    messages: list[Message] = field(default_factory=list)
    sent: dict[int, NDArray[Any]] = field(default_factory=dict)  # node -> its steered vector

    def write(
        self,
        arrays: ArrayRecord,
        config: ConfigRecord,
        model: GlobalModel,
        options: StrategyOptions,
        timeout: float | None,
    ) -> None:
        """Write a message for each client asked; most of them share one model.

        Messages expire with their round, so that no client works on an old one.
        """

        def holds(vector: NDArray[Any], what: str, client: str) -> bool:
            fitting = model.layout.holds(vector)
            if not fitting:
                log(WARNING, "fedsteer: %s gets no %s: it is not finite in its type", client, what)
            return fitting

        shared = self.requests.shared
        global_vector = model.layout.flatten(to_named(arrays))
        for node, client in self.clients.items():
            own = self.requests.each.get(client, {})
            start, vector = arrays, global_vector
            if "start" in own and holds(own["start"], "model of its own", client):
                start = model.record_of(own["start"])
                # As rounded to the model's precision.
                vector = model.layout.flatten(to_named(start))
            settings = ConfigRecord(dict(config))
            if "proximal" in shared:
                settings["proximal-mu"] = float(shared["proximal"])
            content = RecordDict(
                {options.arrayrecord_key: start, options.configrecord_key: settings}
            )
            correction = own.get("correction")
            if "control" in shared:
                correction = shared["control"] - own.get("control", 0.0)
            if correction is not None and holds(correction, "correction", client):
                zeros = {name: np.zeros_like(array) for name, array in model.rest.items()}
                content[CORRECTION] = to_record(model.layout.unflatten(correction, zeros))
            self.sent[node] = vector
            self.messages.append(Message(content, node, MessageType.TRAIN, ttl=timeout))


def array_bytes(contents: Iterable[RecordDict]) -> int:
    """Size of all arrays of some messages."""
    records = chain.from_iterable(content.array_records.values() for content in contents)
    return sum(len(array.data) for record in records for array in record.values())


def is_enough(answered: int, asked: int, enough: float) -> bool:
    """Whether this many usable answers are the share `enough` of those asked."""
    return answered >= max(1, math.ceil(round(enough * asked, 9)))  # .7 * 10 is above 7


def still_at_work(grid: Grid, cut_off: dict[str, int]) -> set[int]:
    """The nodes of messages that were `cut_off` and are not answered yet; answers are let go.

    A node works on one message after the other, so a new one would wait behind the old, and the
    node would be late for ever. For a message that expired the SuperLink answers with an error.
    """
    for reply in grid.pull_messages(set(cut_off)) if cut_off else ():
        cut_off.pop(reply.metadata.reply_to_message_id, None)
    return set(cut_off.values())


def send_and_wait(
    grid: Grid,
    messages: Sequence[Message],
    *,
    timeout: float | None,
    enough: float = 1.0,
    cut_off: dict[str, int] | None = None,
) -> list[Message]:
    """The replies that came before `timeout` seconds were over or `enough` had answered.

    Errors are replies, but no answers. Without an early close this is the Grid's own
    `send_and_receive`, which is also what the time limit means: no reply is fetched after it.
    `cut_off` gets the messages that were not waited for, and their nodes.
    """
    if not messages or enough >= 1.0:
        return list(grid.send_and_receive(messages, timeout=timeout)) if messages else []
    waiting = {name for name in grid.push_messages(messages) if name}  # None: it was not sent
    began, waited = time.monotonic(), 0.0
    replies: list[Message] = []
    while timeout is None or waited < timeout:
        came = list(grid.pull_messages(waiting))
        replies += came
        waiting -= {reply.metadata.reply_to_message_id for reply in came}
        answered = sum(not reply.has_error() for reply in replies)
        if not waiting:
            break
        if is_enough(answered, len(messages), enough):
            log(INFO, "fedsteer: closed after %s of %s answers", answered, len(messages))
            if cut_off is not None:
                sent = [message.metadata for message in messages]
                cut_off |= {m.message_id: m.dst_node_id for m in sent if m.message_id in waiting}
            break
        left = math.inf if timeout is None else timeout - waited
        time.sleep(min(max(0.1, waited / 10), 3.0, left))
        waited = time.monotonic() - began
    return replies
