"""What the scaling table and picture show, and the claims of the paper beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from costs.fitting import Fit, fit

Line = Callable[[float], float]


@dataclass(frozen=True)
class Panel:
    """One quantity over one size."""

    axis: str  # of the measurements
    quantity: str
    title: str
    size: str
    claim: str  # of the paper, in words
    exponent: float | None = None  # of the paper, if it claims one
    lines: dict[str, Callable[[dict[str, Any]], Line]] = field(default_factory=dict)  # computed


@dataclass(frozen=True)
class Shown:
    """A panel with its numbers."""

    panel: Panel
    sizes: list[float]
    values: list[float]
    whole: Fit
    upper: Fit  # over the larger half of the sizes, where fixed costs matter least
    upper_from: float
    fixed: dict[str, Any]

    @property
    def lines(self) -> dict[str, Line]:
        return {name: make(self.fixed) for name, make in self.panel.lines.items()}


def _held_over_n(fixed: dict[str, Any]) -> Line:
    return lambda n: 8.0 * n * fixed["k"] + 4.0 * fixed["k"] * fixed["d"]


def _held_over_d(fixed: dict[str, Any]) -> Line:
    return lambda d: 8.0 * fixed["N"] * fixed["k"] + 4.0 * fixed["k"] * d


def _fedvarp_over_n(fixed: dict[str, Any]) -> Line:
    return lambda n: 4.0 * n * fixed["d"]


def _fedvarp_over_d(fixed: dict[str, Any]) -> Line:
    return lambda d: 4.0 * fixed["N"] * d


HELD = "N k + k d"
FEDVARP = "FedVARP, N d"
PANELS = (
    Panel("step over N", "seconds", "Server step over N", "clients N", "O(k²d + k³)", 0.0),
    Panel("step over d", "seconds", "Server step over d", "weights d", "O(k²d + k³)", 1.0),
    Panel("step over k", "seconds", "Server step over k", "core set k", "O(k²d + k³)", 2.0),
    Panel("step over m", "seconds", "Server step over m", "active clients m", "not counted"),
    Panel(
        "step over N",
        "state bytes",
        "Server memory over N",
        "clients N",
        "O(N k + k d)",
        lines={HELD: _held_over_n, FEDVARP: _fedvarp_over_n},
    ),
    Panel(
        "step over d",
        "state bytes",
        "Server memory over d",
        "weights d",
        "O(N k + k d)",
        lines={HELD: _held_over_d, FEDVARP: _fedvarp_over_d},
    ),
    Panel("search over N", "seconds", "Core-set search over N", "clients N", "O(T₀ I N k)", 1.0),
    Panel("search over k", "seconds", "Core-set search over k", "core set k", "O(T₀ I N k)", 1.0),
    Panel("round over N", "seconds", "Simulated round over N", "clients N", "none"),
    Panel("step over N", "step bytes", "Memory a step takes over N", "clients N", "none"),
    Panel("step over d", "step bytes", "Memory a step takes over d", "weights d", "none"),
    Panel("round over N", "peak bytes", "Simulation memory over N", "clients N", "none"),
)


def shown(measured: dict[str, Any]) -> list[Shown]:
    """All panels whose axis has been measured."""
    found = []
    for panel in PANELS:
        if panel.axis not in measured["axes"]:
            continue
        axis = measured["axes"][panel.axis]
        sizes, values = axis["sizes"], axis[panel.quantity]
        half = (len(sizes) - 1) // 2
        found.append(
            Shown(
                panel=panel,
                sizes=sizes,
                values=values,
                whole=fit(sizes, values),
                upper=fit(sizes[half:], values[half:]),
                upper_from=sizes[half],
                fixed=axis["fixed"],
            )
        )
    return found
