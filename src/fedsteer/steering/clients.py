"""The clients of a federation, and what each of them weighs.

With sizes given at the start the population is closed: d_i = n_i / sum n, and a newcomer must
bring its size. Without, it is open, and n is estimated (`population`).
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from fedsteer.errors import ConfigurationError, RoundRefused
from fedsteer.steering.attendance import LAST, Attendance
from fedsteer.steering.bounds import NormBound, SizeBound
from fedsteer.steering.checks import Checked, Faults
from fedsteer.steering.component import Component
from fedsteer.steering.ids import ClientId, Roster, plain_ids
from fedsteer.steering.kernels import Flags, Floats, Integers
from fedsteer.steering.population import PopulationEstimate
from fedsteer.steering.probability import Known, ProbabilitySource
from fedsteer.steering.rounds import LARGEST_COUNT, Active
from fedsteer.steering.table import OUTWEIGHS, Table

Sizes = Sequence[float] | Mapping[ClientId, float] | Floats
LAST_ROUND = 1 << 62
"""No round has a number as high as this."""
FAINT = 1e-100
"""Rounds that have faded as far as this are no longer kept as a factor, which would become 0."""


@dataclass
class Clients(Component):
    """Ids, sizes and visits; with them the probability source and the norm bound."""

    dim: int
    roster: Roster
    sizes: Table  # n_i; 0: not a member
    closed: bool
    source: ProbabilitySource
    bound: NormBound | None = None
    size_bound: SizeBound | None = None
    total: float = 0.0  # sum of n_i over members
    population: PopulationEstimate = field(default_factory=PopulationEstimate)  # if it is open
    counted: Table = field(default_factory=lambda: Table.empty(0))  # in its mean, over its fade
    rounds: int = 0  # training rounds so far
    number: int = 0  # of the last round
    idle: int = 0  # rounds that held the model because there was no fresh update
    attendance: Attendance = field(default_factory=Attendance)
    away: Table = field(default_factory=lambda: Table.empty(0))  # n_i of clients that fell silent

    @property
    def clock(self) -> int:
        """The last round as sources of probabilities count them: without idle ones."""
        return self.number - self.idle

    def members(self) -> list[ClientId]:
        ids = self.roster.everyone()
        present = self.sizes[self.roster.find(ids)] > 0
        return [client for client, here in zip(ids, present, strict=True) if here]

    def check_spelling(self, option: str, names: Sequence[ClientId]) -> None:
        """Refuse 3 for the member "3" and vice versa, and a list without any member."""
        for name, slot in zip(names, self.roster.find(names), strict=True):
            if slot < 0:
                digits = isinstance(name, str) and name.isdecimal()
                other = int(name) if digits else str(name)
                if self.roster.find([other])[0] >= 0:
                    raise ConfigurationError(f"{option} names {name!r}, the client is {other!r}")
        if self.closed and names and self.roster.find(names).max() < 0:
            raise ConfigurationError(f"{option} names none of the clients, but {names[0]!r}")

    def activate(
        self, checked: Checked, *, uses_probabilities: bool, max_weight: float | None
    ) -> tuple[Active | None, Faults]:
        """Weights and everything else of size m; None if there are faults. Writes nothing.

        Newcomers have the slot they will get. Without a size, a closed population refuses them.
        """
        round, faults, kernels = checked
        if not self.number < round.number < LAST_ROUND:
            raise RoundRefused(f"round number {round.number} does not follow round {self.number}")
        slots = self.roster.preview(round.clients)
        count, old_sizes = len(slots), self.sizes[slots]
        sizes, strangers = self._believed_sizes(round.sizes, slots, old_sizes)
        faults = strangers | faults
        if faults or kernels is None:
            return None, faults
        resized = round.sizes is not None or not self.closed or bool((old_sizes <= 0).any())
        probabilities, clock = round.probabilities, round.number - self.idle
        refreshed = set(round.refresh or ())
        fresh = np.array([client not in refreshed for client in round.clients], dtype=bool)
        passed = probabilities is not None and isinstance(self.source, Known)
        if uses_probabilities and not passed:
            inverse = self.source.inverse(slots, clock, fresh)
        else:
            inverse = np.ones(count) if probabilities is None else 1.0 / probabilities
        total, population = self.total, None
        if resized:
            total += float((sizes - old_sizes).sum())
        if not self.closed:
            population = self._grown_population(slots, sizes - old_sizes).after(
                sizes=sizes,
                old_sizes=old_sizes,
                inverse_probabilities=inverse,
                fresh=fresh,
                drift=self.source.drift(slots, clock, fresh) if uses_probabilities else 1.0,
            )
            if uses_probabilities:
                total = population.total(seen=total)
        shares = sizes / total if total > 0 else np.zeros(count)
        weights = np.where(fresh, shares * inverse, 0.0)
        if max_weight is not None:
            weights = np.minimum(weights, max_weight)
        active = Active(
            round=round,
            kernels=kernels,
            slots=slots,
            fresh=fresh,
            sizes=sizes,
            old_sizes=old_sizes,
            new=~self.came(slots),
            resized=resized,
            total=total,
            shares=shares,
            inverse_probabilities=inverse,
            weights=weights,
            population=population,
            trust=1.0 if (trust := self.attendance.trust) is None else trust.factor,
            claimed_sizes=round.sizes,
        )
        return active, {}

    def _believed_sizes(
        self, reported: Floats | None, slots: Integers, known: Floats
    ) -> tuple[Floats, Faults]:
        """n_i for this round, and who has none; `known` are those before it."""
        if not known.all():
            known = np.where(known > 0, known, self.away[slots])  # some fell silent and are back
        if reported is not None:
            bound = self.size_bound
            return (reported if bound is None else bound.limit(slots, reported, known)), {}
        strangers = np.flatnonzero(known <= 0)
        if not self.closed:
            known[strangers] = 1.0
            return known, {}
        reason = "is unknown, and its number of data points was not given: it cannot join"
        return known, dict.fromkeys(strangers.tolist(), reason)

    def _grown_population(self, slots: Integers, growth: Floats) -> PopulationEstimate:
        """The population if these clients had always had this many points more each."""
        counted = self.population.fade * self.counted[slots]
        return self.population.grown(float(growth @ counted))

    def total_without(self, slots: Integers, *, uses_probabilities: bool) -> float:
        """n once these clients have left."""
        staying = self.sizes.values.copy()
        staying[slots] = 0.0
        total = float(staying.sum())
        if uses_probabilities and not self.closed:
            leaving = float(self.sizes[slots].sum())
            return self.population.grown(-leaving).total(seen=total)
        return total

    def sizes_now(self, count: int, active: Active | None = None) -> Floats:
        """n_i of the first `count` slots; of active clients, from this round on."""
        sizes: Floats = self.sizes[np.arange(count)]
        if active is not None:
            sizes[active.slots] = active.sizes
        return sizes

    def welcome(self, active: Active) -> None:
        """Give newcomers their slots; this comes before the algorithm's own commit."""
        newcomers = active.old_sizes <= 0
        if newcomers.any():
            self.roster.enrol(active.round.clients)
            self.source.join(active.slots[newcomers], active.round.number - self.idle)

    def commit(self, active: Active, *, training: bool, held: bool = False) -> Integers:
        """Take in the round; when its clients were last seen before it (0: never).

        Warm-up rounds (`training` False) count no participation. Nor do rounds without a fresh
        update, if they hold the model (`held`): for estimated p_i, they never were.
        """
        if active.resized:
            self.sizes[active.slots] = active.sizes
            self.total += float((active.sizes - active.old_sizes).sum())
            if active.old_sizes.max(initial=0.0) > OUTWEIGHS * self.total:
                self.total = float(self.sizes.values.sum())
        came, expected = active.slots[active.fresh], None
        self.number = active.round.number
        self.rounds += training
        if training and held and not len(came):
            self.idle += 1
            self.population = self._grown_population(active.slots, active.sizes - active.old_sizes)
        elif training:
            if active.population is not None:
                self._count(active, active.population)
            expected = self.source.observe(came, self.clock)
        if self.size_bound is not None and active.round.sizes is not None:
            self.size_bound.keep(active.slots, active.round.sizes, active.sizes)
        return self.attendance.note(
            active.slots, self.number, self.clock, came=len(came), expected=expected
        )

    def _count(self, active: Active, population: PopulationEstimate) -> None:
        """Take in the population's estimate, and for how much of it each client stands."""
        slots, inverse = active.slots[active.fresh], active.inverse_probabilities[active.fresh]
        if population.fade < FAINT:
            self.counted.values *= population.fade
            population = replace(population, fade=1.0)
        self.counted[slots] = self.counted[slots] + inverse / (population.rounds * population.fade)
        self.population = population

    def restart(self) -> None:
        """A cycle of a warm-up is complete: visits count from here."""
        self.source.restart(self.clock)
        self.attendance.restart()

    def resolve(
        self, clients: Iterable[ClientId], *, silent: bool = False
    ) -> tuple[list[ClientId], Integers]:
        """Plain ids and slots of members, and of clients that fell `silent`; others are refused."""
        names = plain_ids(clients)
        slots = self.roster.find(names)
        sizes = self.sizes[np.maximum(slots, 0)]
        if silent:
            sizes = sizes + self.away[np.maximum(slots, 0)]
        absent = np.flatnonzero((slots < 0) | (sizes <= 0))
        if len(absent):
            strangers = [names[i] for i in absent]
            raise RoundRefused(f"client {strangers[0]!r} is not a member", strangers)
        return names, slots

    def came(self, slots: Integers) -> Flags:
        """Which of these clients ever took part, or were refreshed."""
        visits: Flags = self.attendance.visits[slots][:, LAST] > 0
        return visits

    def silent(self, times: float) -> tuple[dict[ClientId, int], dict[ClientId, int]]:
        """Rounds of silence of members that are gone after `times` intervals, or half way there."""
        last, members = self.attendance.last, np.flatnonzero(self.sizes.values > 0)
        gone, fading = (
            {self.roster.name(slot): self.number - int(last[slot]) for slot in slots.tolist()}
            for slots in self.attendance.silent(members, self.clock, times)
        )
        return gone, fading

    def leave(self, clients: Sequence[ClientId], *, silently: bool = False) -> None:
        """Forget these clients; those that leave `silently` can return as they were."""
        names, slots = self.resolve(clients, silent=True)
        sizes = self.sizes[slots]
        returning = silently and self.closed
        if returning or len(self.away.values):
            self.away[slots] = sizes if returning else 0.0
        if self.bound is not None:
            self.bound.forget(slots, sizes)
        if self.size_bound is not None:
            self.size_bound.forget(slots)
        self.source.forget(slots)
        self.population = self.population.grown(-float(sizes.sum()))
        self.counted[slots] = 0.0
        self.sizes[slots] = 0.0
        self.total = float(self.sizes.values.sum())
        self.attendance.forget(slots)
        if not returning:
            self.roster.remove(names)


