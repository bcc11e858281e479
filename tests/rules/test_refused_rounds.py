"""Rounds that make no sense as a whole are refused, whatever is done with single clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import ConfigurationError, FedsteerError, Round, RoundRefused, make_rule
from fedsteer.steering.state import VERSION, State
from tests.rules.enrolled import (
    DIM,
    ENROLLED,
    SIZES,
    Enrolled,
    every_rule,
    packed,
)
from tests.rules.middle import each_rule, good_round, in_the_middle

WHOLE: dict[str, tuple[Callable[[Round], Round], str]] = {
    "round number again": (lambda r: replace(r, number=9), "does not follow round 9"),
    "round number back": (lambda r: replace(r, number=3), "does not follow round 9"),
    "round number nan": (lambda r: replace(r, number=np.nan), "a whole number, not nan"),
    "round number 10.5": (lambda r: replace(r, number=10.5), r"a whole number, not 10\.5"),
    "round number True": (lambda r: replace(r, number=True), "a whole number, not True"),
    "dimension": (lambda r: replace(r, updates=r.updates[:, 1:]), r"expected \(3, 12\)"),
    "rows": (lambda r: replace(r, updates=r.updates[1:]), r"expected \(3, 12\)"),
    "type": (lambda r: replace(r, updates=r.updates.astype(int)), "int64"),
    "too few in a list": (lambda r: replace(r, updates=list(r.updates)[1:]), "2 updates for 3"),
    "empty list": (lambda r: replace(r, updates=[]), "0 updates for 3"),
    "library": (lambda r: replace(r, updates=torch.tensor(r.updates)), "torch"),
    "library in a list": (lambda r: replace(r, updates=[*torch.tensor(r.updates)]), "torch"),
    "probabilities": (lambda r: replace(r, probabilities=[0.5]), r"expected \(3,\)"),
    "sizes": (lambda r: replace(r, sizes=[[1, 2, 3]]), r"expected \(3,\)"),
    "id": (lambda r: replace(r, clients=[1, 2.5, 3]), "int or str, not 2.5"),
    "refresh": (lambda r: replace(r, refresh=["x"]), "sent no update"),
}


@each_rule
@pytest.mark.parametrize("problem", WHOLE)
@pytest.mark.parametrize("policy", ["refuse", "drop"])
def test_a_round_that_makes_no_sense_is_refused_under_either_policy(
    entry: Enrolled, problem: str, policy: str
) -> None:
    change, words = WHOLE[problem]
    played = in_the_middle(entry, policy)
    before = packed(played.state)
    with pytest.raises(RoundRefused, match=words):
        played.rule.step(played.state, change(good_round(played)))
    assert packed(played.state) == before
    played.rule.step(played.state, good_round(played))


@pytest.mark.parametrize("policy", ["refuse", "drop"])
def test_torch_to_numpy_is_refused_too(policy: str) -> None:
    played = in_the_middle(ENROLLED["fedvarp"], policy, "torch-float32")
    with pytest.raises(RoundRefused, match="numpy arrays, earlier rounds had torch"):
        played.rule.step(played.state, good_round(played))
    rule = make_rule("fedavg")
    state = rule.init(DIM, SIZES, like=torch.zeros(1))
    with pytest.raises(RoundRefused, match="numpy arrays, earlier rounds had torch"):
        rule.step(state, good_round(played))


def test_updates_on_another_device_are_refused() -> None:
    rule, elsewhere = make_rule("fedavg", probabilities=1.0), torch.ones(1, 4, device="meta")
    state = rule.init(4, np.ones(3), like=torch.zeros(1))
    with pytest.raises(RoundRefused, match="arrays on meta, earlier rounds had torch arrays"):
        rule.step(state, Round(number=1, clients=[0], updates=elsewhere))
    with pytest.raises(RoundRefused, match="client 1 sent torch arrays on meta"):
        rule.step(state, Round(number=1, clients=[0, 1], updates=[torch.ones(4), elsewhere[0]]))


@pytest.mark.parametrize("updates", [np.ones((3, 8)), "nonsense", 5, [np.ones(8)]])
def test_updates_without_clients_are_refused(updates: Any) -> None:
    rule = make_rule("fedavg", probabilities=0.5)
    state = rule.step(
        rule.init(8, np.ones(3)), Round(number=1, clients=[0], updates=np.ones((1, 8)))
    ).state
    with pytest.raises(RoundRefused):
        rule.step(state, Round(number=2, clients=[], updates=updates))
    assert not rule.step(state, Round(number=2, clients=[], updates=None)).delta.any()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda rule, state: rule.init(3, ["a"]), "one positive number per client"),
        (lambda rule, state: rule.init(3, {1, 2}), "one positive number per client"),
        (lambda rule, state: rule.init(3, [1], like=[1.0]), "like cannot be used"),
        (lambda rule, state: rule.leave(state, 0), "list of ids, not 0"),
        (lambda rule, state: rule.coordinates(state, 1), "list of ids, not 1"),
        (lambda rule, state: rule.plan(state, 1, "ab"), "list of ids, not 'ab'"),
        (
            lambda rule, state: rule.step(
                state, Round(number=1, clients=0, updates=np.ones((1, 3)))
            ),
            "list of ids, not 0",
        ),
        (lambda rule, state: State.unpack({}, {"version": VERSION}), "holds no state"),
    ],
)
def test_other_mistakes_have_a_message_of_one_line(act: Any, words: str) -> None:
    rule = make_rule("fedavg")
    with pytest.raises(FedsteerError, match=words):
        act(rule, rule.init(3, [1, 1]))


def test_a_core_set_of_strangers() -> None:
    with pytest.raises(ConfigurationError, match="core_set names none of the clients, but 98"):
        make_rule("fedsteer", core_set=[98, 99]).init(5, [1] * 10)
    make_rule("fedsteer", core_set=[9, 99]).init(5, [1] * 10)  # one may join
    make_rule("fedsteer", core_set=[98, 99]).init(5)


@every_rule
def test_missing_probabilities(entry: Enrolled) -> None:
    """A rule that needs them says so and what else to do; the others do without."""
    played = in_the_middle(entry, "refuse")
    before = packed(played.state)
    given = replace(good_round(played), probabilities=None)
    if not played.rule.algorithm.uses_probabilities or played.rule.options.probabilities != "known":
        assert np.isfinite(played.rule.step(played.state, given).delta).all()
        return
    with pytest.raises(RoundRefused, match="pass probabilities with the round"):
        played.rule.step(played.state, given)
    assert packed(played.state) == before


@pytest.mark.parametrize(("name", "missing"), [("scaffold", "steps"), ("fedawe", "model")])
def test_what_only_one_rule_needs(name: str, missing: str) -> None:
    played = in_the_middle(ENROLLED[name], "drop")
    before = packed(played.state)
    with pytest.raises(RoundRefused, match=f"needs {missing}"):
        played.rule.step(played.state, replace(good_round(played), **{missing: None}))
    assert packed(played.state) == before


@pytest.mark.parametrize("given", ["model", "starts"])
def test_models_of_fedawe_are_arrays(given: str) -> None:
    played = in_the_middle(ENROLLED["fedawe"], "drop")
    before = packed(played.state)
    with pytest.raises(RoundRefused, match=f"{given} must have shape"):
        played.rule.step(played.state, replace(good_round(played), **{given: [0.0] * DIM}))
    assert packed(played.state) == before


def test_an_aggregate_that_overflows_is_refused() -> None:
    """Every update is finite, their weighted sum is not."""
    rule = make_rule("fedavg", bad_clients="drop")
    state = rule.init(2, [1.0, 1.0])
    before = packed(state)
    huge = np.full((2, 2), 1e150)
    with pytest.raises(RoundRefused, match="aggregate of round 1 is not finite"):
        rule.step(
            state, Round(number=1, clients=[0, 1], updates=huge, probabilities=[1e-10, 1e-10])
        )
    assert packed(state) == before


def test_plan_refuses_a_round_that_is_over() -> None:
    played = in_the_middle(ENROLLED["steer"], "refuse")
    with pytest.raises(RoundRefused, match="round 9 does not follow round 9"):
        played.rule.plan(played.state, 9, [0])
    with pytest.raises(RoundRefused, match="int or str"):
        played.rule.plan(played.state, 10, [0.5])  # type: ignore[list-item]
