"""Rows of the record files from what a step reports; the simulator and Flower write the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def round_row(number: int, happened: Any, **more: Any) -> dict[str, Any]:
    """One row of rounds.jsonl."""
    return {
        "round": number,
        "phase": happened.phase,
        "active": len(happened.clients),
        "fresh": sum(happened.fresh),
        "dropped": len(happened.dropped),
        "delta_norm": happened.delta_norm,
        "bound_factor": happened.bound_factor,
        "variance": happened.variance,
        "condition": happened.condition,
        "columns": happened.columns,
        "weight_sum": float(happened.weights.sum()),
    } | more


def client_rows(
    number: int,
    happened: Any,
    collected: Collection[Any] = (),
    extras: Mapping[Any, dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Rows of clients.jsonl; `extras` are further columns per client."""
    columns = (
        happened.weights,
        happened.probabilities,
        happened.norms,
        happened.relative_errors,
        happened.refreshed_errors,
        happened.cosines,
        happened.staleness,
    )
    rows: list[dict[str, Any]] = []
    for client, fresh, weight, probability, norm, error, refreshed, cosine, staleness in zip(
        happened.clients, happened.fresh, *(column.tolist() for column in columns), strict=True
    ):
        row = {
            "round": number,
            "client": client,
            "event": "collect" if client in collected else "fresh" if fresh else "refresh",
            "weight": weight,
            "probability": probability,
            "norm": norm,
            "relative_error": error,
            "refreshed_error": refreshed,
            "cosine": cosine,
            "staleness": staleness,
        }
        rows.append(row | (extras or {}).get(client, {}))
    return rows + refused_rows(number, happened.dropped)


def refused_rows(
    number: int, reasons: Mapping[Any, str], event: str = "dropped"
) -> list[dict[str, Any]]:
    """Rows for clients whose update was not used, and why."""
    return [
        {"round": number, "client": client, "event": event, "reason": reason}
        for client, reason in reasons.items()
    ]
