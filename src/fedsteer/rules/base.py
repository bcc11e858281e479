"""What a rule is, and the one way a step is taken.

A rule has an explicit `State` and three moments: `init` before the first round, `plan` (whom to ask
for what) at the start of a round, `step` (updates in, aggregate out) at its end. `step` is written
once, here: it checks the round, lets the rule `compute`, applies the norm bound, and only then lets
the rule `commit` what it has learnt. A refused round therefore leaves the state untouched.

A new rule is one file that implements `Rule` and one line in `fedsteer.rules.RULES`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np

from fedsteer.errors import ConfigurationError, Diverged, RoundRefused, StateError
from fedsteer.rules.diagnostics import Diagnostics
from fedsteer.rules.options import Options
from fedsteer.rules.parts import Memory, Outcome, Requests, Step
from fedsteer.steering.clients import Clients, Sizes, enrol_population, explain
from fedsteer.steering.kernels import Array, Floats, Integers, kernels_for
from fedsteer.steering.norm_bound import NormBound
from fedsteer.steering.probability import probability_source
from fedsteer.steering.roster import ClientId
from fedsteer.steering.rounds import (
    Active,
    NotFinite,
    Round,
    kind_of,
    plain_ids,
    settle_arrays,
    whole_number,
    zero_rows,
)
from fedsteer.steering.state import Component, State

SHAPING = ("probabilities", "interval_cap", "norm_bound")
"""Options of every rule that live on in its state: another rule cannot go on with it."""

LARGEST = {"float16": 65504.0, "bfloat16": 3e38, "float32": 3e38, "float64": math.inf}
"""Of the numbers of a type."""
FITS_ANY = min(LARGEST.values())
"""An update of this length has no larger number."""


class Rule(ABC):
    """A server rule. Subclasses implement the hooks and nothing else."""

    name: ClassVar[str]
    options_type: ClassVar[type[Options]] = Options
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    own_rate: ClassVar[bool] = False  # True: delta is the whole step, no server rate applies
    needs: ClassVar[frozenset[str]] = frozenset()  # what it uses of steps, starts and model
    shaping: ClassVar[tuple[str, ...]] = ()  # options that the rule's own memory is made by

    def __init__(self, options: Options) -> None:
        if self.own_rate and options.norm_bound is not None:
            raise ConfigurationError(f"{self.name} moves the model itself: norm_bound cannot apply")
        self.options = options
        self._made_with = _in_words(options, *SHAPING, *self.shaping)
        self._briefly = _in_words(options, *SHAPING)  # all that older states tell

    # -- the hooks of a rule ------------------------------------------------------------------

    @property
    def weighs(self) -> bool:
        """Whether clients are weighted by 1/p_i, so that probabilities are needed."""
        return True

    @abstractmethod
    def begin(self, clients: Clients) -> Component:
        """The rule's own memory before the first round."""

    def request(
        self, memory: Memory, asked: Requests, reachable: Sequence[ClientId] | None
    ) -> Requests:
        """Change or add to what is asked of whom; `reachable` None: every member."""
        return asked

    def warming_up(self, memory: Memory) -> bool:
        """Whether the next round belongs to a warm-up."""
        return False

    def coordinates_of(self, memory: Memory, slots: Any) -> Floats | None:
        """(m, k) coordinates kept for these clients, where the rule keeps any."""
        return None

    @abstractmethod
    def compute(self, memory: Memory, active: Active) -> Outcome:
        """The aggregate and what is learnt on the way. Writes nothing."""

    @abstractmethod
    def commit(self, memory: Memory, active: Active, outcome: Outcome) -> None:
        """Take the round into the rule's own memory."""

    @abstractmethod
    def forget(self, memory: Memory, slots: Any, sizes: Floats) -> None:
        """Clients at these slots, of these sizes, are about to leave."""

    def kept_as(self, memory: Memory, updates: Array) -> str | None:
        """The type in which updates are kept as they come; None where they are not."""
        return None

    def estimates(self, memory: Memory, slots: Any) -> Array | None:
        """(m, d) what is believed of these clients' updates, which are like `memory.like`; None:
        the rule keeps no belief."""
        return None

    # -- the life of a state ------------------------------------------------------------------

    @final
    def init(self, dim: int, sizes: Sizes | None = None, like: Array | None = None) -> State:
        """The state before round 1.

        dim     number of model weights d
        sizes   data points of each client: a sequence (clients 0..N-1) or {id: points}. Without,
                the population is open and sizes come with the rounds (1 each where they do not)
        like    an array of the kind the updates will be; else the first round decides
        """
        bound = NormBound(self.options.norm_bound) if self.options.norm_bound else None
        source = probability_source(self.options.probabilities, self.options.interval_cap)
        clients = enrol_population(dim, sizes, source, bound)
        memory = Memory(clients, self.begin(clients), made_with=self._made_with)
        if like is not None:
            if problem := kernels_for(like).check(like):
                raise ConfigurationError(f"like cannot be used: {problem}")
            memory.like = zero_rows(like, dim)
        return State(self.name, memory)

    @final
    def plan(
        self,
        state: State,
        number: int,
        available: Sequence[ClientId],
        reachable: Sequence[ClientId] | None = None,
    ) -> Requests:
        """What to ask of whom in round `number`.

        `available` are the clients that take part by themselves; `reachable` those that could be
        asked for a refresh (default: every member of a closed population).
        """
        memory, number = self._open(state), whole_number(number)
        if number <= memory.clients.number:
            raise RoundRefused(f"round {number} does not follow round {memory.clients.number}")
        asked = Requests(train=tuple(plain_ids(available)))
        return self.request(memory, asked, reachable)

    @final
    def step(self, state: State, round: Round) -> Step:
        """Aggregate a round. Consumes `state`; a refused round leaves it as it was.

        So does an interrupt (Ctrl-C) while it is computed; once it is being written, the state is
        used up: it could be half old and half new.
        """
        memory = self._open(state)
        clients = memory.clients
        active, outcome, dropped = self._computed(memory, round)
        factor = self._bound(clients, active, outcome)
        delta = outcome.delta if factor == 1.0 else factor * outcome.delta
        last_seen = clients.last_seen[active.slots]
        step_diagnostics = _diagnose(active, last_seen, outcome, factor, dropped, self.weighs)
        state.consume()
        clients.welcome(active)
        self.commit(memory, active, outcome)
        clients.commit(active, outcome.squared_norms, training=outcome.phase == "train")
        if outcome.phase == "warm-up" and outcome.action != "hold":  # a cycle is complete
            clients.restart()
        if memory.like is None and len(active):
            memory.like = zero_rows(active.updates, clients.dim)
        return Step(delta, State(self.name, memory), step_diagnostics, outcome.action)

    @final
    def leave(self, state: State, clients: Sequence[ClientId]) -> State:
        """Clients leave for good, with all that is known of them. Consumes `state`."""
        memory = self._open(state)
        names, slots = memory.clients.resolve(dict.fromkeys(plain_ids(clients)))
        state.consume()
        self.forget(memory, slots, memory.clients.sizes[slots])
        memory.clients.leave(names)
        return State(self.name, memory)

    @final
    def estimate(self, state: State, clients: Sequence[ClientId]) -> Array | None:
        """(m, d) what the server believes these clients' updates are; None if the rule has none."""
        memory = self._open(state)
        slots = memory.clients.resolve(clients)[1]
        # Before the first round nobody has said what updates are like.
        return None if memory.like is None else self.estimates(memory, slots)

    @final
    def phase(self, state: State) -> str:
        """ "warm-up" or "train": what the next round belongs to."""
        return "warm-up" if self.warming_up(self._open(state)) else "train"

    @final
    def coordinates(self, state: State, clients: Sequence[ClientId]) -> Floats | None:
        """(m, k) coordinates of these clients in today's basis; None if the rule has none."""
        memory = self._open(state)
        return self.coordinates_of(memory, memory.clients.resolve(clients)[1])

    # -- inside -------------------------------------------------------------------------------

    def _open(self, state: State) -> Memory:
        if state.rule != self.name:
            raise StateError(f"a {state.rule} state was given to {self.name}")
        memory = state.memory
        assert isinstance(memory, Memory)
        if memory.made_with not in (self._made_with, self._briefly, ""):
            raise StateError(f"the state was made with {memory.made_with}, not {self._made_with}")
        return memory

    def _computed(
        self, memory: Memory, round: Round
    ) -> tuple[Active, Outcome, dict[ClientId, str]]:
        """The round without its bad clients, what follows from it, and why they were dropped."""
        clients, like = memory.clients, memory.like
        if like is None:
            like = kind_of(round, clients.dim)
        dropped: dict[ClientId, str] = {}
        while True:
            refusal: type[RoundRefused] = RoundRefused
            round, faults = settle_arrays(round, clients.dim, like)
            found = clients.look_up(round)
            faults = clients.inspect(round, found) | faults
            if not faults:
                active = clients.activate(
                    round, found, weighs=self.weighs, max_weight=self.options.max_weight
                )
                try:
                    # What leaves the range shows in the results; warnings say nothing more.
                    with np.errstate(invalid="ignore", over="ignore"):
                        outcome = self.compute(memory, active)
                    faults = self._too_long_to_keep(memory, active, outcome)
                    if not faults:
                        break
                except NotFinite as bad:
                    refusal = Diverged
                    faults = dict.fromkeys(bad.positions, bad.reason)
            if self.options.bad_clients == "refuse":
                culprits = [round.clients[i] for i in sorted(faults)]
                raise refusal(explain(faults, round.clients), culprits)
            dropped |= {round.clients[i]: reason for i, reason in faults.items()}
            round = round.without(set(faults))
        if not math.isfinite(outcome.delta_squared_norm):
            raise Diverged(f"the aggregate of round {round.number} is not finite")
        return active, outcome, dropped

    def _too_long_to_keep(self, memory: Memory, active: Active, outcome: Outcome) -> dict[int, str]:
        """Updates that would not be numbers any more in the type in which they are kept."""
        squares = outcome.squared_norms.tolist()
        if not squares or max(squares) <= FITS_ANY**2:
            return {}
        kernels, updates = active.kernels, active.updates
        kept = self.kept_as(memory, updates)
        if kept is None or (most := LARGEST[kept]) >= LARGEST[kernels.dtype_name(updates)]:
            return {}
        reason = f"sent an update too long for {kept}, in which it would be kept"
        long = [i for i, square in enumerate(squares) if square > most**2]
        return {i: reason for i in long if kernels.largest(updates, i) > most}

    def _bound(self, clients: Clients, active: Active, outcome: Outcome) -> float:
        if clients.bound is None or outcome.action != "move":
            return 1.0
        norms = np.sqrt(outcome.squared_norms)
        known = clients.bound.preview(active.slots, norms, active.old_sizes, active.sizes)
        return clients.bound.scale(float(np.sqrt(outcome.delta_squared_norm)), *known)


def _in_words(options: Options, *names: str) -> str:
    return ", ".join(f"{name}={_plain(getattr(options, name))!r}" for name in names)


def _plain(value: Any) -> Any:
    """Without NumPy's scalars, which call themselves otherwise."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _diagnose(
    active: Active,
    last_seen: Integers,
    outcome: Outcome,
    factor: float,
    dropped: Mapping[ClientId, str],
    weighs: bool,
) -> Diagnostics:
    moves = outcome.action != "hold"
    delta_norm = factor * math.sqrt(outcome.delta_squared_norm) if moves else 0.0
    unbiased = active.weights if weighs and outcome.phase == "train" else None
    return Diagnostics(  # by position, as `Active`
        outcome.phase, active.number, active.clients, tuple(active.fresh.tolist()),
        outcome.weights, delta_norm, factor, dropped, outcome.core_set,
        outcome.squared_norms, active.inverse, last_seen, unbiased, outcome.beliefs,
    )  # fmt: skip
