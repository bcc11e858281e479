"""Four clients that drift and are sometimes late, and a strategy that asks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from fedsteer.flower import RuleStrategy, make_strategy
from tests.flower.fake import Answer, FakeGrid, drifting, late, values

INITIAL: dict[str, Any] = {
    "w": np.zeros((2, 3), np.float16),
    "bn.running_mean": np.zeros(3, np.float32),
    "bn.num_batches_tracked": np.array(0),
}
FILES = ("rounds.jsonl", "clients.jsonl")


def steps(client: int) -> Answer:
    inner = drifting(client)

    def answer(message: Any) -> Any:
        number = int(message.content["config"]["server-round"])
        if (number + client) % 3 == 0:
            return late(message)
        reply = inner(message)
        reply.content["metrics"]["num-steps"] = 2  # type: ignore[union-attr,index]
        return reply

    return answer


def world() -> FakeGrid:
    return FakeGrid({100 + c: steps(c) for c in range(4)})


def evaluate(number: int, record: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": number / 10, "loss": float(values(record)["w"].sum())})


def strategy_of(rule: str, folder: Path, **options: Any) -> RuleStrategy:
    if rule == "fedsteer":
        options = {"core_size": 2} | options
    return make_strategy(rule, folder=str(folder), server_optimiser="adam", **options)
