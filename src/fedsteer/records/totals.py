"""Running sums of a run; the simulator and Flower count the same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Totals:
    """What went over the wire and was held so far; kept in the checkpoint."""

    uploads: int = 0
    warm_up_uploads: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    server_bytes: int = 0  # peak

    def count(
        self, *, training: bool, uploads: int, bytes_up: int, bytes_down: int, server_bytes: int
    ) -> None:
        """One more round; `training` False: it belonged to a warm-up."""
        self.uploads += uploads
        self.warm_up_uploads += 0 if training else uploads
        self.bytes_up += bytes_up
        self.bytes_down += bytes_down
        self.server_bytes = max(self.server_bytes, server_bytes)

    def result(self, rounds: int, trained: int) -> dict[str, Any]:
        """For result.json, after so many rounds of which so many were no warm-up."""
        return asdict(self) | {"rounds": trained, "warm_up_rounds": rounds - trained}
