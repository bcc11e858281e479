"""`Rule`: an algorithm, and the one way its rounds are planned and aggregated.

A rule has an explicit `State` and three moments: `init` before the first round, `plan` (whom to ask
for what) at the start of a round, `step` (updates in, aggregate out) at its end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import final

import numpy as np

from fedsteer.errors import ConfigurationError, Diverged, RoundRefused, StateError
from fedsteer.options import default_of
from fedsteer.rules.algorithm import Algorithm, Memory, Outcome, Requests
from fedsteer.rules.diagnostics import Diagnostics, Step
from fedsteer.rules.options import FREE_OPTIONS, Options
from fedsteer.rules.warm_up import WarmUp, WarmUpMemory
from fedsteer.steering.aligned_step import AlignedStep
from fedsteer.steering.attendance import EVERY, Trust
from fedsteer.steering.bounds import NormBound, SizeBound
from fedsteer.steering.checks import check_round, explain, kind_of, whole_number, zero_rows
from fedsteer.steering.clients import Sizes, enrol_population
from fedsteer.steering.ids import ClientId, plain_ids
from fedsteer.steering.kernels import Array, Floats, Integers, kernels_for
from fedsteer.steering.probability import probability_source
from fedsteer.steering.rounds import Active, NotFinite, Round
from fedsteer.steering.state import State


@final
class Rule:
    """A server rule as the simulator, Flower and your own loop use it. Made by `make_rule`."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.warm_up = algorithm, WarmUp(algorithm)
        self.name, self.options = algorithm.name, algorithm.options
        self.own_rate, self.needs = algorithm.own_rate, algorithm.needs
        self.uses_probabilities = algorithm.uses_probabilities
        self._values = vars(self.options)
        shared = [entry.name for entry in fields(Options) if entry.name not in FREE_OPTIONS]
        depends = [*shared, *algorithm.state_options]
        self._made_with = ", ".join(f"{name}={self._values[name]!r}" for name in depends)

    def __repr__(self) -> str:
        defaults = {entry.name: default_of(entry) for entry in fields(self.options)}
        changed = (f", {n}={value!r}" for n, value in self._values.items() if value != defaults[n])
        return f"Rule({self.name}{''.join(changed)})"

    def init(self, dim: int, sizes: Sizes | None = None, like: Array | None = None) -> State:
        """The state before round 1.

        dim     number of model weights d
        sizes   data points of each client: a sequence (clients 0..N-1) or {id: points}. Without,
                the population is open and sizes come with the rounds (1 each if they do not)
        like    an array of the library and device of the updates and of the dtype they are cast
                to; else the first update decides
        """
        factor, times = self.options.norm_bound, self.options.update_bound
        bound = NormBound(factor=factor, times=times) if factor or times else None
        source = probability_source(self.options.probabilities, self.options.interval_cap)
        clients = enrol_population(dim, sizes, source, bound)
        if self.options.discount_estimates:
            clients.attendance.trust = Trust()
        if self.options.size_bound is not None:
            clients.size_bound = SizeBound(times=self.options.size_bound)
        first = self.warm_up if self.options.warms_up else self.algorithm
        memory = Memory(
            clients=clients,
            own=first.begin(clients),
            made_with=self._made_with,
            aligned=AlignedStep() if self.options.step == "aligned" else None,
        )
        if like is not None:
            if problem := kernels_for(like).check(like):
                raise ConfigurationError(f"like cannot be used: {problem}")
            memory.like = zero_rows(like, dim)
        return State(self.name, memory)

    def plan(
        self,
        state: State,
        number: int,
        available: Sequence[ClientId],
        reachable: Sequence[ClientId] | None = None,
    ) -> Requests:
        """Which clients to ask for what in round `number`.

        `available` are the clients that take part by themselves; `reachable` those that could be
        asked for a refresh (default: every member of a closed population).
        """
        memory, number = self._memory_of(state), whole_number(number)
        if number <= memory.clients.number:
            raise RoundRefused(f"round {number} does not follow round {memory.clients.number}")
        asked = Requests(train=tuple(plain_ids(available)))
        return self._acting(memory).request(memory, asked, reachable)

    def step(self, state: State, round: Round) -> Step:
        """Aggregate a round. Consumes `state`; a refused round leaves it as it was.

        So does an interrupt (Ctrl-C) before the commit. An interrupt during the commit leaves the
        state used up, because it could be half old and half new.
        """
        memory = self._memory_of(state)
        like = memory.like
        if like is None:
            like = kind_of(round.updates, round.model, memory.clients.dim)
        active, outcome, dropped = self._compute(memory, round, like)
        factor = self._bound(memory, active, outcome)
        return self._commit(state, memory, active, outcome, factor, dropped)

    def leave(self, state: State, clients: Sequence[ClientId]) -> State:
        """Clients leave for good, with all that is known of them. Consumes `state`."""
        memory = self._memory_of(state)
        names, slots = memory.clients.resolve(dict.fromkeys(plain_ids(clients)), silent=True)
        new_state = state.renew()
        self._acting(memory).forget(memory, slots, memory.clients.sizes[slots])
        memory.clients.leave(names)
        return new_state

    def lose(self, state: State, rows: Mapping[str, Sequence[int]]) -> State:
        """Go on without these rows of packed arrays (array -> rows), which are zero now.

        Consumes `state`. Refused unless the rule knows how.
        """
        memory = self._memory_of(state)
        for name, lost in rows.items():
            own = name.removeprefix("state.own.")
            if own == name or not self._acting(memory).lose(memory, own, lost):
                raise StateError(f"{self.name} cannot go on without {name}")
        return state.renew()

    def estimate(self, state: State, clients: Sequence[ClientId]) -> Array | None:
        """(m, d) the server's estimates of these clients' updates; None if the rule has none."""
        memory = self._memory_of(state)
        slots = memory.clients.resolve(clients)[1]
        if memory.like is None:  # before the first round it is unknown what updates are like
            return None
        return self._acting(memory).estimates(memory, slots)

    def phase(self, state: State) -> str:
        """ "warm-up" or "train": what the next round belongs to."""
        return "warm-up" if isinstance(self._memory_of(state).own, WarmUpMemory) else "train"

    def coordinates(self, state: State, clients: Sequence[ClientId]) -> Floats | None:
        """(m, k) coordinates of these clients in today's basis; None if the rule has none."""
        memory = self._memory_of(state)
        return self._acting(memory).coordinates_of(memory, memory.clients.resolve(clients)[1])

    def _memory_of(self, state: State) -> Memory:
        if state.rule != self.name:
            raise StateError(f"a {state.rule} state was given to {self.name}")
        memory = state.memory
        assert isinstance(memory, Memory)
        if memory.made_with != self._made_with:
            raise StateError(f"the state was made with {memory.made_with}, not {self._made_with}")
        return memory

    def _acting(self, memory: Memory) -> Algorithm:
        """The algorithm, or its warm-up while that lasts."""
        return self.warm_up if isinstance(memory.own, WarmUpMemory) else self.algorithm

    def _compute(
        self, memory: Memory, round: Round, like: Array | None
    ) -> tuple[Active, Outcome, dict[ClientId, str]]:
        """The clients that count, the outcome, and why the other clients were dropped.

        Clients whose input cannot be used are dropped, or the round is refused. Updates that are
        not finite, or too long, show only once the outcome is computed.
        """
        dropped: dict[ClientId, str] = {}
        first = memory.clients.number == 0
        while True:
            checked = check_round(round, memory.clients.dim, like, first=first and not dropped)
            round, clients = checked.round, checked.round.clients
            if "steps" in self.needs and clients and round.steps is None:
                raise RoundRefused(f"{self.name} needs steps: each client's number of local steps")
            active, faults = memory.clients.activate(
                checked,
                uses_probabilities=self.uses_probabilities,
                max_weight=self.options.max_weight,
            )
            refusal = RoundRefused
            if active is not None:
                try:
                    return *self._outcome(memory, active), dropped
                except NotFinite as bad:
                    faults, refusal = dict.fromkeys(bad.positions, bad.reason), Diverged
            if self.options.bad_clients == "refuse":
                raise refusal(explain(faults, clients), [clients[i] for i in sorted(faults)])
            dropped |= {clients[i]: reason for i, reason in faults.items()}
            round = round.without(set(faults))

    def _outcome(self, memory: Memory, active: Active) -> tuple[Active, Outcome]:
        """What the algorithm computes once the longest updates are shortened."""
        acting, bound = self._acting(memory), memory.clients.bound
        # What overflows shows in the results; warnings say nothing more.
        with np.errstate(invalid="ignore", over="ignore"):
            outcome = acting.compute(memory, active)
            if bound is not None and bound.times is not None:
                norms = np.sqrt(outcome.result.squared_norms)
                if norms.max(initial=0.0) > bound.longest:
                    factors = bound.shortening(active.slots, norms)
                    if factors.min() < 1.0:
                        active = active.shortened(factors, norms)
                        outcome = acting.compute(memory, active)
        holds = self.options.nobody_fresh == "hold" and outcome.phase == "train"
        if holds and not active.fresh.any():
            outcome = replace(outcome, action="hold")
        return active, outcome

    def _bound(self, memory: Memory, active: Active, outcome: Outcome) -> float:
        """The factor by which the norm bound shortens the aggregate."""
        bound, result = memory.clients.bound, outcome.result
        if not math.isfinite(result.delta_squared_norm):
            raise Diverged(f"the aggregate of round {active.round.number} is not finite")
        if bound is None or outcome.action != "move":
            return 1.0
        delta_norm, norms = math.sqrt(result.delta_squared_norm), np.sqrt(result.squared_norms)
        return bound.judge(delta_norm, active.slots, norms, active.old_sizes, active.sizes)

    def _commit(
        self,
        state: State,
        memory: Memory,
        active: Active,
        outcome: Outcome,
        bound_factor: float,
        dropped: Mapping[ClientId, str],
    ) -> Step:
        """Use up the old state and write; until here nothing was written."""
        new_state, clients = state.renew(), memory.clients
        delta_norm = bound_factor * math.sqrt(outcome.result.delta_squared_norm)
        delta, step_factor, alignment = self._align(memory, outcome, bound_factor, delta_norm)
        if active.resized:
            clients.welcome(active)
        self._acting(memory).commit(memory, active, outcome)
        last_seen = self._keep_books(memory, active, outcome)
        gone, fading = self._part_with_silent(memory, outcome)
        if outcome.phase == "warm-up" and outcome.action != "hold":  # a cycle is complete
            clients.restart()
        weighted = self.uses_probabilities and outcome.phase == "train"
        diagnostics = Diagnostics(
            phase=outcome.phase,
            number=active.round.number,
            clients=tuple(active.round.clients),
            fresh=tuple(active.fresh.tolist()),
            weights=outcome.weights,
            delta_norm=0.0 if outcome.action == "hold" else step_factor * delta_norm,
            bound_factor=bound_factor,
            step_factor=step_factor,
            alignment=alignment,
            update_factors=active.update_factors,
            trust=active.trust,
            sizes=active.sizes,
            claimed_sizes=active.claimed_sizes,
            dropped=dropped,
            gone=gone,
            fading=fading,
            core_set=outcome.core_set,
            squared_norms=outcome.result.squared_norms,
            inverse_probabilities=active.inverse_probabilities,
            last_seen=last_seen,
            unbiased=active.weights if weighted else None,
            believe=outcome.believe,
        )
        return Step(delta=delta, state=new_state, diagnostics=diagnostics, action=outcome.action)

    def _align(
        self, memory: Memory, outcome: Outcome, bound_factor: float, delta_norm: float
    ) -> tuple[Array, float, float]:
        """Delta as the model moves by it, the factor of the aligned step, and the alignment."""
        delta, factor, alignment = outcome.result.delta, 1.0, math.nan
        if outcome.action == "hold":
            return kernels_for(delta).allocate(tuple(delta.shape), delta), factor, alignment
        if bound_factor != 1.0:
            delta = bound_factor * delta
        if memory.aligned is not None and outcome.action == "restart":
            memory.aligned = AlignedStep()
        elif memory.aligned is not None:
            factor = memory.aligned.factor
            alignment = memory.aligned.observe(delta, delta_norm)
            delta = factor * delta
        return delta, factor, alignment

    def _keep_books(self, memory: Memory, active: Active, outcome: Outcome) -> Integers:
        """What rules share is told of the round; returns when its clients were last seen before."""
        clients = memory.clients
        if clients.bound is not None:
            norms = np.sqrt(outcome.result.squared_norms)
            whole = norms if active.whole_norms is None else active.whole_norms
            clients.bound.keep(active.slots, norms, active.old_sizes, active.sizes, whole)
        if memory.like is None and len(active):
            memory.like = zero_rows(active.round.updates, clients.dim)
        return clients.commit(
            active, training=outcome.phase == "train", held=outcome.action == "hold"
        )

    def _part_with_silent(
        self, memory: Memory, outcome: Outcome
    ) -> tuple[Mapping[ClientId, int], Mapping[ClientId, int]]:
        """Clients that were silent for too long leave: they, and those half way there."""
        clients, times = memory.clients, self.options.leave_after
        if times is None or outcome.phase != "train" or clients.rounds % EVERY:
            return {}, {}
        gone, fading = clients.silent(times)
        if gone:
            slots = clients.resolve(gone)[1]
            self.algorithm.forget(memory, slots, clients.sizes[slots])
            clients.leave([*gone], silently=True)
        return gone, fading
