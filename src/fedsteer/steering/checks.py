"""What is wrong with a round as it arrives: ids, shapes, dtypes and impossible numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedsteer.errors import RoundRefused
from fedsteer.steering.ids import ClientId, id_order, plain_ids
from fedsteer.steering.kernels import Array, Floats, Kernels, kernels_for, library_of
from fedsteer.steering.rounds import PER_CLIENT, PerClient, Round

NAMED = 4
"""Clients named in a message besides the first one with the same fault."""
Faults = dict[int, str]
"""Position in the round -> what is wrong with that client."""


class Checked(NamedTuple):
    """A round with plain ids, float64 vectors and one (m, d) array, and the clients at fault."""

    round: Round
    faults: Faults
    kernels: Kernels | None  # for the updates; None: some of them cannot be used


def check_round(
    round: Round, dim: int, like: Array | None = None, *, first: bool = False
) -> Checked:
    """Check a round as it arrives.

    Raises if the round as a whole makes no sense; what concerns one client is a fault. It makes no
    sense if all updates are malformed in the same way: that is a mistake in the loop. But a single
    client is at fault itself, unless this is the `first` round.

    like   zero rows of the library and device the updates must be of, and of the dtype they are
           cast to
    """
    number, clients = whole_number(round.number), plain_ids(round.clients)
    vectors: dict[str, Any] = {
        name: _vector(values, name, len(clients))
        for name in PER_CLIENT
        if (values := getattr(round, name)) is not None
    }
    updates, faults, kernels = _matrix(round.updates, clients, dim, like)
    alike = len(faults) == len(clients) and len(set(faults.values())) == 1
    if alike and (first or len(clients) > 1):
        raise RoundRefused(
            f"{explain(faults, clients)}; an update is one vector of {dim} floating-point numbers, "
            "w_sent - w_returned, with all layers flattened and joined",
            clients,
        )
    refresh = None if round.refresh is None else _refreshed(round.refresh, clients)
    if len(set(clients)) < len(clients):
        times = Counter(clients)
        for position, client in enumerate(clients):
            if times[client] > 1:
                faults.setdefault(position, "appears more than once")
    for name, values in vectors.items():
        kind = PER_CLIENT[name]
        for position in _impossible(values, kind):
            if refresh and clients[position] in refresh and kind.if_refreshed is not None:
                values[position] = kind.if_refreshed
            else:
                faults.setdefault(position, f"{name} {kind.must}")
    own = {"number": number, "clients": clients, "updates": updates, "refresh": refresh}
    return Checked(replace(round, **own, **vectors), faults, kernels)


def whole_number(number: Any) -> int:
    """The number of a round as int."""
    if isinstance(number, (int, np.integer)) and not isinstance(number, bool):
        return int(number)
    raise RoundRefused(f"the number of a round is a whole number, not {number!r}")


def explain(faults: Faults, clients: Sequence[Any]) -> str:
    """One line that names the clients at fault, grouped by what is wrong with them."""
    by_reason: dict[str, dict[str, None]] = {}
    for i, reason in sorted(faults.items()):
        by_reason.setdefault(reason, {})[repr(clients[i])] = None  # a repeated client, once
    parts = []
    for reason, (first, *others) in by_reason.items():
        more = [*others[:NAMED], *([f"{len(others) - NAMED} more"] if others[NAMED:] else [])]
        parts.append(
            f"client {first} {reason}" + (f" (the same for {', '.join(more)})" if more else "")
        )
    return "; ".join(parts)


def kind_of(updates: Any, model: Array | None, dim: int) -> Array | None:
    """Zero rows like the first update that can be used, or else like the model."""
    for array in [*(updates if isinstance(updates, (list, tuple)) else [updates]), model]:
        if kernels_for(array).check(array) is None and array.shape[-1:] == (dim,):
            return zero_rows(array, dim)
    return None


def untracked(array: Array) -> Array:
    """The numbers without the gradients that torch may track beside them."""
    return array.detach() if hasattr(array, "detach") else array


def zero_rows(like: Array, dim: int) -> Array:
    """(0, d) of the library, type and device of `like`."""
    return kernels_for(like).allocate((0, dim), like)


def _vector(values: Any, name: str, count: int) -> Floats:
    try:
        if not isinstance(values, np.ndarray) and hasattr(values, "tolist"):
            values = values.tolist()  # of a tensor, perhaps on a GPU
        vector = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise RoundRefused(f"{name} must be {count} numbers") from None
    if vector.shape != (count,):
        raise RoundRefused(f"{name} has shape {vector.shape}, expected ({count},)")
    return vector


def _impossible(values: Floats, kind: PerClient) -> list[int]:
    """Positions of numbers that no client may have; nan is one."""
    allowed = (kind.low <= values) & (values <= kind.high)
    if kind.whole:
        allowed &= values == np.floor(values)
    return np.flatnonzero(~allowed).tolist()


def _refreshed(refresh: Sequence[ClientId], clients: list[ClientId]) -> list[ClientId]:
    refreshed = plain_ids(refresh)
    if strangers := sorted(set(refreshed) - set(clients), key=id_order):
        names = ", ".join(map(repr, strangers))
        raise RoundRefused(f"refresh names clients that sent no update: {names}", strangers)
    return refreshed


def _matrix(
    updates: Any, clients: list[ClientId], dim: int, like: Array | None
) -> tuple[Array, Faults, Kernels | None]:
    """One (m, d) array and its kernels.

    A vector of a sequence that cannot be used is a fault of its client.
    """
    if not clients and _is_empty(updates):
        nothing = np.zeros((0, dim), np.float32) if like is None else like
        return nothing, {}, kernels_for(nothing)
    if isinstance(updates, (list, tuple)):
        if len(updates) != len(clients):
            raise RoundRefused(f"{len(updates)} updates for {len(clients)} clients", clients)
        if faults := _unusable(updates, dim, like):
            return updates, faults, None
        with np.errstate(over="ignore", invalid="ignore"):  # found later
            updates = kernels_for(updates[0]).stack([_cast(update, like) for update in updates])
    kernels = kernels_for(updates)
    if problem := kernels.check(updates):
        raise RoundRefused(problem, clients)
    if updates.shape != (len(clients), dim):
        raise RoundRefused(
            f"updates have shape {tuple(updates.shape)}, expected ({len(clients)}, {dim}): "
            "one row per client, one column per model weight",
            clients,
        )
    if like is not None and not _is_beside(updates, like):
        raise RoundRefused(f"updates are {_kind(updates)}, earlier rounds had {_kind(like)}")
    return untracked(_cast(updates, like)), {}, kernels


def _cast(array: Array, like: Array | None) -> Array:
    """In the dtype of `like`. Numbers too large for it become infinite, and are found later."""
    if like is None or array.dtype == like.dtype:
        return array
    if library_of(array) == "torch":
        return array.to(like.dtype)
    with np.errstate(over="ignore"):
        return np.asarray(array).astype(like.dtype)


def _is_empty(updates: Any) -> bool:
    """Whether these are no updates at all, in whichever form."""
    if updates is None or isinstance(updates, (list, tuple)):
        return not updates
    return 0 in getattr(updates, "shape", ())


def _unusable(updates: Sequence[Any], dim: int, like: Array | None) -> Faults:
    """Which of these vectors cannot be used, and why; without `like`, the first usable one is."""
    faults: Faults = {}
    elsewhere: Faults = {}
    for position, update in enumerate(updates):
        if problem := kernels_for(update).check(update):
            faults[position] = f"cannot be used: {problem}"
        elif update.shape != (dim,):
            faults[position] = f"update has shape {tuple(update.shape)}, expected ({dim},)"
        elif like is None:
            like = update
        elif not _is_beside(update, like):
            elsewhere[position] = f"sent {_kind(update)}, but other updates are {_kind(like)}"
    if len(elsewhere) == len(updates):
        raise RoundRefused(f"updates are {_kind(updates[0])}, earlier rounds had {_kind(like)}")
    return faults | elsewhere


def _is_beside(array: Array, like: Array) -> bool:
    """Whether both are of one library, on one device."""
    if type(array) is not type(like) and library_of(array) != library_of(like):
        return False
    return bool(getattr(array, "device", None) == getattr(like, "device", None))


def _kind(array: Array) -> str:
    """Library and device, in words."""
    place = getattr(array, "device", "cpu")
    return f"{library_of(array)} arrays" + ("" if str(place) == "cpu" else f" on {place}")
