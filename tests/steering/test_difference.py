"""Updates that nobody has computed: the same numbers as a subtraction, wherever they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, make_rule
from fedsteer.steering.kernels import numpy as in_numpy
from fedsteer.steering.kernels.difference import Difference
from fedsteer.steering.kernels.vectors import Vectors
from tests.rules.enrolled import (
    DIM,
    ENROLLED,
    SIZES,
    Enrolled,
    events,
    packed,
    start,
)

CUTS = [0, 2, 2, 3, DIM - 1]  # one part is empty


def parts_of(vector: Any) -> list[Any]:
    return np.split(vector, CUTS[1:])


def difference(update: Any) -> Difference:
    """The same numbers as `update`, bit for bit."""
    return Difference(update, parts_of(np.zeros_like(update)))


def apart(values: Any) -> Any:
    """Updates as a list of differences, other arrays unchanged."""
    values = np.asarray(values, np.float32)
    return list(map(difference, values)) if values.ndim == 2 else values


@pytest.mark.parametrize("returned", [np.float16, np.float32, np.float64])
def test_the_same_numbers_as_a_subtraction(returned: Any) -> None:
    draw = np.random.default_rng(0)
    sent = draw.standard_normal(DIM).astype(np.float32)
    back = draw.standard_normal(DIM).astype(returned)
    found, expected = Difference(sent, parts_of(back)), (sent - back).astype(np.float32)
    assert found.shape == (DIM,) and found.dtype == np.float32
    np.testing.assert_array_equal(np.asarray(found), expected)
    np.testing.assert_array_equal(0.5 * found, np.float32(0.5) * expected)
    places = np.array([DIM - 1, 0, 4, 2, 2])
    np.testing.assert_array_equal(found[places], expected[places])
    for first in range(DIM):
        for end in range(first, DIM + 1):
            read = np.empty(end - first, np.float32)
            found.read(slice(first, end), read)
            np.testing.assert_array_equal(read, expected[first:end])


def test_rows_of_vectors() -> None:
    updates = np.random.default_rng(1).standard_normal((3, DIM)).astype(np.float32)
    mixed = Vectors([difference(updates[0]), updates[1], difference(updates[2])])
    np.testing.assert_array_equal(mixed[:, 1:5], updates[:, 1:5])
    np.testing.assert_array_equal(mixed[[2, 0]][:, 0:DIM], updates[[2, 0]])
    assert mixed[[]].shape == (0, DIM)
    target = np.zeros((5, DIM), np.float32)
    in_numpy.store(target, [4, 0, 1], mixed)
    np.testing.assert_array_equal(target[[4, 0, 1]], updates)
    assert not target[2:4].any()


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("entry", ENROLLED.values(), ids=ENROLLED.keys())
def test_every_rule_takes_them(
    entry: Enrolled, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, as a matrix if they are short."""
    expected = start(entry.rule()).play(events(8, rounds=12), lambda values: np.float32(values))
    if long:
        monkeypatch.setattr(in_numpy, "LARGE", 1)
    found = start(entry.rule()).play(events(8, rounds=12), apart)
    assert packed(found.state) == packed(expected.state)
    for one, other in zip(found.deltas, expected.deltas, strict=True):
        np.testing.assert_array_equal(one, other)


def test_one_that_is_far_too_long_and_one_that_is_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(in_numpy, "LARGE", 1)
    rule, clients = make_rule("fedsteer", preset="practical", core_size=2), [0, 1, 2, 3, 4]
    updates = np.random.default_rng(2).standard_normal((5, DIM)).astype(np.float32)
    updates[1] *= 1e4
    updates[2, 0] = np.inf
    usual, found = (
        rule.step(rule.init(DIM, SIZES), Round(number=1, clients=clients, updates=given))
        for given in (updates, apart(updates))
    )
    assert list(found.diagnostics.dropped) == [2] and list(found.diagnostics.cut_down) == [1]
    np.testing.assert_array_equal(found.delta, usual.delta)
    assert packed(found.state) == packed(usual.state)


def test_they_are_cast_to_the_type_of_earlier_updates() -> None:
    rule = make_rule("fedavg")
    state = rule.init(DIM, SIZES, like=np.zeros(DIM, np.float32))
    updates = np.random.default_rng(3).standard_normal((1, DIM))
    sent = Round(number=1, clients=[0], updates=[difference(updates[0])], probabilities=np.ones(1))
    delta = rule.step(state, sent).delta
    assert delta.dtype == np.float32
    np.testing.assert_allclose(delta, updates[0] * SIZES[0] / np.sum([*SIZES]), rtol=1e-6)


def test_nothing_of_a_large_model_is_computed_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step makes no whole update: the pass and the columns read block by block."""
    monkeypatch.setattr(in_numpy, "LARGE", 1)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a whole update was computed")

    monkeypatch.setattr(Difference, "__array__", refuse)
    rule = make_rule("fedsteer", preset="practical", core_size=2)
    state = rule.init(DIM, SIZES)
    draw = np.random.default_rng(3)
    for number in range(1, 4):
        updates = apart(draw.standard_normal((3, DIM)))
        step = rule.step(state, Round(number=number, clients=[0, 1, 2], updates=updates))
        state = step.state
    assert step.diagnostics.core_set == (0, 1)
