"""Options of rules: frozen dataclasses whose fields know their meaning and range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    if ranged and not _is_within(value, limits, whole := entry.type in ("int", "int | None")):
        kind = describe_range(entry) if _is_number(value, whole) else _kind(whole)
        raise ConfigurationError(f"{entry.name} must be {kind}, not {value!r}")


def numbers_by_client(name: str, table: Any, *, whole: bool = False, **limits: float) -> None:
    """Refuse what is no {client: number}, or has a number beyond `low`, `high` or `above`."""
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{name} must be {{client: number}}, not {table!r}")
    for client, value in table.items():
        if not _is_within(value, limits, whole):
            kind = _range(limits) or "finite" if _is_number(value, whole) else _kind(whole)
            raise ConfigurationError(f"{name} must be {kind}, {client!r} has {value!r}")


def listed(name: str, value: Any, what: str) -> tuple[Any, ...]:
    """The entries of a list; a single value, text and a table are none."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{name} must be a list of {what}, not {value!r}")
    return tuple(value)


def _is_number(value: Any, whole: bool) -> bool:
    return isinstance(value, Integral if whole else Real) and not isinstance(value, bool)


def _is_within(value: Any, limits: Mapping[str, Any], whole: bool) -> bool:
    if not _is_number(value, whole) or not isfinite(value):
        return False
    low, high, above = (limits.get(name) for name in ("low", "high", "above"))
    return (
        (low is None or value >= low)
        and (above is None or value > above)
        and (high is None or value <= high)
    )


def _kind(whole: bool) -> str:
    return "a whole number" if whole else "a number"


def describe_range(entry: Field[Any]) -> str:
    """The range of an option in words, or its choices."""
    choices = " | ".join(entry.metadata["choices"])
    return " | ".join(filter(None, [choices, _range(entry.metadata)]))


def _range(limits: Mapping[str, Any]) -> str:
    words = (("low", "at least"), ("above", "above"), ("high", "at most"))
    known = [f"{word} {limits[name]:g}" for name, word in words if limits.get(name) is not None]
    return " and ".join(known)


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
