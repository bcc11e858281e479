"""What a round of Flower looks like in the records and in the train metrics."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from flwr.app import MetricRecord

from fedsteer.flower.asking import Asked
from fedsteer.flower.replies import Reading
from fedsteer.records.rows import Totals, client_rows, refused_rows, round_row
from fedsteer.rules.diagnostics import Diagnostics


def round_entry(
    number: int,
    trained: int,
    happened: Diagnostics,
    reading: Reading,
    asked: Asked,
    totals: Totals,
    held: int,
) -> dict[str, Any]:
    """One row of rounds.jsonl; `held` in bytes by the rule. Counts the round in `totals`."""
    training, requests, sent = happened.phase == "train", asked.requests, asked.bytes
    columns = totals.count(
        requests,
        training_round=trained if training else 0,
        uploads=len(reading.usable),
        bytes_up=reading.received,
        bytes_down=sent,
        server_bytes=held,
    )
    losses = [reply.loss for reply in reading.usable.values() if reply.loss is not None]
    return round_row(
        number,
        happened,
        asked=len(requests.everyone),
        failed=len(reading.failed),
        **columns,
        train_loss=float(np.mean(losses)) if losses else None,
    )


def client_entries(
    number: int, happened: Diagnostics, reading: Reading, collected: Collection[Any]
) -> list[dict[str, Any]]:
    """Rows of clients.jsonl: everyone who was asked, and what became of the answer."""
    extras = {
        reply.client: {
            "node": f"node-{node}",  # its name until it said who it is
            "loss": reply.loss,
            "steps": reply.steps,
            **({} if reply.reported is None else {"reported": reply.reported}),
        }
        for node, reply in reading.usable.items()
    }
    rows = client_rows(number, happened, set(collected), extras)
    return rows + refused_rows(number, reading.failed, event="failed")


def rule_metrics(metrics: MetricRecord, happened: Diagnostics, failed: int) -> None:
    """What the rule reports, beside the clients' own metrics."""
    metrics["fedsteer-active"] = len(happened.clients)
    metrics["fedsteer-fresh"] = sum(happened.fresh)
    metrics["fedsteer-dropped"] = len(happened.dropped)
    metrics["fedsteer-failed"] = failed
    metrics["fedsteer-variance"] = float(happened.variance)
    metrics["fedsteer-bound-factor"] = float(happened.bound_factor)
    metrics["fedsteer-delta-norm"] = float(happened.delta_norm)
    metrics["fedsteer-weight-sum"] = float(happened.weights.sum())
    metrics["fedsteer-columns"] = int(happened.columns)
