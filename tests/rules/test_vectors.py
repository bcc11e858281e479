"""Updates that come as vectors of their own, and vectors that are given away to become columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused, State, make_rule
from fedsteer.steering.kernels import Pass
from fedsteer.steering.kernels import numpy as in_numpy
from fedsteer.steering.kernels import torch as in_torch
from fedsteer.steering.kernels.vectors import Vectors
from tests.rules.enrolled import (
    DIM,
    ENROLLED,
    LIBRARIES,
    SIZES,
    Convert,
    Enrolled,
    events,
    packed,
    start,
)

RULE = make_rule("fedsteer", core_set=[0, 1, 2], ridge=0.5)


@pytest.fixture(params=["torch", "fused"])
def _apart(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """As on a GPU with a large model: sequences are not put side by side, columns may lie apart;
    what stands for them is ready after the pass, or ("torch") made in the end."""
    for kernels in (in_torch, in_numpy):
        monkeypatch.setattr(kernels, "LARGE", 1)
    plain = in_torch.one_pass

    def reading_apart(
        updates: Any, weights: Any, basis: Any = None, *more: Any, **named: Any
    ) -> Pass:
        keep = named.get("keep")
        if request.param == "fused" and keep is not None and isinstance(basis, Vectors):
            keep.renewed = in_torch.renewed(basis, updates, keep.pairs, given=keep.given)
        return replace(plain(updates, weights, basis, *more, **named), keep=keep, apart=True)

    monkeypatch.setattr(in_torch, "one_pass", reading_apart)


def as_vectors(convert: Convert) -> Convert:
    """A matrix as a list of rows in memory of their own, other arrays as they are."""
    return lambda values: list(map(convert, values)) if values.ndim == 2 else convert(values)


def columns(state: State) -> Any:
    return state.memory.own.subspace.rows  # type: ignore[attr-defined]


def a_round(number: int, clients: list[int], updates: Any, **more: Any) -> Round:
    return Round(number, clients, updates, np.full(len(clients), 0.5), **more)


@pytest.mark.parametrize("library", ["numpy-float32", "torch-float32", "torch-bfloat16"])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("entry", ENROLLED.values(), ids=ENROLLED.keys())
@pytest.mark.usefixtures("_apart")
def test_vectors_give_what_a_matrix_does(entry: Enrolled, given: bool, library: str) -> None:
    """To the bit, over a story in which clients come, join and leave, with a checkpoint midway."""
    happenings, convert = events(8, rounds=20), LIBRARIES[library]
    expected = start(entry.rule()).play(happenings, convert)
    found = start(entry.rule()).play(happenings[:12], as_vectors(convert), given=given)
    found.state = State.unpack(*found.state.pack())
    found.play(happenings[12:], as_vectors(convert), given=given)
    assert packed(found.state) == packed(expected.state)
    for one, other in zip(found.deltas, expected.deltas, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


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
def test_nobody_writes_to_what_was_given_away() -> None:
    """Others may hold it: another column, a copy of the state, whoever gave it."""
    state, shared, other = RULE.init(DIM, SIZES), torch.randn(DIM), torch.randn(DIM)
    before = shared.clone(), other.clone()
    state = RULE.step(state, a_round(1, [0, 1, 2], [shared, shared, other], given=True)).state
    bits = packed(state)
    left = RULE.leave(state.copy(), [0, 2])
    assert not columns(left)[0].any() and not columns(left)[2].any()
    moved = RULE.step(state.copy(), a_round(2, [0, 2], [torch.randn(DIM) for _ in range(2)])).state
    assert packed(state) == bits
    for found in (columns(left)[1], columns(moved)[1], shared):
        torch.testing.assert_close(found, before[0], rtol=0, atol=0)
    torch.testing.assert_close(other, before[1], rtol=0, atol=0)


@pytest.mark.usefixtures("_apart")
def test_columns_stay_side_by_side_where_passes_would_copy_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = in_torch.one_pass
    monkeypatch.setattr(
        in_torch, "one_pass", lambda *a, **k: replace(reading(*a, **k), apart=False)
    )
    sent = a_round(1, [0, 1], [torch.randn(DIM) for _ in range(2)], given=True)
    assert isinstance(columns(RULE.step(RULE.init(DIM, SIZES), sent).state), torch.Tensor)


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


@pytest.mark.usefixtures("_apart")
def test_vectors_of_several_types_are_put_side_by_side() -> None:
    mixed = in_torch.stack([torch.zeros(3), torch.zeros(3, dtype=torch.float16)])
    assert isinstance(mixed, torch.Tensor) and mixed.dtype == torch.float32
    assert isinstance(in_torch.stack([torch.zeros(6)[::2], torch.zeros(3)]), torch.Tensor)
    learnt = in_torch.stack([torch.zeros(3, requires_grad=True)])
    assert isinstance(learnt, Vectors) and not learnt.rows[0].requires_grad
    both = in_numpy.stack([np.zeros(1 << 17, np.float32), np.zeros(1 << 17)])
    assert isinstance(both, np.ndarray) and both.dtype == np.float64


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_long_vectors_on_a_cpu_are_read_where_they_lie(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And columns stay side by side, given away or not."""
    kernels = in_numpy if library == "numpy" else in_torch
    plain, read = kernels.one_pass, []

    def looked_at(updates: Any, *more: Any, **named: Any) -> Pass:
        read.append(type(updates))
        return plain(updates, *more, **named)

    monkeypatch.setattr(kernels, "one_pass", looked_at)
    dim, draw = (1 << 17) + 3, np.random.default_rng(1)
    near, far = RULE.init(dim, SIZES), RULE.init(dim, SIZES)
    for number, clients in enumerate([[0, 1, 2], [2, 5], [7, 0, 8], []], 1):
        rows: Any = draw.standard_normal((len(clients), dim)).astype(np.float32)
        rows = rows if library == "numpy" else torch.tensor(rows)
        near_step = RULE.step(near, a_round(number, clients, rows))
        sent = [np.copy(row) if library == "numpy" else row.clone() for row in rows]
        far_step = RULE.step(far, a_round(number, clients, sent, given=number % 2 == 0))
        near, far = near_step.state, far_step.state
        assert not isinstance(columns(far), Vectors)
        np.testing.assert_array_equal(np.asarray(columns(far)), np.asarray(columns(near)))
        np.testing.assert_allclose(
            np.asarray(far_step.delta), np.asarray(near_step.delta), rtol=1e-5, atol=1e-5
        )
    matrix = np.ndarray if library == "numpy" else torch.Tensor
    assert read[:6] == [matrix, Vectors] * 3  # and nobody in the last round
