"""What a server rule is: the hooks of `Algorithm`, and the values that pass through them.

A new rule is one file that implements `Algorithm` and one line in `fedsteer.rules.RULES`. How a
round is checked, bounded and committed is written once, in `Rule`, which runs an algorithm.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from fedsteer.errors import ConfigurationError
from fedsteer.rules.options import LENGTH_OPTIONS, Options
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId
from fedsteer.steering.kernels import Array, Floats, Pass

if TYPE_CHECKING:
    from fedsteer.rules.warm_up import Collected
    from fedsteer.steering.aligned_step import AlignedStep
    from fedsteer.steering.clients import Clients
    from fedsteer.steering.rounds import Active

Action = Literal["move", "hold", "restart"]
"""What to do with the model: move it by delta, leave it, or start it anew (end of a warm-up)."""

MEMORY_HOOKS = ("begin", "commit", "forget")
"""An algorithm with a memory of its own implements all of these."""


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Which clients to ask for what in a round.

    The arrays belong to the state: use them before the step, or copy them.
    """

    train: tuple[ClientId, ...] = ()  # their updates enter the aggregate
    refresh: tuple[ClientId, ...] = ()  # theirs only refresh what the server knows of them
    collect: tuple[ClientId, ...] = ()  # asked during a warm-up, while the model stands still
    # Payload for all of them, e.g. {"proximal": mu} or {"control": (d,) array}
    shared: Mapping[str, Any] = field(default_factory=dict)
    # and per client, e.g. {7: {"start": (d,) array}}; a "correction" is added to its gradients.
    each: Mapping[ClientId, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def everyone(self) -> tuple[ClientId, ...]:
        """All clients that are asked for anything."""
        return self.train + self.refresh + self.collect


class Estimates(NamedTuple):
    """What a rule believed of this round's updates."""

    products: Floats  # (m,) g_i . estimate_i
    squares: Floats  # (m,) |estimate_i|^2

    def residuals(self, squares: Floats) -> Floats:
        """(m,) |g_i - estimate_i|^2, where |g_i|^2 are `squares`."""
        return np.maximum(squares - 2 * self.products + self.squares, 0.0)


class Beliefs(NamedTuple):
    """What a rule believed of the active clients, and how good its basis was.

    By default: it had no estimates and has no basis.
    """

    before: Estimates = Estimates(
        products=np.zeros(1), squares=np.zeros(1)
    )  # when the updates came in
    after: Estimates = Estimates(
        products=np.full(1, np.nan), squares=np.full(1, np.nan)
    )  # solved for them
    condition: float = float("nan")  # of the Gram matrix of the basis
    columns: int = 0  # of the basis in use


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an algorithm computed from a round, before anything is written."""

    result: Pass
    weights: Floats  # (m,) factor of g_i in delta
    action: Action = "move"
    phase: str = "train"
    core_set: tuple[ClientId, ...] = ()
    believe: Callable[[], Beliefs] = Beliefs  # called when first looked at
    scratch: Any = None  # what `commit` needs again


@dataclass
class Memory(Component):
    """Everything a rule remembers: the clients, and the algorithm's own part."""

    clients: Clients
    own: Any  # the Component that `Algorithm.begin` returned
    made_with: str  # the options this depends on, in words
    like: Array | None = None  # zero rows of the updates' library, type and device
    aligned: AlignedStep | None = None  # None: every step has its full length


@dataclass
class NoMemory(Component):
    """The own memory of an algorithm that remembers nothing."""


class Algorithm(ABC):
    """A server rule. Subclasses are final: they implement hooks and override nothing else."""

    name: ClassVar[str]
    options_type: ClassVar[type[Options]] = Options
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    own_rate: ClassVar[bool] = False  # True: delta is the whole step; no rate or bound applies
    state_options: ClassVar[tuple[str, ...]] = ()  # options that determine its own memory

    def __init__(self, options: Options) -> None:
        self.options = options
        if self.own_rate:
            for name in LENGTH_OPTIONS:
                if getattr(options, name) not in (None, "fixed"):
                    raise ConfigurationError(
                        f"{self.name} moves the model itself: {name} cannot apply"
                    )

    def __init_subclass__(cls) -> None:
        own = [getattr(cls, name) is not getattr(Algorithm, name) for name in MEMORY_HOOKS]
        if any(own) and not all(own):
            raise TypeError(f"{cls.__name__} must implement all of {', '.join(MEMORY_HOOKS)}")

    @property
    def needs(self) -> frozenset[str]:
        """Which of steps, starts and model of a round it uses."""
        return frozenset()

    @property
    def uses_probabilities(self) -> bool:
        """Whether clients are weighted by 1/p_i."""
        return True

    def begin(self, clients: Clients) -> Component:
        """The algorithm's own memory before the first round, if it has any."""
        return NoMemory()

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        """Change or extend what the clients are asked for; `reachable` None: every member."""
        return asked

    def coordinates_of(self, memory: Memory, slots: Any) -> Floats | None:
        """(m, k) coordinates of these clients, if the algorithm keeps any."""
        return None

    @abstractmethod
    def compute(self, memory: Memory, active: Active) -> Outcome:
        """The aggregate and everything `commit` needs. Writes nothing."""

    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:  # noqa: B027
        """Take the round into the algorithm's own memory."""

    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:  # noqa: B027
        """Clients at these slots, of these sizes, are about to leave."""

    def lose(self, memory: Memory, name: str, rows: Sequence[int]) -> bool:
        """These rows of an array of its own memory are lost; whether it can go on without them."""
        return False

    def after_cycle(
        self, memory: Memory, collected: Collected, cycle: int, *, last: bool
    ) -> Component:
        """Its own memory after a warm-up cycle, for algorithms whose options ask for a warm-up."""
        raise NotImplementedError(f"{self.name} has no warm-up")

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        """(m, d) the server's estimates of these clients' updates, like `memory.like`; None if the
        algorithm has none."""
        return None
