"""One round as it arrives, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused
from fedsteer.steering.checks import check_round
from fedsteer.steering.clients import enrol_population
from fedsteer.steering.ids import plain_id
from fedsteer.steering.probability import Known
from fedsteer.steering.rounds import PER_CLIENT, REPORTED

DIM = 4


def settle(clients: Any, updates: Any, **given: Any) -> tuple[Round, dict[int, str]]:
    return check_round(Round(number=1, clients=clients, updates=updates, **given), DIM)[:2]


def test_ids_become_plain() -> None:
    settled, faults = settle([np.int64(3), "a", np.uint8(7)], np.ones((3, DIM)))
    assert settled.clients == [3, "a", 7] and not faults
    assert [type(client) for client in settled.clients] == [int, str, int]


@pytest.mark.parametrize("bad", [1.0, True, None, (1,), b"a", np.bool_(True), np.float64(1)])
def test_other_ids_are_refused(bad: Any) -> None:
    with pytest.raises(RoundRefused, match="client ids are int or str"):
        plain_id(bad)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_list_of_vectors_is_stacked(library: str) -> None:
    rows = np.arange(8.0).reshape(2, DIM)
    given: Any = list(rows) if library == "numpy" else list(torch.tensor(rows))
    settled, faults = settle([0, 1], given)
    assert not faults and np.array_equal(np.asarray(settled.updates), rows)
    assert isinstance(settled.updates, np.ndarray if library == "numpy" else torch.Tensor)
    assert settle([0, 1], tuple(given))[0].updates.shape == (2, DIM)


def test_lists_name_the_client_whose_update_is_wrong() -> None:
    good = np.ones(DIM)
    given = [good, np.ones(3), [1.0] * DIM, np.ones(DIM, int), torch.ones(DIM), np.ones((1, DIM))]
    _, faults = settle(list("abcdef"), given)
    assert set(faults) == {1, 2, 3, 4, 5}
    assert faults[1] == "update has shape (3,), expected (4,)"
    assert "not list" in faults[2] and "int64" in faults[3]
    assert "sent torch arrays" in faults[4] and "(1, 4)" in faults[5]


def test_gradients_are_not_tracked() -> None:
    settled, _ = settle([0], torch.ones(1, DIM, requires_grad=True))
    assert not settled.updates.requires_grad


def test_empty_rounds() -> None:
    for nothing in ([], (), np.zeros((0, DIM)), torch.zeros(0, DIM)):
        settled, faults = settle([], nothing, probabilities=[], sizes=[], steps=[])
        assert settled.updates.shape == (0, DIM) and not faults


@pytest.mark.parametrize(
    ("clients", "updates"),
    [
        ([0, 1], np.ones((2, DIM + 1))),
        ([0, 1], np.ones((1, DIM))),
        ([0], np.ones(DIM)),
        ([0], np.ones((1, 1, DIM))),
        ([0, 1], []),
        ([0, 1], [np.ones(DIM)]),
        ([0, 1], [np.ones(DIM), np.ones(DIM), np.ones(2)]),
        ([], [np.ones(DIM)]),
        ([], np.ones((1, DIM))),
        ([0], np.ones((1, DIM), int)),
        ([0], None),
        ([0], "text"),
    ],
)
def test_a_round_that_makes_no_sense_is_refused(clients: Any, updates: Any) -> None:
    with pytest.raises(RoundRefused):
        settle(clients, updates)


@pytest.mark.parametrize("name", ["probabilities", "sizes", "steps"])
@pytest.mark.parametrize(
    "bad", [[0.5], [0.5, 0.5, 0.5], 0.5, [[0.5, 0.5]], ["a", "b"], "ab", [None, 1]]
)
def test_vectors_of_another_shape_are_refused(name: str, bad: Any) -> None:
    if bad == [None, 1]:
        _, faults = settle([0, 1], np.ones((2, DIM)), **{name: bad})
        assert list(faults) == [0]  # no number for one client is a fault of that client
        return
    with pytest.raises(RoundRefused, match=name):
        settle([0, 1], np.ones((2, DIM)), **{name: bad})


@pytest.mark.parametrize("name", ["probabilities", "sizes", "steps"])
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, 1.5])
def test_impossible_numbers_are_faults(name: str, bad: float) -> None:
    _, faults = settle([0, 1, 2], np.ones((3, DIM)), **{name: [1.0, bad, 1.0]})
    if bad == 1.5 and name == "sizes":
        assert not faults
    else:
        wanted = {
            "probabilities": "in (0, 1]",
            "sizes": "positive and finite (at most 1e+15)",
            "steps": "a whole number from 1 to 1e+09",
        }
        assert faults == {1: f"{name} must be {wanted[name]}"}


def test_repeated_clients_are_both_at_fault() -> None:
    _, faults = settle([0, 1, np.int64(0), "0"], np.ones((4, DIM)))
    assert faults == dict.fromkeys((0, 2), "appears more than once")


def test_refreshing_a_client_that_sent_nothing_is_refused() -> None:
    with pytest.raises(RoundRefused, match="sent no update") as refused:
        settle([0, 1], np.ones((2, DIM)), refresh=[1, "x"])
    assert refused.value.clients == ("x",)


@pytest.mark.parametrize("listed", [True, False])
def test_without_takes_a_client_out_of_everything(listed: bool) -> None:
    rows: Any = np.arange(12.0).reshape(3, DIM)
    vector: Any = np.array([0.1, 0.2, 0.3])
    given = Round(
        number=3,
        clients=["a", "b", "c"],
        updates=list(rows) if listed else rows,
        probabilities=vector.tolist() if listed else vector,
        sizes=vector,
        steps=None,
        starts=rows,
        model=np.zeros(DIM),
        refresh=["b", "c"],
    )
    left = given.without({1})
    assert left.clients == ["a", "c"] and left.refresh == ["c"] and left.steps is None
    assert np.array_equal(np.array(left.updates), rows[[0, 2]])
    assert np.array_equal(left.probabilities, [0.1, 0.3])
    assert np.array_equal(left.sizes, [0.1, 0.3]) and np.array_equal(left.starts, rows[[0, 2]])
    nobody = given.without({0, 1, 2})
    assert nobody.clients == [] and len(nobody.updates) == 0 and nobody.refresh == []


IMPOSSIBLE = {name: kind.high * 2 for name, kind in PER_CLIENT.items()}


@pytest.mark.parametrize("name", PER_CLIENT)
def test_a_declared_vector_is_checked_dropped_with_its_client_and_reaches_algorithms(
    name: str,
) -> None:
    last = 2.0 if PER_CLIENT[name].whole else 0.5
    given: Any = {name: [1.0, IMPOSSIBLE[name], last]}
    settled, faults = settle(["a", "b", "c"], np.ones((3, DIM)), **given)
    assert faults == {1: f"{name} {PER_CLIENT[name].must}"}
    checked = check_round(settled.without({1}), DIM)
    left = checked.round
    assert not checked.faults and getattr(left, name).tolist() == [1.0, last]
    clients = enrol_population(DIM, None, Known(), None)
    active, _ = clients.activate(checked, uses_probabilities=False, max_weight=None)
    assert active is not None
    assert getattr(active.round, name) is getattr(left, name)


def test_vectors_are_declared_in_one_place() -> None:
    assert list(PER_CLIENT) == ["probabilities", "sizes", "steps"]
    assert REPORTED == {"steps": "num-steps"}
