"""What tables call an entry of a comparison."""

from __future__ import annotations

FULL = "full"


def label_of(text: str) -> str:
    """The label of "fedavg", "fedsteer:practical", "full" or the name of a variant."""
    if text == FULL:
        return "full participation"
    name, _, preset = text.partition(":")
    return name if preset in ("", "paper") else f"{name} ({preset})"
