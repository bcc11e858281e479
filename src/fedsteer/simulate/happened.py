"""One round of a simulation, and its rows in the records."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.records.rows import client_rows, round_row
from fedsteer.rules import Diagnostics
from fedsteer.steering.ids import ClientId


@dataclass(frozen=True)
class Happened:
    """One round. Rows are made when somebody asks for them; nothing here is of size d."""

    told: Diagnostics
    losses: NDArray[np.float64]  # (m,) of everybody asked, in local training
    steps: NDArray[np.int64]
    asked: tuple[ClientId, ...]
    collected: Collection[ClientId]
    counts: dict[str, Any]  # further columns of the round
    timing: dict[str, Any]  # the row of timing.jsonl
    evaluation: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def row(self) -> dict[str, Any]:
        """The row of rounds.jsonl."""
        loss = float(self.losses.mean()) if len(self.losses) else None
        made = round_row(self.told.number, self.told, **self.counts, train_loss=loss)
        return made | self.evaluation

    @cached_property
    def clients(self) -> list[dict[str, Any]]:
        """The rows of clients.jsonl."""
        trained = zip(self.asked, self.losses.tolist(), self.steps.tolist(), strict=True)
        extras = {client: {"loss": loss, "steps": steps} for client, loss, steps in trained}
        return client_rows(self.told.number, self.told, set(self.collected), extras)
