"""Rows and running totals of a run. The simulator and Flower make the same ones."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

Tracker = Callable[[dict[str, Any]], None]
"""Told every round of a run: its row of rounds.jsonl, with the columns of timing.jsonl."""
OF_A_STEP = (
    *("delta_norm", "bound_factor", "step_factor", "trust", "alignment"),
    *("variance", "condition", "columns"),
)
"""Diagnostics that are columns of the same name."""
LONGEST_LINE = 200


@dataclass
class Totals:
    """Traffic and memory of a run so far; saved in the checkpoint."""

    uploads: int = 0
    warm_up_uploads: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    server_bytes: int = 0  # peak

    def count(
        self,
        requests: Any,
        *,
        training_round: int,
        uploads: int,
        bytes_up: int,
        bytes_down: int,
        server_bytes: int,
    ) -> dict[str, Any]:
        """Add a round and return its columns. `training_round` is 0 during a warm-up."""
        self.uploads += uploads
        self.warm_up_uploads += 0 if training_round else uploads
        self.bytes_up += bytes_up
        self.bytes_down += bytes_down
        self.server_bytes = max(self.server_bytes, server_bytes)
        return {
            "training_round": training_round,
            "refreshed": len(requests.refresh),
            "collected": len(requests.collect),
            "bytes_up": bytes_up,
            "bytes_down": bytes_down,
            "server_bytes": server_bytes,
        }

    def result(self, rounds: int, trained: int) -> dict[str, Any]:
        """Columns of result.json after `rounds` rounds, `trained` of them without the warm-up."""
        return asdict(self) | {"rounds": trained, "warm_up_rounds": rounds - trained}


def round_row(number: int, diagnostics: Any, **more: Any) -> dict[str, Any]:
    return {
        "round": number,
        "phase": diagnostics.phase,
        "active": len(diagnostics.clients),
        "fresh": sum(diagnostics.fresh),
        "dropped": len(diagnostics.dropped),
        **{name: getattr(diagnostics, name) for name in OF_A_STEP},
        "weight_sum": float(diagnostics.weights.sum()),
    } | more


def client_rows(
    number: int,
    diagnostics: Any,
    collected: Collection[Any] = (),
    extras: Mapping[Any, dict[str, Any]] | None = None,
    failed: Mapping[Any, str] | None = None,
) -> list[dict[str, Any]]:
    """Rows of clients.jsonl; `extras` adds columns per client, `failed` has reasons by client."""
    columns = {
        "weight": diagnostics.weights,
        "probability": diagnostics.probabilities,
        "norm": diagnostics.norms,
        "relative_error": diagnostics.relative_errors,
        "refreshed_error": diagnostics.refreshed_errors,
        "cosine": diagnostics.cosines,
        "staleness": diagnostics.staleness,
    }
    if diagnostics.update_factors is not None:  # in this round some updates were too long
        columns["update_factor"] = diagnostics.update_factors
    if diagnostics.disbelieved:
        columns |= {"size": diagnostics.sizes, "claimed_size": diagnostics.claimed_sizes}
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    rows: list[dict[str, Any]] = []
    for client, fresh, row in zip(diagnostics.clients, diagnostics.fresh, values, strict=True):
        event = "collect" if client in collected else "fresh" if fresh else "refresh"
        head = {"round": number, "client": client, "event": event}
        rows.append(head | dict(zip(columns, row, strict=True)) | (extras or {}).get(client, {}))
    silent = {c: f"silent for {rounds} rounds" for c, rounds in diagnostics.gone.items()}
    events = {"dropped": diagnostics.dropped, "failed": failed or {}, "left": silent}
    for event, reasons in events.items():
        for client, reason in reasons.items():
            rows.append({"round": number, "client": client, "event": event, "reason": reason})
    return rows


def headline(reason: str) -> str:
    """The line that says most: the first one or, of a traceback, the last one."""
    lines = reason.splitlines() or [""]
    return lines[-1 if "Traceback" in lines[0] else 0][:LONGEST_LINE]
