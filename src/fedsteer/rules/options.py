"""Options of rules: frozen dataclasses whose fields know their meaning and range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from math import isfinite
from numbers import Integral, Real
from typing import Any

from fedsteer.errors import ConfigurationError, unknown


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
) -> Any:
    """A field with its meaning and range; `None` is accepted where it is the default."""
    metadata = {"help": help, "choices": choices, "low": low, "high": high, "above": above}
    if isinstance(default, (dict, list)):
        return field(default_factory=type(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every rule can be told."""

    probabilities: str | float = option(
        "known",
        "where p_i comes from: passed with the round, estimated from visits, or a fraction the "
        "server samples",
        choices=("known", "intervals", "visits", "shrunk"),
        above=0.0,
        high=1.0,
    )
    interval_cap: int = option(50, "longest interval that probabilities='intervals' counts", low=1)
    max_weight: float | None = option(
        None, "cap on the weight d_i/p_i of one client; biased where it acts", above=0.0
    )
    norm_bound: float | None = option(
        None, "rho: the aggregate is at most rho times the mean norm of updates", above=0.0
    )
    bad_clients: str = option(
        "refuse",
        "an unusable client (NaN, wrong shape, duplicate, ...): refuse the round or drop the "
        "client, record it and go on",
        choices=("refuse", "drop"),
    )
    seed: int = option(0, "of the rule's own random draws", low=0)

    def __post_init__(self) -> None:
        check_options(self)


def check_options(options: Any) -> None:
    """Every field by its range and choices; whole numbers given for other numbers become such."""
    for entry in fields(options):
        value = getattr(options, entry.name)
        _check(entry, value)
        if "float" in str(entry.type) and isinstance(value, Integral):
            object.__setattr__(options, entry.name, float(value))


def _check(entry: Field[Any], value: Any) -> None:
    limits = entry.metadata
    if not limits or (value is None and default_of(entry) is None):
        return
    choices: tuple[str, ...] = limits["choices"]
    ranged = any(limits[name] is not None for name in ("low", "high", "above"))
    if choices and (isinstance(value, str) or not ranged):
        if value not in choices:
            raise unknown(f"{entry.name}", str(value), choices)
        return
    if entry.type == "bool" and not isinstance(value, bool):
        raise ConfigurationError(f"{entry.name} must be true or false, not {value!r}")
    if not ranged:
        return
    whole = entry.type in ("int", "int | None")
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        kind = "a whole number" if whole else "a number"
        raise ConfigurationError(f"{entry.name} must be {kind}, not {value!r}")
    low, high, above = limits["low"], limits["high"], limits["above"]
    if (
        not isfinite(value)
        or (low is not None and not value >= low)
        or (above is not None and not value > above)
        or (high is not None and not value <= high)
    ):
        raise ConfigurationError(f"{entry.name} must be {describe_range(entry)}, not {value}")


def describe_range(entry: Field[Any]) -> str:
    """The range of an option in words, or its choices."""
    limits = entry.metadata
    words = [
        f"{word} {limits[name]:g}"
        for name, word in (("low", "at least"), ("above", "above"), ("high", "at most"))
        if limits[name] is not None
    ]
    choices = " | ".join(limits["choices"])
    return " | ".join(filter(None, [choices, " and ".join(words)]))


def default_of(entry: Field[Any]) -> Any:
    """The default value of a field."""
    if entry.default is not MISSING:
        return entry.default
    return None if entry.default_factory is MISSING else entry.default_factory()


def build_options(kind: type[Options], rule: str, values: Mapping[str, Any]) -> Options:
    """An options object; an unknown key is an error that names the nearest valid one."""
    known = [entry.name for entry in fields(kind)]
    for name in values:
        if name not in known:
            raise unknown(f"option of {rule}", name, known)
    return kind(**values)
