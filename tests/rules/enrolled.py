"""The table of all rules that the common tests run over, and how a story is played to a rule.

A new rule is enrolled by one line in `AS_PUBLISHED`; its practical form follows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import RULES, Diagnostics, Round, Rule, State, make_rule
from tests.rules.stories import Event, story

DIM, MEMBERS = 12, 9
SIZES = [float(5 + 3 * client) for client in range(MEMBERS)]
CORE = (2, 5, 0, 7)
CLUSTERS = {client: client % 3 for client in range(MEMBERS)} | {
    f"late-{number}": number % 3 for number in range(1, 60)
}
FREQUENCIES = {client: 1 / (2 + client) for client in range(MEMBERS)}

Convert = Callable[[Any], Any]
"""From a float64 NumPy array to what the rule is given."""


@dataclass(frozen=True)
class Enrolled:
    """A rule with options.

    open    it also works without sizes given at the start
    mean    with all clients there, equal sizes and p = 1 it gives the mean of the updates
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    open: bool = True
    mean: bool = True
    preset: str = "paper"

    def rule(self, **options: Any) -> Rule:
        return make_rule(self.name, preset=self.preset, **{**self.options, **options})


def steer(*, open: bool = True, **options: Any) -> Enrolled:
    return Enrolled("fedsteer", options, open)


AS_PUBLISHED: dict[str, Enrolled] = {
    "fedavg": Enrolled("fedavg"),
    "fedavg-participants": Enrolled("fedavg", {"average": "participants"}),
    "fedavg-normalised": Enrolled("fedavg", {"average": "normalised"}),
    "fedavg-sampled": Enrolled("fedavg", {"probabilities": 0.4}),
    "fedprox": Enrolled("fedprox"),
    "fedvarp": Enrolled("fedvarp"),
    "fedvarp-capped": Enrolled("fedvarp", {"max_weight": 0.5, "norm_bound": 0.5}),
    "fedvarp-visits": Enrolled("fedvarp", {"probabilities": "visits"}),
    "cluster-given": Enrolled("cluster_fedvarp", {"clusters": CLUSTERS, "cluster_count": 3}),
    "cluster-online": Enrolled("cluster_fedvarp", {"select": "online", "cluster_count": 3}),
    "cluster-search": Enrolled("cluster_fedvarp", {"cycles": 2, "cluster_count": 3}, open=False),
    "fedstale": Enrolled("fedstale"),
    "fedstale-adaptive": Enrolled("fedstale", {"adaptive": True}),
    "mifa": Enrolled("mifa"),
    "mifa-wait": Enrolled("mifa", {"start": "wait"}, open=False),
    "mifa-seen": Enrolled("mifa", {"start": "seen"}),
    "scaffold": Enrolled("scaffold"),
    "scaffold-importance": Enrolled("scaffold", {"average": "importance"}),
    "fedawe": Enrolled("fedawe"),
    "steer": steer(core_set=CORE),
    "steer-before": steer(core_set=CORE, refresh="before"),
    "steer-follow": steer(core_set=CORE, magnitude="follow"),
    "steer-mean": steer(core_set=CORE, basis="mean"),
    "steer-own": steer(core_set=tuple(range(MEMBERS)), coordinates="own"),
    "steer-ridge-0": steer(core_set=CORE, ridge=0.0),
    "steer-gradient": steer(core_set=CORE, solver="gradient"),
    "steer-float16": steer(core_set=CORE, cache="float16"),
    "steer-bfloat16": steer(core_set=CORE, cache="bfloat16"),
    "steer-shrunk": steer(core_set=CORE, probabilities="shrunk"),
    "steer-intervals": steer(core_set=CORE, probabilities="intervals", interval_cap=4),
    "steer-refresh-all": steer(core_set=CORE, refresh_all_every=3),
    "steer-reselect": steer(core_set=CORE, reselect_every=3, sketch_width=12),
    "steer-online": steer(select="online", core_size=4),
    "steer-renew": steer(select="online", core_size=4, renew_after=2),
    "steer-newcomers": steer(core_set=CORE, newcomers="learnt"),
    "steer-drift": steer(core_set=CORE, drift=0.5, local_rate=0.1),
    "steer-drift-renew": steer(
        select="online", core_size=4, renew_after=2, drift=0.25, local_rate=0.1, cache="float16"
    ),
    "steer-online-reselect": steer(
        select="online", core_size=4, reselect_every=2, sketch_width=12, cache="bfloat16"
    ),
    "steer-online-follow": steer(
        select="online", core_size=3, reselect_every=2, sketch_width=12, magnitude="follow"
    ),
    "steer-frequent": steer(select="frequent", core_size=3, frequencies=FREQUENCIES),
    "steer-random": steer(select="random", core_size=3, open=False),
    "steer-search": steer(core_size=3, cycles=2, open=False),
    "steer-search-authors": steer(
        core_size=3,
        cycles=2,
        objective="authors",
        warm_start="empty",
        reinitialise=False,
        probabilities="visits",
        candidates=4,
        search_columns=(6, 12),
        open=False,
    ),
}
"""Every rule, enrolled by hand."""

