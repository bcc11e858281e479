"""Runs that are under way: a federation whose records grow as a test wants."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from fedsteer.records import RecordWriter

EVIL = "<script>document.title = 'taken'</script> \x1b[31m<b>&"


def begin(folder: Path, label: str = "fedsteer (practical)", planned: int = 50) -> RecordWriter:
    """A run on Flower that has just begun."""
    writer = RecordWriter(folder)
    writer.manifest(
        {"rule": {"label": label, "name": "fedsteer"}, "seed": 3, "planned_rounds": planned}
    )
    return writer


def rounds(writer: RecordWriter, first: int, last: int, **more: Any) -> None:
    """Rounds in which ward-0 comes, ward-1 comes at odd ones, and ward-2 fails from round 3 on."""
    for moment in range(first, last + 1):
        rows: list[dict[str, Any]] = [{"client": "ward-0", "event": "fresh"}]
        if moment % 2:
            rows.append({"client": "ward-1", "event": "fresh", "relative_error": 0.5})
        if moment >= 3:
            rows.append({"client": "ward-2", "event": "failed", "reason": "did not answer in time"})
        for row in rows:
            writer.append("clients", {"round": moment} | row)
        numbers = {"active": 2, "asked": 3, "fresh": 1, "step_factor": 0.5, "trust": 1.0}
        row = {"round": moment, "training_round": moment, "phase": "train"} | numbers
        evaluation = {"accuracy": 0.5 + moment / 100, "loss": 1.0}
        writer.append("rounds", row | {"server_bytes": 612_000} | evaluation | more)
        ended = f"2026-01-01T00:{moment % 60:02}:00+00:00"
        writer.append("timing", {"round": moment, "time": ended, "seconds": 4.0})
    writer.publish()


def age(folder: Path, seconds: float) -> None:
    """As if nothing had been written for so long."""
    then = time.time() - seconds
    for path in folder.rglob("*"):
        os.utime(path, (then, then))