def enrol_population(
    dim: int, sizes: Sizes | None, source: ProbabilitySource, bound: NormBound | None
) -> Clients:
    if not isinstance(dim, (int, np.integer)) or dim < 1:
        raise ConfigurationError(f"dim must be at least 1, not {dim}")
    roster, values = Roster(), np.zeros(0)
    if sizes is not None:
        points = list(sizes.values()) if isinstance(sizes, Mapping) else sizes
        with suppress(TypeError, ValueError):
            values = np.array(points, dtype=np.float64)
        if values.ndim != 1 or not len(values):
            raise ConfigurationError("sizes must be one positive number per client")
        fitting = (values > 0) & (values <= LARGEST_COUNT)
        if not fitting.all():
            worst = int(np.flatnonzero(~fitting)[0])
            name = list(sizes)[worst] if isinstance(sizes, Mapping) else worst
            raise ConfigurationError(
                f"sizes must be positive (at most {LARGEST_COUNT:.0e}), client {name!r} has "
                f"{values[worst]}"
            )
        if isinstance(sizes, Mapping):
            roster.enrol(plain_ids(sizes))
            # `enrol` hands out slots in id order, whatever the order of the mapping.
            values = values[np.argsort(roster.find(list(sizes)))]
        else:
            roster = Roster(dense=len(values))
    source.join(np.arange(len(values)), 0)
    return Clients(
        dim=dim,
        roster=roster,
        sizes=Table(values),
        closed=sizes is not None,
        source=source,
        bound=bound,
        total=float(values.sum()),
        attendance=Attendance(Table.empty(len(values), 4, dtype="int64")),
    )
