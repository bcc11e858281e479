"""Every rule equals its naive reference, step by step, while clients come and go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, Rule, make_rule
from fedsteer.rules.fedsteer import FedSteerMemory
from tests.reference.cluster_fedvarp import NaiveClusterFedVARP
from tests.reference.fedavg import NaiveFedAvg
from tests.reference.fedawe import NaiveFedAWE
from tests.reference.fedprox import NaiveFedProx
from tests.reference.fedstale import NaiveFedStale
from tests.reference.fedsteer import NaiveDriftCorrection, NaiveFedSteer, NaiveNewcomers
from tests.reference.fedvarp import NaiveFedVARP
from tests.reference.mifa import NaiveMIFA
from tests.reference.scaffold import NaiveScaffold
from tests.rules.stories import story

DIM, MEMBERS = 12, 9
SIZES = {client: float(5 + 3 * client) for client in range(MEMBERS)}
CLUSTERS = {client: client % 3 for client in range(MEMBERS)} | {
    f"late-{number}": number % 3 for number in range(1, 60)
}
CORE = (2, 5, 0, 7)

CASES: list[tuple[str, type, dict[str, Any]]] = [
    ("fedavg", NaiveFedAvg, {"average": "importance"}),
    ("fedavg", NaiveFedAvg, {"average": "importance", "max_weight": 0.2}),
    ("fedavg", NaiveFedAvg, {"average": "participants"}),
    ("fedavg", NaiveFedAvg, {"average": "normalised"}),
    ("fedprox", NaiveFedProx, {}),
    ("fedvarp", NaiveFedVARP, {}),
    ("fedvarp", NaiveFedVARP, {"max_weight": 0.3}),
    ("cluster_fedvarp", NaiveClusterFedVARP, {"clusters": CLUSTERS}),
    ("fedstale", NaiveFedStale, {"beta": 0.3}),
    ("fedstale", NaiveFedStale, {"beta": 0.6, "adaptive": True}),
    ("mifa", NaiveMIFA, {"start": "zeros"}),
    ("mifa", NaiveMIFA, {"start": "wait"}),
    ("mifa", NaiveMIFA, {"start": "seen"}),
    ("scaffold", NaiveScaffold, {"local_rate": 0.2}),
    ("scaffold", NaiveScaffold, {"local_rate": 0.2, "average": "importance"}),
    ("fedawe", NaiveFedAWE, {"rate": 0.7}),
    ("fedsteer", NaiveFedSteer, {"core_set": CORE}),
    ("fedsteer", NaiveFedSteer, {"core_set": CORE, "max_weight": 0.3}),
    ("fedsteer", NaiveFedSteer, {"core_set": CORE, "refresh": "before"}),
    ("fedsteer", NaiveFedSteer, {"core_set": CORE, "magnitude": "follow"}),
    ("fedsteer", NaiveFedSteer, {"core_set": CORE, "basis": "mean"}),
    ("fedsteer", NaiveFedSteer, {"core_set": CORE, "ridge": 0.0}),
    ("fedsteer", NaiveFedSteer, {"core_set": CORE, "ridge": 1e-6}),
    ("fedsteer", NaiveDriftCorrection, {"core_set": CORE, "drift": 0.25, "local_rate": 0.1}),
    (
        "fedsteer",
        NaiveDriftCorrection,
        {"core_set": CORE, "drift": 0.7, "local_rate": 2.0, "magnitude": "follow"},
    ),
    ("fedsteer", NaiveNewcomers, {"core_set": CORE, "newcomers": "learnt"}),
    ("fedsteer", NaiveNewcomers, {"core_set": CORE, "newcomers": "learnt", "refresh": "before"}),
    (
        "fedsteer",
        NaiveNewcomers,
        {"core_set": CORE, "newcomers": "learnt", "magnitude": "follow", "max_weight": 0.3},
    ),
    (
        "fedsteer",
        NaiveNewcomers,
        {"core_set": CORE, "newcomers": "learnt", "drift": 0.4, "local_rate": 0.5},
    ),
    ("fedsteer", NaiveFedSteer, {"core_set": tuple(range(MEMBERS)), "coordinates": "own"}),
    (
        "fedsteer",
        NaiveFedSteer,
        {"core_set": CORE, "coordinates": "own", "own_scale": 0.4, "magnitude": "follow"},
    ),
]
NO_PROBABILITIES = {"mifa", "fedawe", "scaffold"}


def label(case: tuple[str, type, dict[str, Any]]) -> str:
    name, _, options = case
    shown = {key: value for key, value in options.items() if key not in ("core_set", "clusters")}
    return "-".join([name, *(f"{key}={value}" for key, value in shown.items())])


def build(case: tuple[str, type, dict[str, Any]], sizes: Any) -> tuple[Rule, Any]:
    name, naive, options = case
    ours = dict(options)
    theirs = dict(options)
    if name == "cluster_fedvarp":
        ours["cluster_count"] = theirs["n_clusters"] = 3
    return make_rule(name, **ours), naive(DIM, sizes, **theirs)


def drive(case: Any, seed: int, dtype: type, closed: bool, tolerance: float) -> None:
    rule, naive = build(case, SIZES if closed else None)
    state = rule.init(DIM, SIZES if closed else None)
    model = np.zeros(DIM)
    refreshes = case[0] == "fedsteer"
    for event in story(seed, dim=DIM, members=MEMBERS, closed=closed, refreshes=refreshes):
        if event.leaving:
            state = rule.leave(state, event.leaving)
            naive.leave(event.leaving)
            continue
        step = rule.step(
            state,
            Round(
                number=event.number,
                clients=event.clients,
                updates=event.updates.astype(dtype),
                probabilities=event.probabilities,
                sizes=event.sizes,
                steps=event.steps,
                model=model.astype(dtype),
                refresh=event.refresh or None,
            ),
        )
        expected = naive.step(
            event.number,
            event.clients,
            event.updates.astype(dtype),
            event.probabilities,
            event.sizes,
            steps=event.steps,
            model=model.astype(dtype),
            refresh=event.refresh,
        )
        state = step.state
        assert step.delta.dtype == dtype
        close(step.delta, expected, tolerance)
        known = [c for c in event.clients if hasattr(naive, "estimate")]
        believed = rule.estimate(state, known)
        if known and believed is not None:
            close(believed, np.stack([naive.estimate(client) for client in known]), tolerance)
        model = model - 0.1 * expected


def close(actual: Any, expected: Any, tolerance: float) -> None:
    """Equal relative to the size of the whole array."""
    scale = max(float(np.abs(expected).max(initial=0.0)), 1.0)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("case", CASES, ids=label)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_closed_population_in_float64(case: Any, seed: int) -> None:
    drive(case, seed, np.float64, closed=True, tolerance=1e-10)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_closed_population_in_float32(case: Any) -> None:
    drive(case, 4, np.float32, closed=True, tolerance=1e-4)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case[0] not in NO_PROBABILITIES], ids=label
)
def test_open_population(case: Any) -> None:
    if case[2].get("average") == "participants":
        pytest.skip("the mean over participants divides by no population")
    drive(case, 5, np.float64, closed=False, tolerance=1e-10)


def test_the_basis_gram_matrix_is_kept_without_ever_being_rebuilt() -> None:
    rule = make_rule("fedsteer", core_set=CORE)
    state = rule.init(DIM, SIZES)
    for event in story(6, rounds=80, dim=DIM, members=MEMBERS):
        if event.leaving:
            state = rule.leave(state, event.leaving)
            continue
        state = rule.step(
            state,
            Round(
                number=event.number,
                clients=event.clients,
                updates=event.updates,
                probabilities=event.probabilities,
                sizes=event.sizes,
            ),
        ).state
        own = state.memory.own  # type: ignore[attr-defined]
        assert isinstance(own, FedSteerMemory)
        if own.columns.rows is not None:
            np.testing.assert_allclose(
                own.columns.gram, own.columns.rows @ own.columns.rows.T, atol=1e-11
            )
