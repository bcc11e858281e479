"""The state of a rule between rounds: a handle that can be used once, and its exact packed form.

A state is a tree of `Component` dataclasses whose fields are arrays, numbers, strings, None, plain
lists, or further components. `State.pack` turns it into named arrays and a JSON-able dictionary,
`State.unpack` back, bit for bit. `pack_server` does the same for a whole server; the checkpoints of
the simulator and of Flower are made of it.

Compatibility. `VERSION` rises when a field is removed, renamed or changes its meaning. A new field
with a default needs no new version: older checkpoints take the default. A checkpoint of another
version, or with unknown fields, is refused.
"""

from __future__ import annotations

import copy as copying
from collections.abc import Mapping
from dataclasses import MISSING, fields
from types import UnionType
from typing import Any, NamedTuple, Union, final, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import StateError
from fedsteer.steering.clients import Clients
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, kernels_for, kernels_named, library_of
from fedsteer.steering.probability import Known
from fedsteer.steering.table import Table

VERSION = 4
Arrays = dict[str, NDArray[Any]]


class State:
    """A rule's memory, usable once: `Rule.step` consumes it and returns the next one.

    The k x d buffers are reused from round to round, so an old handle would silently see new
    numbers; it raises `StateError` instead. `copy()` gives an independent state.
    """

    def __init__(self, rule: str, memory: Component) -> None:
        self.rule = rule
        self._memory: Component | None = memory

    def __repr__(self) -> str:
        return f"<{'used-up ' if self._memory is None else ''}state of {self.rule}>"

    @property
    def memory(self) -> Component:
        """The components, to read. Raises `StateError` once the state is used up."""
        if self._memory is None:
            raise StateError(
                f"this {self.rule} state was used up by an earlier step; use step.state, "
                "or state.copy() before the step if you need both"
            )
        return self._memory

    @property
    def clients(self) -> ClientsView:
        """Its clients: members, sizes, when they were last seen, probabilities."""
        clients = getattr(self.memory, "clients", None)
        if clients is None:
            raise StateError(f"a state of {self.rule} has no clients")
        return ClientsView(clients)

    def consume(self) -> Component:
        """Take the components; this handle is used up."""
        memory = self.memory
        self._memory = None
        return memory

    def renew(self) -> State:
        """The handle that takes the place of this one, which is used up."""
        return State(self.rule, self.consume())

    def copy(self) -> State:
        """An independent state with equal contents."""
        return State(self.rule, _clone(self.memory))

    @property
    def nbytes(self) -> int:
        """Memory held by all arrays of the state."""
        return _nbytes(self.memory)

    def pack(self, *, copy: bool = True) -> tuple[Arrays, dict[str, Any]]:
        """Named NumPy arrays and a JSON-able dictionary that together are the whole state.

        Without `copy`, arrays may share memory with the state, until the next step.
        """
        arrays: Arrays = {}
        tree = _pack(self.memory, "state", arrays)
        if copy:
            arrays = {name: array.copy() for name, array in arrays.items()}
        return arrays, {"version": VERSION, "rule": self.rule, "state": tree}

    @staticmethod
    def unpack(arrays: Mapping[str, NDArray[Any]], meta: Any, like: Array | None = None) -> State:
        """The state that `pack` wrote; torch arrays go to the device of `like`."""
        version = meta.get("version") if isinstance(meta, dict) else None
        if version != VERSION:
            raise StateError(
                f"checkpoint has state version {version}, this release reads {VERSION}: start the "
                "run again in another folder, or finish it with the release that began it"
            )
        memory = _unpack(meta.get("state"), arrays, like)
        if not isinstance(memory, Component) or not isinstance(meta.get("rule"), str):
            raise StateError("checkpoint holds no state")
        return State(meta["rule"], memory)


