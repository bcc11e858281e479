"""What passes between the step that is written once, in `base`, and the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from fedsteer.rules.diagnostics import Beliefs, Diagnostics
from fedsteer.steering.clients import Clients
from fedsteer.steering.kernels import Array, Floats, kernels_for
from fedsteer.steering.roster import ClientId
from fedsteer.steering.state import Component, State
from fedsteer.values import value

Action = Literal["move", "hold", "restart"]
"""What to do with the model: move it by delta, leave it, or start it anew (end of a warm-up)."""


@value
class Requests:
    """Whom to ask for what in a round.

    train     clients whose update enters the aggregate
    refresh   clients asked for an update that only refreshes what is known of them
    collect   clients asked during a warm-up, while the model stands still
    shared    payload for everyone, e.g. {"proximal": mu} or {"control": (d,) array}
    each      payload per client, e.g. {7: {"start": (d,) array}}

    Arrays are the state's own: use them before the step, or copy them.
    """

    train: tuple[ClientId, ...] = ()
    refresh: tuple[ClientId, ...] = ()
    collect: tuple[ClientId, ...] = ()
    shared: Mapping[str, Any] = field(default_factory=dict)
    each: Mapping[ClientId, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def everyone(self) -> tuple[ClientId, ...]:
        """All clients asked for anything."""
        return self.train + self.refresh + self.collect


@value
class Step:
    """The result of a step: w <- w - rate * delta if action is "move"."""

    delta: Array  # (d,) float32, or float64 for float64 updates
    state: State
    diagnostics: Diagnostics
    action: Action = "move"


@value
class Outcome:
    """What a rule computed from a round before anything is written."""

    delta: Array
    delta_squared_norm: float
    squared_norms: Floats  # (m,) |g_i|^2
    weights: Floats  # (m,) factor of g_i in delta
    action: Action = "move"
    phase: str = "train"
    core_set: tuple[ClientId, ...] = ()
    beliefs: Callable[[], Beliefs] = Beliefs  # must not hold on to anything of size d
    scratch: Any = None  # what `commit` needs again


@dataclass
class Memory(Component):
    """A rule's whole memory: the clients, and what the rule itself keeps."""

    clients: Clients
    own: Component
    like: Array | None = None  # zero rows of the updates' library, type and device
    made_with: str = ""  # the options that live on in the state, in words


Own = TypeVar("Own", bound=Component)


def own_of(memory: Memory, kind: type[Own]) -> Own:
    """What the rule itself keeps, which is of this kind."""
    assert isinstance(memory.own, kind)
    return memory.own


def no_estimates(memory: Memory, count: int) -> Array:
    """(count, d) zeros like the updates."""
    kernels = kernels_for(memory.like)
    shape = (count, memory.clients.dim)
    return kernels.allocate(shape, memory.like, kernels.dtype_name(memory.like))
