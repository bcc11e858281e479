"""Updates that come as vectors of their own, and vectors that are given away to become columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused, State, make_rule
from fedsteer.steering.kernels import Pass
from fedsteer.steering.kernels import torch as in_torch
from fedsteer.steering.kernels.vectors import Vectors
from tests.rules.enrolled import DIM, ENROLLED, LIBRARIES, SIZES, Enrolled, events, packed, start

WIDE = LIBRARIES["torch-float32"]
RULE = make_rule("fedsteer", core_set=[0, 1, 2], ridge=0.5)


@pytest.fixture(params=["torch", "fused"])
def _apart(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """As on a GPU with a large model: sequences are not put side by side, and the fused pass, where
    it can be used, has what stands for the columns ready."""
    monkeypatch.setattr(in_torch, "stack", Vectors.of)
    plain = in_torch.one_pass

    def fused(updates: Any, weights: Any, basis: Any = None, *more: Any, **named: Any) -> Pass:
        keep = named.get("keep")
        if keep is not None and isinstance(basis, Vectors):
            keep.renewed = basis.renewed(updates, keep.pairs, given=keep.given)
        return replace(plain(updates, weights, basis, *more, **named), keep=keep)

    if request.param == "fused":
        monkeypatch.setattr(in_torch, "one_pass", fused)


def vectors_of(values: Any) -> Any:
    """A matrix as a list of rows in memory of their own, other arrays as they are."""
    array = WIDE(values)
    return [row.clone() for row in array] if array.ndim == 2 else array


def columns(state: State) -> Any:
    return state.memory.own.subspace.rows  # type: ignore[attr-defined]


def a_round(number: int, clients: list[int], updates: Any, **more: Any) -> Round:
    return Round(number, clients, updates, np.full(len(clients), 0.5), **more)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("entry", ENROLLED.values(), ids=ENROLLED.keys())
@pytest.mark.usefixtures("_apart")
def test_vectors_give_what_a_matrix_does(entry: Enrolled, given: bool) -> None:
    """To the bit, over a story in which clients come, join and leave, with a checkpoint midway."""
    happenings = events(8, rounds=20)
    expected = start(entry.rule()).play(happenings, WIDE)
    found = start(entry.rule()).play(happenings[:12], vectors_of, given=given)
    found.state = State.unpack(*found.state.pack())
    found.play(happenings[12:], vectors_of, given=given)
    assert packed(found.state) == packed(expected.state)
    for one, other in zip(found.deltas, expected.deltas, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.usefixtures("_apart")
def test_given_vectors_are_the_columns() -> None:
    state = RULE.init(DIM, SIZES)
    first, second = torch.randn(4, DIM).unbind(), [torch.randn(DIM) for _ in range(3)]
    state = RULE.step(state, a_round(1, [0, 1, 2, 3], first, given=True)).state
    # Rows of one matrix: to hold on to them would be to hold on to all of it.
    assert not {row.data_ptr() for row in first} & set(columns(state).addresses)
    copied = list(columns(state).addresses)
    state = RULE.step(state, a_round(2, [1, 5, 2], second, given=True)).state
    assert columns(state).addresses == [copied[0], second[0].data_ptr(), second[2].data_ptr()]
    held = RULE.step(state.copy(), a_round(3, [4], [torch.randn(DIM)])).state.nbytes
    assert held == state.nbytes


@pytest.mark.parametrize("known", [None, "a matrix", "vectors"])
@pytest.mark.usefixtures("_apart")
def test_vectors_that_are_not_given_away_stay_the_callers(known: str | None) -> None:
    """Whoever writes to them afterwards changes nothing here, and nothing is written to them."""
    state = RULE.init(DIM, SIZES)
    if known is not None:
        earlier = [torch.randn(DIM) for _ in range(3)]
        before = torch.stack(earlier)
        sent = a_round(1, [0, 1, 2], before if known == "a matrix" else earlier, given=True)
        state = RULE.step(state, sent).state
    updates = [torch.randn(DIM) for _ in range(3)]
    kept = [update.clone() for update in updates]
    state = RULE.step(state, a_round(2, [2, 7, 0], updates)).state
    bits = packed(state)
    for update, same in zip(updates, kept, strict=True):
        torch.testing.assert_close(update, same, rtol=0, atol=0)
        update.zero_()
    assert packed(state) == bits
    if known == "vectors":
        torch.testing.assert_close(torch.stack(earlier), before, rtol=0, atol=0)


@pytest.mark.usefixtures("_apart")
def test_a_vector_given_twice_is_two_columns() -> None:
    """Later rounds write to neither, whoever holds them."""
    state, shared = RULE.init(DIM, SIZES), torch.randn(DIM)
    state = RULE.step(state, a_round(1, [0, 1], [shared, shared], given=True)).state
    other = RULE.step(state.copy(), a_round(2, [0], [torch.randn(DIM)])).state
    other = RULE.leave(other, [0])
    torch.testing.assert_close(columns(other).rows[1], columns(state).rows[0], rtol=0, atol=0)
    assert not columns(other).rows[0].any() and columns(state).rows[0].all()


@pytest.mark.parametrize("reply", ["refuse", "drop"])
@pytest.mark.usefixtures("_apart")
def test_broken_vectors(reply: str) -> None:
    rule = make_rule("fedsteer", core_set=[0, 1, 2], ridge=0.5, bad_clients=reply)
    first = [torch.randn(DIM) for _ in range(3)]
    state = rule.step(rule.init(DIM, SIZES), a_round(1, [0, 1, 2], first, given=True)).state
    bits = packed(state)
    for updates in (
        [torch.randn(DIM), torch.full((DIM,), torch.nan)],
        [torch.randn(DIM), torch.randn(DIM + 1)],
    ):
        sent = a_round(2, [0, 1], updates, given=True)
        if reply == "refuse":
            with pytest.raises(RoundRefused, match="client 1"):
                rule.step(state, sent)
            assert packed(state) == bits
        else:
            step = rule.step(state.copy(), sent)
            assert list(step.diagnostics.dropped) == [1]
            assert columns(step.state).addresses == [
                updates[0].data_ptr(),
                *columns(state).addresses[1:],
            ]
    alone = a_round(2, [1], [torch.full((DIM,), torch.inf)], given=True)
    if reply == "drop":
        assert (
            packed(rule.step(state, alone).state)[0]["state.own.subspace.rows"]
            == (bits[0]["state.own.subspace.rows"])
        )


def test_vectors_of_several_types_are_put_side_by_side() -> None:
    assert Vectors.of([torch.zeros(3), torch.zeros(3, dtype=torch.float16)]) is None
    assert Vectors.of([torch.zeros(6)[::2], torch.zeros(3)]) is None
    learnt = Vectors.of([torch.zeros(3, requires_grad=True)])
    assert learnt is not None and not learnt.rows[0].requires_grad
