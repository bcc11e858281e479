"""What is wrong with a round as it arrives: ids, shapes, dtypes and impossible numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsteer.errors import RoundRefused
from fedsteer.steering.kernels import Array, Floats, kernels_for, library_of
from fedsteer.steering.roster import ClientId, id_order, plain_ids
from fedsteer.steering.rounds import LARGEST_COUNT, Round

RAREST = 1e-280
"""The least probability: of its inverse, LARGEST_COUNT times and of many, the sum is a number."""
NAMED = 4
"""Clients named in a message beside the first one with the same fault."""
Faults = dict[int, str]
"""Position in the round -> what is wrong with that client."""


def whole_number(number: Any) -> int:
    """The number of a round as int."""
    if type(number) is int:
        return number
    if isinstance(number, (int, np.integer)) and not isinstance(number, bool):
        return int(number)
    raise RoundRefused(f"the number of a round is a whole number, not {number!r}")


def settle_arrays(round: Round, dim: int, like: Array | None = None) -> tuple[Round, Faults]:
    """The round with plain ids, float64 vectors and one (m, d) array, and the clients at fault.

    Raises where the round as a whole makes no sense; what concerns one client is a fault. `like`
    are zero rows of the library and device the updates have to be of.
    """
    number, clients = whole_number(round.number), plain_ids(round.clients)
    count = len(clients)
    probabilities, sizes, steps = round.probabilities, round.sizes, round.steps
    starts, model, refresh = round.starts, round.model, round.refresh
    if probabilities is not None:
        probabilities = _vector(probabilities, "probabilities", count)
    if sizes is not None:
        sizes = _vector(sizes, "sizes", count)
    if steps is not None:
        steps = _vector(steps, "steps", count)
    updates, faults = _matrix(round.updates, clients, dim, like)
    if refresh is not None:
        refresh = plain_ids(refresh)
        if strangers := sorted(set(refresh) - set(clients), key=id_order):
            names = ", ".join(map(repr, strangers))
            raise RoundRefused(f"refresh names clients that sent no update: {names}", strangers)
    if len(set(clients)) < count:
        repeated = Counter(clients)
        _fault(faults, [repeated[client] > 1 for client in clients], "appears more than once")
    # No comparison holds for nan.
    if probabilities is not None:
        bad = [not RAREST <= p <= 1 for p in probabilities.tolist()]
        if refresh and True in bad:
            # Whoever only refreshes weighs nothing, and may be one that never comes by itself.
            asked = set(refresh)
            idle = [wrong and client in asked for wrong, client in zip(bad, clients, strict=True)]
            probabilities = np.where(idle, 1.0, probabilities)
            bad = [wrong and not excused for wrong, excused in zip(bad, idle, strict=True)]
        _fault(faults, bad, "probabilities must be in (0, 1]")
    if sizes is not None:
        _count(faults, sizes, "sizes")
    if steps is not None:
        _count(faults, steps, "steps")
    if starts is not None:
        starts = kernels_for(starts).plain(starts)
    if model is not None:
        model = kernels_for(model).plain(model)
    settled = Round(
        number=number,
        clients=clients,
        updates=updates,
        probabilities=probabilities,
        sizes=sizes,
        steps=steps,
        starts=starts,
        model=model,
        refresh=refresh,
    )
    return settled, faults


def _count(faults: Faults, values: Floats, name: str) -> None:
    bad = [not 0 < value <= LARGEST_COUNT for value in values.tolist()]
    _fault(faults, bad, f"{name} must be positive and finite (at most {LARGEST_COUNT:.0e})")


def _fault(faults: Faults, bad: list[bool], reason: str) -> None:
    if True in bad:
        for position, wrong in enumerate(bad):
            if wrong:
                faults.setdefault(position, reason)


def _vector(values: Any, name: str, count: int) -> Floats:
    try:
        vector = kernels_for(values).floats(values)
    except (TypeError, ValueError):
        raise RoundRefused(f"{name} must be {count} numbers") from None
    if vector.shape != (count,):
        raise RoundRefused(f"{name} has shape {vector.shape}, expected ({count},)")
    return vector


def _matrix(
    updates: Any, clients: list[ClientId], dim: int, like: Array | None
) -> tuple[Array, Faults]:
    """One (m, d) array; a vector of a sequence that cannot be used is a fault of its client."""
    if not clients and _nothing(updates):
        return np.zeros((0, dim), np.float32) if like is None else like, {}
    if isinstance(updates, (list, tuple)):
        if len(updates) != len(clients):
            raise RoundRefused(f"{len(updates)} updates for {len(clients)} clients", clients)
        alike = _alike(updates, dim, like)
        if not alike and (faults := _unlike(updates, dim, like)):
            return updates, faults
        kernels = kernels_for(updates[0])
        updates = kernels.stack(updates)
        if alike:  # all that follows is known of them
            return kernels.plain(updates), {}
    kernels = kernels_for(updates)
    if problem := kernels.check(updates):
        raise RoundRefused(problem, clients)
    if updates.shape != (len(clients), dim):
        raise RoundRefused(
            f"updates have shape {tuple(updates.shape)}, expected ({len(clients)}, {dim}): "
            "one row per client, one column per model weight",
            clients,
        )
    if like is not None and not _beside(updates, like):
        raise RoundRefused(f"updates are {_kind(updates)}, earlier rounds had {_kind(like)}")
    return kernels.plain(updates), {}


def _nothing(updates: Any) -> bool:
    """Whether these are no updates at all, however that is said."""
    if updates is None or isinstance(updates, (list, tuple)):
        return not updates
    return 0 in getattr(updates, "shape", ())


def _alike(updates: Sequence[Any], dim: int, like: Array | None) -> bool:
    """Whether all of these vectors can plainly be used: a quick look at what is usual."""
    first = updates[0]
    if like is None or kernels_for(first).check(first) or not _beside(first, like):
        return False
    if first.shape != (dim,) or len({*map(type, updates)}) > 1:
        return False
    return len({(one.shape, one.dtype, one.device) for one in updates}) == 1


def _unlike(updates: Sequence[Any], dim: int, like: Array | None) -> Faults:
    """Which of these vectors cannot be used, and why; without `like`, the first usable one is."""
    faults: Faults = {}
    astray: Faults = {}
    for position, update in enumerate(updates):
        if problem := kernels_for(update).check(update):
            faults[position] = f"cannot be used: {problem}"
        elif tuple(update.shape) != (dim,):
            faults[position] = f"update has shape {tuple(update.shape)}, expected ({dim},)"
        elif like is None:
            like = update
        elif not _beside(update, like):
            astray[position] = (
                f"sent {_kind(update)}, where others and earlier rounds had {_kind(like)}"
            )
    if len(astray) == len(updates):
        raise RoundRefused(f"updates are {_kind(updates[0])}, earlier rounds had {_kind(like)}")
    return faults | astray


def _beside(array: Array, like: Array) -> bool:
    """Whether they are of one library, on one device."""
    if type(array) is not type(like) and library_of(array) != library_of(like):
        return False
    return bool(getattr(array, "device", None) == getattr(like, "device", None))


def _kind(array: Array) -> str:
    """Library and device, in words."""
    place = getattr(array, "device", "cpu")
    return f"{library_of(array)} arrays" + ("" if str(place) == "cpu" else f" on {place}")


def kind_of(updates: Any, model: Array | None, dim: int) -> Array | None:
    """Zero rows like the first update that can be used, or else like the model."""
    for array in [*(updates if isinstance(updates, (list, tuple)) else [updates]), model]:
        if kernels_for(array).check(array) is None and array.shape[-1:] == (dim,):
            return zero_rows(array, dim)
    return None


def zero_rows(like: Array, dim: int) -> Array:
    """(0, d) of the library, type and device of `like`."""
    kernels = kernels_for(like)
    return kernels.allocate((0, dim), like, kernels.dtype_name(like))


def explain(faults: Faults, clients: Sequence[Any]) -> str:
    """One line that names clients at fault by what is wrong with them."""
    by_reason: dict[str, dict[str, None]] = {}
    for i, reason in sorted(faults.items()):
        by_reason.setdefault(reason, {})[repr(clients[i])] = None  # who is there twice, once
    said = []
    for reason, (first, *others) in by_reason.items():
        more = [*others[:NAMED], *([f"{len(others) - NAMED} more"] if others[NAMED:] else [])]
        said.append(
            f"client {first} {reason}" + (f" (the same for {', '.join(more)})" if more else "")
        )
    return "; ".join(said)