ENROLLED = AS_PUBLISHED | {
    f"{name}-practical": Enrolled(name, mean=mean, preset="practical")
    for name, mean in {entry.name: entry.mean for entry in AS_PUBLISHED.values()}.items()
}
every_rule = pytest.mark.parametrize("entry", ENROLLED.values(), ids=ENROLLED.keys())

LIBRARIES: dict[str, Convert] = {
    "numpy-float16": lambda values: np.asarray(values, np.float16),
    "numpy-float32": lambda values: np.asarray(values, np.float32),
    "numpy-float64": lambda values: np.array(values, np.float64),
    "torch-float16": lambda values: torch.tensor(values, dtype=torch.float16),
    "torch-bfloat16": lambda values: torch.tensor(values, dtype=torch.bfloat16),
    "torch-float32": lambda values: torch.tensor(values, dtype=torch.float32),
    "torch-float64": lambda values: torch.tensor(values, dtype=torch.float64),
}
FLOAT64 = LIBRARIES["numpy-float64"]


def host(array: Any) -> np.ndarray:
    """As a float64 NumPy array."""
    return array.double().numpy() if isinstance(array, torch.Tensor) else np.float64(array)


def events(seed: int, *, rounds: int = 24, closed: bool = True, **options: Any) -> list[Event]:
    return list(story(seed, rounds=rounds, dim=DIM, members=MEMBERS, closed=closed, **options))


def as_round(event: Event, convert: Convert, model: Any) -> Round:
    return Round(
        number=event.number,
        clients=event.clients,
        updates=convert(event.updates),
        probabilities=event.probabilities,
        sizes=event.sizes,
        steps=event.steps,
        model=convert(model),
        refresh=event.refresh or None,
    )


@dataclass
class Played:
    """A rule somewhere in its story."""

    rule: Rule
    state: State
    model: np.ndarray = field(default_factory=lambda: np.zeros(DIM))
    deltas: list[Any] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    diagnostics: list[Diagnostics] = field(default_factory=list)

    def play(self, happenings: Iterable[Event], convert: Convert = FLOAT64) -> Played:
        for event in happenings:
            if event.leaving:
                self.state = self.rule.leave(self.state, event.leaving)
                continue
            step = self.rule.step(self.state, as_round(event, convert, self.model))
            self.state = step.state
            self.deltas.append(step.delta)
            self.actions.append(step.action)
            self.diagnostics.append(step.diagnostics)
            if step.action == "move":
                self.model = self.model - 0.1 * host(step.delta)
        return self

    def copy(self) -> Played:
        return Played(self.rule, self.state.copy(), self.model.copy())


def start(rule: Rule, *, closed: bool = True) -> Played:
    return Played(rule, rule.init(DIM, SIZES if closed else None))


def packed(state: State) -> tuple[dict[str, tuple[str, Any, bytes]], str]:
    """Every bit of a state, in a form that compares with ==."""
    arrays, meta = state.pack()
    bits = {name: (a.dtype.name, a.shape, a.tobytes()) for name, a in arrays.items()}
    return bits, json.dumps(meta, sort_keys=True)


def missing_rules() -> set[str]:
    """Rules that are not enrolled."""
    return set(RULES) - {entry.name for entry in AS_PUBLISHED.values()}
