"""What a round of Flower looks like in the records and in the train metrics."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import MetricRecord

from fedsteer.flower.replies import Reading
from fedsteer.records.rows import client_rows, refused_rows, round_row
from fedsteer.rules.base import Diagnostics, Requests, Step
from fedsteer.steering.state import State


@dataclass
class Totals:
    """Running sums of a run, kept in the checkpoint."""

    trained: int = 0
    uploads: int = 0
    warm_up_uploads: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    server_bytes: int = 0  # peak

    def result(self, rounds: int) -> dict[str, Any]:
        """For result.json."""
        return {
            "rounds": self.trained,
            "warm_up_rounds": rounds - self.trained,
            "uploads": self.uploads,
            "warm_up_uploads": self.warm_up_uploads,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "server_bytes": self.server_bytes,
        }


def training_row(
    number: int,
    step: Step,
    reading: Reading,
    requests: Requests,
    totals: Totals,
    sent: int,
    state: State,
) -> dict[str, Any]:
    """One row of rounds.jsonl; `sent` in bytes. Counts the round in `totals`."""
    training = step.diagnostics.phase == "train"
    _count(training, reading, totals, sent, state)
    losses = [reply.loss for reply in reading.usable.values() if reply.loss is not None]
    return round_row(
        number,
        step.diagnostics,
        training_round=totals.trained if training else 0,
        asked=len(requests.everyone),
        refreshed=len(requests.refresh),
        collected=len(requests.collect),
        failed=len(reading.failed),
        bytes_up=reading.received,
        bytes_down=sent,
        train_loss=float(np.mean(losses)) if losses else None,
        server_bytes=state.nbytes,
    )


def refused_row(
    number: int,
    phase: str,
    reading: Reading,
    requests: Requests,
    totals: Totals,
    sent: int,
    state: State,
) -> dict[str, Any]:
    """A round that the rule refused as a whole: nothing moved, but everything was sent."""
    training = phase == "train"
    _count(training, reading, totals, sent, state)
    return {
        "round": number,
        "phase": phase,
        "training_round": totals.trained if training else 0,
        "active": 0,
        "fresh": 0,
        "dropped": 0,
        "asked": len(requests.everyone),
        "refreshed": 0,
        "collected": 0,
        "failed": len(reading.failed),
        "bytes_up": reading.received,
        "bytes_down": sent,
        "delta_norm": 0.0,
        "bound_factor": 1.0,
        "weight_sum": 0.0,
        "server_bytes": state.nbytes,
    }


def _count(training: bool, reading: Reading, totals: Totals, sent: int, state: State) -> None:
    totals.trained += training
    totals.uploads += len(reading.usable)
    totals.warm_up_uploads += 0 if training else len(reading.usable)
    totals.bytes_up += reading.received
    totals.bytes_down += sent
    totals.server_bytes = max(totals.server_bytes, state.nbytes)


def client_entries(
    number: int, happened: Diagnostics | None, reading: Reading, collected: Collection[Any]
) -> list[dict[str, Any]]:
    """Rows of clients.jsonl: everyone who was asked, and what became of the answer."""
    extras = {
        reply.client: {
            "loss": reply.loss,
            "steps": reply.steps,
            **({} if reply.reported is None else {"reported": reply.reported}),
        }
        for reply in reading.usable.values()
    }
    rows = [] if happened is None else client_rows(number, happened, set(collected), extras)
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