@final
class ClientsView:
    """The clients of a state, read-only. Take a new one from the state after each step."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def __repr__(self) -> str:
        return f"<{len(self)} clients after round {self.number}>"

    def __len__(self) -> int:
        return int((self._clients.sizes.values > 0).sum())

    @property
    def number(self) -> int:
        """The number of the last round."""
        return self._clients.number

    @property
    def rounds(self) -> int:
        """Training rounds so far; those of a warm-up do not count."""
        return self._clients.rounds

    @property
    def members(self) -> list[ClientId]:
        """The ids of all members."""
        return self._clients.members()

    @property
    def silent(self) -> list[ClientId]:
        """Clients of a closed population that were silent for too long, until they return."""
        roster, away = self._clients.roster, self._clients.away.values
        return [roster.name(int(slot)) for slot in np.flatnonzero(away > 0)]

    @property
    def sizes(self) -> dict[ClientId, float]:
        """n_i of each member."""
        return self._of_members(self._clients.sizes)

    @property
    def last_seen(self) -> dict[ClientId, int]:
        """The last round each member took part in; 0: none yet."""
        return self._of_members(Table(self._clients.attendance.last))

    @property
    def probabilities(self) -> dict[ClientId, float] | None:
        """p_i of each member if it takes part in the next round; None if rounds bring them."""
        source, names = self._clients.source, self.members
        if isinstance(source, Known):
            return None
        slots = self._clients.roster.find(names)
        found = 1.0 / source.inverse(
            slots, self._clients.clock + 1, np.zeros(len(slots), dtype=bool)
        )
        return dict(zip(names, found.tolist(), strict=True))

    def _of_members(self, table: Table) -> dict[ClientId, Any]:
        names = self.members
        return dict(zip(names, table[self._clients.roster.find(names)].tolist(), strict=True))


class Server(NamedTuple):
    """A server between two rounds: all that it needs to continue."""

    state: State
    moments: State  # of the `ServerOptimiser`
    model: Array


def pack_server(state: State, moments: State, model: Array) -> tuple[Arrays, dict[str, Any]]:
    """Named NumPy arrays and a JSON-able dictionary that together are the whole server.

    The arrays may share memory with the server: write them before its next step.
    """
    arrays: Arrays = {}
    meta: dict[str, Any] = {}
    for name, part in (("rule", state), ("moments", moments)):
        own, meta[name] = part.pack(copy=False)
        arrays |= {f"{name}/{key}": array for key, array in own.items()}
    meta["model"] = _pack(model, "model", arrays)
    return arrays, meta


def unpack_server(
    arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any], like: Array | None = None
) -> Server:
    """The server that `pack_server` packed; torch arrays go to the device of `like`."""
    state, moments = (
        State.unpack(below(f"{name}/", arrays), meta.get(name), like=like)
        for name in ("rule", "moments")
    )
    if "model" not in meta:
        raise StateError("checkpoint holds no model")
    return Server(state=state, moments=moments, model=_unpack(meta["model"], arrays, like))


def below(prefix: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays whose names begin with this prefix, without it."""
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or library_of(value) == "torch"


def _nbytes(value: Any) -> int:
    if isinstance(value, Component):
        return sum(map(_nbytes, vars(value).values()))
    return value.nbytes if _is_array(value) else 0


def _clone(value: Any) -> Any:
    if isinstance(value, Component):
        return type(value)(**{f.name: _clone(getattr(value, f.name)) for f in fields(value)})
    return kernels_for(value).clone(value) if _is_array(value) else copying.deepcopy(value)


def _pack(value: Any, name: str, arrays: Arrays) -> Any:
    if isinstance(value, Component):
        inner = {
            field.name: _pack(getattr(value, field.name), f"{name}.{field.name}", arrays)
            for field in fields(value)
        }
        return {"component": type(value).__name__, "fields": inner}
    if _is_array(value):
        arrays[name], dtype = kernels_for(value).to_host(value)
        shape = list(arrays[name].shape)
        return {"array": name, "library": library_of(value), "dtype": dtype, "shape": shape}
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    return copying.deepcopy(value)


def _unpack(tree: Any, arrays: Mapping[str, NDArray[Any]], like: Array | None) -> Any:
    if not isinstance(tree, dict):
        return copying.deepcopy(tree)  # two states of one checkpoint must not share a list
    if "array" in tree:
        if tree["array"] not in arrays:
            raise StateError(f"checkpoint lacks the array {tree['array']!r}")
        shape = list(arrays[tree["array"]].shape)
        if shape != tree["shape"]:
            raise StateError(
                f"checkpoint has {tree['array']!r} of shape {shape}, not {tree['shape']}"
            )
        kernels = kernels_named(tree["library"])
        beside = like if library_of(like) == tree["library"] else None
        return kernels.from_host(arrays[tree["array"]], tree["dtype"], beside)
    kind = Component._kinds.get(tree.get("component", ""))
    if kind is None:
        raise StateError(f"checkpoint has an unknown part {tree.get('component')!r}")
    strangers = set(tree["fields"]) - {field.name for field in fields(kind)}
    if strangers:
        raise StateError(f"checkpoint has unknown fields {sorted(strangers)} in {kind.__name__}")
    needed = {f.name for f in fields(kind) if f.default is f.default_factory is MISSING}
    if absent := needed - set(tree["fields"]):
        raise StateError(f"checkpoint lacks fields {sorted(absent)} of {kind.__name__}")
    values = {name: _unpack(value, arrays, like) for name, value in tree["fields"].items()}
    hints = get_type_hints(kind, localns=dict(Component._kinds))
    if wrong := [name for name, value in values.items() if not _fits(value, hints[name])]:
        raise StateError(f"checkpoint has wrong values in {sorted(wrong)} of {kind.__name__}")
    return kind(**values)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that its field should have."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if kind is Any:  # arrays of any library, or a component
        return value is None or _is_array(value) or isinstance(value, Component)
    if kind is list:
        return isinstance(value, list) and all(_fits(entry, inner[0]) for entry in value)
    return isinstance(value, (int, float) if kind is float else kind)
