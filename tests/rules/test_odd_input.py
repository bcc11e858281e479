"""Unusual but legal input: tensors as vectors, forms of an empty round, inference mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused, make_rule
from fedsteer.steering.state import State
from tests.rules.enrolled import DIM, SIZES, Enrolled, every_rule


def test_ids_may_be_arrays() -> None:
    rule = make_rule("fedsteer", select="online", core_size=2)
    given: dict[str, Any] = {
        "clients": np.array([0, 1, 2]),
        "updates": np.ones((3, 8)),
        "probabilities": [0.5] * 3,
    }
    step = rule.step(rule.init(8, np.ones(4)), Round(number=1, **given, refresh=np.array([1, 2])))
    assert step.diagnostics.fresh == (True, False, False)
    rule.step(step.state, Round(number=2, **given, refresh=np.array([], int)))


def test_fedawe_begins_with_an_empty_round_in_any_library() -> None:
    rule = make_rule("fedawe", bad_clients="drop")
    for clients, updates in (([], []), ([0], [torch.full((8,), torch.nan)])):
        given = Round(number=1, clients=clients, updates=updates, model=torch.ones(8))
        assert torch.equal(rule.step(rule.init(8, np.ones(3)), given).delta, torch.zeros(8))


def test_inference_mode_may_come_and_go() -> None:
    for name in ("fedsteer", "fedvarp", "scaffold", "fedawe", "cluster_fedvarp", "mifa"):
        online = {"select": "online"} if name in ("fedsteer", "cluster_fedvarp") else {}
        rule = make_rule(name, probabilities=0.5, **online)
        for through in (lambda state: state, State.copy, lambda state: State.unpack(*state.pack())):
            state = rule.init(6, np.ones(2))
            for number in range(1, 7):
                with torch.inference_mode(number % 2 == 1):
                    model, updates = torch.zeros(6), torch.ones(2, 6)
                    clients, sizes = [0, (number + 1) // 2], [1, 1]  # others join
                    sent = Round(
                        number=number,
                        clients=clients,
                        updates=updates,
                        probabilities=None,
                        sizes=sizes,
                        steps=[1, 1],
                        model=model,
                    )
                    state = through(rule.step(state, sent).state)
            rule.leave(state, [1])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int64"])
def test_sizes_may_be_tensors(dtype: str) -> None:
    rule, sizes = make_rule("fedavg", probabilities=1.0), torch.tensor([1, 3])
    given = Round(
        number=1,
        clients=[0, 1],
        updates=np.array([[0.0], [1.0]]),
        sizes=sizes.to(getattr(torch, dtype)),
    )
    assert rule.step(rule.init(1), given).delta[0] == 0.75


@pytest.mark.parametrize("before", [np.ones((1, 4)), torch.ones(1, 4)])
@pytest.mark.parametrize(
    "empty", [None, [], (), np.zeros(0), np.zeros((0, 4)), torch.zeros(0), torch.zeros(0, 4)]
)
def test_an_empty_round_may_be_written_in_many_ways(before: Any, empty: Any) -> None:
    rule = make_rule("fedavg", probabilities=0.5)
    state = rule.step(rule.init(4, [1] * 3), Round(number=1, clients=[0], updates=before)).state
    assert not np.asarray(rule.step(state, Round(number=2, clients=[], updates=empty)).delta).any()
    with pytest.raises(RoundRefused, match="2 updates for 0 clients"):
        rule.step(
            rule.init(4, [1] * 3), Round(number=1, clients=[], updates=[np.zeros(3), np.zeros(4)])
        )


@every_rule
def test_torch_updates_may_follow_an_empty_first_round(entry: Enrolled) -> None:
    rule = entry.rule(bad_clients="refuse")
    state, model = rule.init(DIM, SIZES), torch.zeros(DIM)
    for number in (1, 2):
        sent = Round(
            number=number, clients=[], updates=[], model=model if "starts" in rule.needs else None
        )
        state = rule.step(state, sent).state
    for number in (3, 4):
        sent = Round(
            number=number,
            clients=[0, 2],
            updates=torch.ones(2, DIM),
            probabilities=[0.5, 0.5],
            steps=[1, 1],
            model=model,
        )
        state = rule.step(state, sent).state


def test_probabilities_may_be_tensors() -> None:
    rule, odds = make_rule("fedavg"), torch.full((2,), 0.5, requires_grad=True)
    assert (
        rule.step(
            rule.init(3, [1, 1]),
            Round(number=1, clients=[0, 1], updates=np.ones((2, 3)), probabilities=odds),
        ).delta[0]
        == 2
    )
