"""Updates that arrive as a sequence of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused, State, make_rule
from fedsteer.steering.kernels import Pass, Sweep
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


@pytest.fixture
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short vectors are not stacked either."""
    for kernels in (in_torch, in_numpy):
        monkeypatch.setattr(kernels, "LARGE", 1)


def as_vectors(convert: Convert) -> Convert:
    """A matrix as a list of separate rows, other arrays unchanged."""
    return lambda values: list(map(convert, values)) if values.ndim == 2 else convert(values)


def columns(state: State) -> Any:
    return state.memory.own.columns.rows  # type: ignore[attr-defined]


def a_round(number: int, clients: list[int], updates: Any, **more: Any) -> Round:
    return Round(
        number=number,
        clients=clients,
        updates=updates,
        probabilities=np.full(len(clients), 0.5),
        **more,
    )


@pytest.mark.parametrize("library", ["numpy-float32", "torch-float32", "torch-bfloat16"])
@pytest.mark.parametrize("entry", ENROLLED.values(), ids=ENROLLED.keys())
@pytest.mark.usefixtures("_apart")
def test_vectors_give_the_same_as_a_matrix(entry: Enrolled, library: str) -> None:
    """Bit for bit, while clients come, join and leave, with a checkpoint midway."""
    happenings, convert = events(8, rounds=20), LIBRARIES[library]
    expected = start(entry.rule()).play(happenings, convert)
    found = start(entry.rule()).play(happenings[:12], as_vectors(convert))
    found.state = State.unpack(*found.state.pack())
    found.play(happenings[12:], as_vectors(convert))
    assert packed(found.state) == packed(expected.state)
    for one, other in zip(found.deltas, expected.deltas, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.usefixtures("_apart")
def test_vectors_stay_the_callers(given: bool) -> None:
    """Nothing is written to them, and writing to them later changes nothing here.

    `Round.given` is deprecated: it is accepted and ignored.
    """
    first = [torch.randn(DIM) for _ in range(3)]
    state = RULE.step(RULE.init(DIM, SIZES), a_round(1, [0, 1, 2], first, given=given)).state
    second = [torch.randn(DIM) for _ in range(3)]
    copies = [update.clone() for update in first + second]
    state = RULE.step(state, a_round(2, [2, 7, 0], second, given=given)).state
    bits = packed(state)
    for update, copy in zip(first + second, copies, strict=True):
        torch.testing.assert_close(update, copy, rtol=0, atol=0)
        update.zero_()
    assert packed(state) == bits


@pytest.mark.parametrize("reply", ["refuse", "drop"])
@pytest.mark.usefixtures("_apart")
def test_broken_vectors(reply: str) -> None:
    rule = make_rule("fedsteer", core_set=[0, 1, 2], ridge=0.5, bad_clients=reply)
    first = [torch.randn(DIM) for _ in range(3)]
    state = rule.step(rule.init(DIM, SIZES), a_round(1, [0, 1, 2], first)).state
    bits = packed(state)
    for updates in (
        [torch.randn(DIM), torch.full((DIM,), torch.nan)],
        [torch.randn(DIM), torch.randn(DIM + 1)],
    ):
        sent = a_round(2, [0, 1], updates)
        if reply == "refuse":
            with pytest.raises(RoundRefused, match="client 1"):
                rule.step(state, sent)
            assert packed(state) == bits
        else:
            step = rule.step(state.copy(), sent)
            assert list(step.diagnostics.dropped) == [1]
            expected = torch.stack([updates[0], *columns(state)[1:]])
            torch.testing.assert_close(columns(step.state), expected, rtol=0, atol=0)
    alone = a_round(2, [1], [torch.full((DIM,), torch.inf)])
    if reply == "drop":
        assert (
            packed(rule.step(state, alone).state)[0]["state.own.columns.rows"]
            == (bits[0]["state.own.columns.rows"])
        )


@pytest.mark.usefixtures("_apart")
def test_vectors_of_several_types_are_stacked() -> None:
    mixed = in_torch.stack([torch.zeros(3), torch.zeros(3, dtype=torch.float16)])
    assert isinstance(mixed, torch.Tensor) and mixed.dtype == torch.float32
    assert isinstance(in_torch.stack([torch.zeros(6)[::2], torch.zeros(3)]), torch.Tensor)
    learnt = in_torch.stack([torch.zeros(3, requires_grad=True)])
    assert isinstance(learnt, Vectors) and not learnt.rows[0].requires_grad
    both = in_numpy.stack([np.zeros(1 << 17, np.float32), np.zeros(1 << 17)])
    assert isinstance(both, np.ndarray) and both.dtype == np.float64


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_long_vectors_on_a_cpu_are_not_stacked(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns are still a matrix."""
    kernels = in_numpy if library == "numpy" else in_torch
    plain, read = kernels.one_pass, []

    def looked_at(sweep: Sweep) -> Pass:
        read.append(type(sweep.updates))
        return plain(sweep)

    monkeypatch.setattr(kernels, "one_pass", looked_at)
    dim, draw = (1 << 17) + 3, np.random.default_rng(1)
    near, far = RULE.init(dim, SIZES), RULE.init(dim, SIZES)
    for number, clients in enumerate([[0, 1, 2], [2, 5], [7, 0, 8], []], 1):
        rows: Any = draw.standard_normal((len(clients), dim)).astype(np.float32)
        rows = rows if library == "numpy" else torch.tensor(rows)
        near_step = RULE.step(near, a_round(number, clients, rows))
        sent = [np.copy(row) if library == "numpy" else row.clone() for row in rows]
        far_step = RULE.step(far, a_round(number, clients, sent))
        near, far = near_step.state, far_step.state
        assert not isinstance(columns(far), Vectors)
        np.testing.assert_array_equal(np.asarray(columns(far)), np.asarray(columns(near)))
        np.testing.assert_allclose(
            np.asarray(far_step.delta), np.asarray(near_step.delta), rtol=1e-5, atol=1e-5
        )
    matrix = np.ndarray if library == "numpy" else torch.Tensor
    assert read[:6] == [matrix, Vectors] * 3  # the last round is empty
