"""Options: fields of frozen dataclasses with a help text and a range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import MISSING, Field, field, fields
from math import inf, isfinite
from numbers import Integral, Real
from operator import ge, gt, le, lt
from typing import Any

from fedsteer.errors import ConfigurationError, unknown

LIMITS = (
    ("low", "at least", ge),
    ("above", "above", gt),
    ("high", "at most", le),
    ("below", "below", lt),
)


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    only_if: Mapping[str, tuple[str | None, ...]] | None = None,
    path: bool = False,
    **limits: float,
) -> Any:
    """A field with a help text and its choices or limits (`low`, `above`, `high`, `below`).

    `None` is accepted if it is the default. `only_if={"method": ("adam",)}` says that the field
    has an effect only if the field `method` has one of these values; `path` that it names a file.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "limits": limits,
        "only_if": only_if or {},
        "path": path,
    }
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: copy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def check_options(options: Any, where: str = "") -> None:
    """Check every field against its limits and choices; messages put `where` before its name.

    Integers become floats in fields of floats, and NumPy's and torch's numbers become Python's.
    """
    for entry in fields(options):
        value = single(getattr(options, entry.name))
        check_value(entry, value, where + entry.name)
        if "float" in str(entry.type) and isinstance(value, Integral):
            value = float(value)
        object.__setattr__(options, entry.name, value)


def single(value: Any) -> Any:
    """NumPy's and torch's single numbers as Python's; everything else unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value


def check_value(entry: Field[Any], value: Any, name: str) -> None:
    """Refuse a value that a field cannot have; the message calls the field `name`."""
    if not entry.metadata or (value is None and default_of(entry) is None):
        return
    choices, limits = entry.metadata["choices"], entry.metadata["limits"]
    if choices and (isinstance(value, str) or not limits):
        if value not in choices:
            raise unknown(name, str(value), choices)
        return
    if entry.type == "bool" and not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be true or false, not {value!r}")
    whole = entry.type in ("int", "int | None")
    if limits:
        check_number(name, value, whole=whole, choices=choices, **limits)


def check_number(
    name: str, value: Any, *, whole: bool = False, choices: Iterable[str] = (), **limits: float
) -> None:
    """Refuse anything but a number within the limits; the message also names the `choices`."""
    if wanted := _wanted(value, limits, whole, choices):
        raise ConfigurationError(f"{name} must be {wanted}, not {value!r}")


def numbers_by_client(name: str, table: Any, *, whole: bool = False, **limits: float) -> None:
    """Refuse anything but {client: number} within the limits."""
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{name} must be {{client: number}}, not {table!r}")
    for client, value in table.items():
        if wanted := _wanted(value, limits, whole):
            raise ConfigurationError(f"{name} must be {wanted}, {client!r} has {value!r}")


def listed(name: str, value: Any, what: str) -> tuple[Any, ...]:
    """The entries of a list. Text, tables and single values are refused."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{name} must be a list of {what}, not {value!r}")
    return tuple(value)


def _wanted(
    value: Any, limits: Mapping[str, float], whole: bool, choices: Iterable[str] = ()
) -> str:
    """What the value should have been, in words; empty if it is fine."""
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        return "a whole number" if whole else "a number"
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        number = inf
    if not isfinite(number):
        return " and ".join(filter(None, [_in_words(limits, choices), "finite"]))
    fits = all(holds(number, limits[name]) for name, _, holds in LIMITS if name in limits)
    return "" if fits else _in_words(limits, choices)


def describe_range(entry: Field[Any]) -> str:
    """The limits of an option in words, and its choices."""
    return _in_words(entry.metadata["limits"], entry.metadata["choices"])


def _in_words(limits: Mapping[str, float], choices: Iterable[str] = ()) -> str:
    within = [f"{word} {_number(limits[name])}" for name, word, _ in LIMITS if name in limits]
    return " | ".join([*choices, *([" and ".join(within)] if within else [])])


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def default_of(entry: Field[Any]) -> Any:
    if entry.default is not MISSING:
        return entry.default
    return None if entry.default_factory is MISSING else entry.default_factory()
