"""A Grid in this process: nodes come and go, and Python functions answer for their ClientApps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

SUPERLINK = 1

# The SuperLink tells a ServerApp its ids. Messages cannot be made without them.
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, SUPERLINK, 7

Answer = Callable[[Message], Message | None]
"""From a message to a reply; None is an answer that comes too late."""


@dataclass
class Clock:
    """Stands in for the module `time`: it goes on only while somebody sleeps."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeGrid(Grid):
    """Nodes online, their keys, who answers for them, and how long that takes them."""

    answers: dict[int, Answer] = field(default_factory=dict)  # node id -> its ClientApp
    keys: dict[int, bytes] = field(default_factory=dict)
    offline: set[int] = field(default_factory=set)
    asked: list[list[int]] = field(default_factory=list)  # nodes of every push
    before: Callable[[int], None] | None = None  # called with the count of sends so far
    timeouts: list[float | None] = field(default_factory=list)
    seconds: dict[int, float] = field(default_factory=dict)  # node id -> it answers so late
    clock: Clock = field(default_factory=Clock)
    underway: dict[str, tuple[float, Message]] = field(default_factory=dict)  # when, which reply
    pull_interval: float = 0.1

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        assert messages, "the SuperLink refuses empty lists"
        if self.before is not None:
            self.before(len(self.asked))
        self.asked.append([message.metadata.dst_node_id for message in messages])
        for number, message in enumerate(messages):
            name, node = f"message-{len(self.asked)}-{number}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = name
            reply = self.answers[node](message)
            if reply is not None:
                self.underway[name] = (self.clock.now + self.seconds.get(node, 0.0), reply)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted, now = set(message_ids), self.clock.now
        ready = [name for name, (when, _) in self.underway.items() if when <= now]
        return [self.underway.pop(name)[1] for name in ready if name in wanted]

    def get_node_ids(self) -> Iterable[int]:
        return [node for node in self.answers if node not in self.offline]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node, public_key=self.keys.get(node, b""))
            for node in self.get_node_ids()
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """All replies at once; those of nodes in `seconds` are later than any timeout."""
        self.timeouts.append(timeout)
        return self.pull_messages(self.push_messages(messages))


def arrays(**named: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in named.items()})


def values(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


def reply_with(
    message: Message,
    model: ArrayRecord | None = None,
    points: float | None = 10,
    client: int | str | None = None,
    **metrics: Any,
) -> Message:
    content = RecordDict()
    if model is not None:
        content["arrays"] = model
    numbers = dict(metrics)
    if points is not None:
        numbers["num-examples"] = points
    if client is not None:
        numbers["partition-id"] = client
    content["metrics"] = MetricRecord(numbers)
    return Message(content, reply_to=message)


def failing(message: Message) -> Message:
    return Message(Error(code=0, reason="out of battery"), reply_to=message)


def unavailable(message: Message) -> Message:
    """As the SuperLink excuses a node that has gone: the source is the SuperLink itself."""
    reply = failing(message)
    reply.metadata.__dict__["_src_node_id"] = SUPERLINK
    return reply


def late(message: Message) -> None:
    return None


def drifting(
    client: int, *, report: bool = True, points: float | None = None, target: float = 1.0
) -> Answer:
    """A client that pulls every floating-point weight a tenth of the way towards its own target."""

    def answer(message: Message) -> Message:
        name = client if report else None
        size = 10 + client if points is None else points
        if message.metadata.message_type.startswith("evaluate"):
            return reply_with(message, None, size, name, eval_acc=0.5, eval_loss=1.0)
        moved = {}
        for key, value in values(message.content["arrays"]).items():  # type: ignore[arg-type]
            if value.dtype.kind == "f":
                goal = target * np.cos(np.arange(value.size) + client).reshape(value.shape)
                moved[key] = (value + 0.1 * (goal - value)).astype(value.dtype)
            else:
                moved[key] = value + 1
        return reply_with(message, arrays(**moved), size, name, train_loss=float(client))

    return answer
