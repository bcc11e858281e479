"""The scaling measurements as a table in Markdown."""

from __future__ import annotations

from typing import Any

from costs.fitting import Fit
from costs.panels import Shown, shown

HEAD = """| what | paper | slope, all sizes | slope, larger half | smallest | largest | all else |
| :-- | :-- | --: | --: | --: | --: | :-- |
"""


def to_markdown(measured: dict[str, Any]) -> str:
    """One row per panel: slopes with 95 % intervals, and both ends."""
    return HEAD + "".join(f"{_row(entry)}\n" for entry in shown(measured))


def _row(entry: Shown) -> str:
    panel = entry.panel
    ends = [
        f"{in_units(value, panel.quantity)} at {size:,}"
        for size, value in ((entry.sizes[i], entry.values[i]) for i in (0, -1))
    ]
    claim = panel.claim if panel.exponent is None else f"{panel.claim}: {panel.exponent:g}"
    fixed = ", ".join(f"{name} = {value:,}" for name, value in entry.fixed.items())
    cells = [panel.title, claim, in_words(entry.whole), in_words(entry.upper), *ends, fixed]
    return f"| {' | '.join(cells)} |"


def in_words(found: Fit) -> str:
    """A slope and its interval."""
    slope = f"{found.slope:.2f}".replace("-0.00", "0.00")
    return slope if found.half is None else f"{slope} ± {found.half:.2f}"


def in_units(value: float, quantity: str) -> str:
    """Three digits with a prefixed unit."""
    units = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    name = "B"
    if "seconds" in quantity:
        units, name = {"µ": 1e-6, "m": 1e-3, "": 1.0}, "s"
    prefix = next((p for p, one in reversed(units.items()) if value >= one), next(iter(units)))
    return f"{value / units[prefix]:.3g} {prefix}{name}"
