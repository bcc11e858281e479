"""The collecting of a warm-up cycle, without any rule around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer.rules.warm_up import Collected, Collection
from fedsteer.steering.checks import check_round
from fedsteer.steering.clients import Clients, enrol_population
from fedsteer.steering.probability import Known
from fedsteer.steering.rounds import Round

DIM = 5
SIZES = [2.0, 1.0, 4.0, 3.0]
UPDATES = np.random.default_rng(0).standard_normal((6, DIM))


def take(
    collection: Collection,
    clients: Clients,
    names: list[Any],
    updates: Any = None,
    sizes: Any = None,
) -> tuple[Any, bool, Collected | None]:
    if updates is None:
        updates = UPDATES[[hash(name) % 6 if isinstance(name, str) else name for name in names]]
    chances = [0.1 * (i + 1) for i in range(len(names))]
    given = Round(
        number=clients.number + 1,
        clients=names,
        updates=updates,
        probabilities=chances,
        sizes=sizes,
    )
    checked = check_round(given, DIM)
    active, strangers = clients.activate(checked, uses_probabilities=True, max_weight=None)
    assert active is not None and not (strangers | checked.faults)
    result, complete = collection.compute(clients, active)
    clients.welcome(active)
    collected = collection.commit(clients, active, complete=complete)
    clients.commit(active, training=False)
    return result, complete, collected


def members() -> Clients:
    return enrol_population(DIM, SIZES, Known(), None)


def test_holds_until_all_answered_then_aggregates_all() -> None:
    collection, clients = Collection(cycles=2), members()
    for names in ([1], [], [3, 0]):
        result, complete, collected = take(collection, clients, names)
        assert not complete and collected is None and not result.delta.any()
    assert collection.asked(clients, [0, 2, 3]) == (2,)
    result, complete, collected = take(collection, clients, [2])
    assert complete and collected is not None
    np.testing.assert_allclose(result.delta, np.array(SIZES) @ UPDATES[:4] / 10, atol=1e-12)
    np.testing.assert_array_equal(collected.rows[collected.slots], UPDATES[:4])
    np.testing.assert_allclose(collected.shares, np.array(SIZES) / 10)
    np.testing.assert_allclose(collected.probabilities, [0.2, 0.1, 0.1, 0.1])
    np.testing.assert_allclose(collected.gram(), UPDATES[:4] @ UPDATES[:4].T)
    part = UPDATES[:4, 1:3]
    np.testing.assert_allclose(collected.gram(slice(1, 3)), part @ part.T)
    assert collection.done == 1 and not collection.over
    # The next cycle waits for all clients again.
    assert collection.asked(clients, [0, 1, 2, 3]) == (0, 1, 2, 3)


def test_the_last_cycle_frees_the_snapshot() -> None:
    collection, clients = Collection(cycles=1), members()
    _, _, collected = take(collection, clients, [0, 1, 2, 3])
    assert collection.over and collection.snapshot.rows is None
    assert collected is not None and collected.rows is not None


def test_a_second_answer_replaces_the_first() -> None:
    collection, clients = Collection(cycles=1), members()
    take(collection, clients, [0, 1])
    take(collection, clients, [0], updates=UPDATES[[5]])
    result, complete, _ = take(collection, clients, [2, 3])
    assert complete
    expected = np.array(SIZES) @ UPDATES[[5, 1, 2, 3]] / 10
    np.testing.assert_allclose(result.delta, expected, atol=1e-12)


def test_clients_that_left_are_not_waited_for() -> None:
    collection, clients = Collection(cycles=1), members()
    take(collection, clients, [0, 1, 2])
    collection.forget(clients.roster.find([3]))
    clients.leave([3])
    result, complete, collected = take(collection, clients, [])
    assert complete and collected is not None
    np.testing.assert_allclose(result.delta, np.array(SIZES[:3]) @ UPDATES[:3] / 7, atol=1e-12)
    assert collected.slots.tolist() == [0, 1, 2]


def test_clients_that_join_are_part_of_the_snapshot() -> None:
    collection, clients = Collection(cycles=1), members()
    take(collection, clients, [0, 1, 2])
    take(collection, clients, ["new"], updates=UPDATES[[4]], sizes=[5.0])
    assert collection.asked(clients, ["new", "newer", 3]) == ("newer", 3)
    result, complete, collected = take(
        collection, clients, [3, "newer"], updates=UPDATES[[3, 5]], sizes=[3.0, 1.0]
    )
    assert complete and collected is not None
    weights = np.array([2.0, 1.0, 4.0, 3.0, 5.0, 1.0]) / 16
    np.testing.assert_allclose(result.delta, weights @ UPDATES, atol=1e-12)
    np.testing.assert_allclose(collected.shares, weights)
    np.testing.assert_array_equal(collected.rows[collected.slots], UPDATES)


def test_without_members_there_is_nothing_to_complete() -> None:
    collection, clients = Collection(cycles=1), members()
    clients.leave([0, 1, 2, 3])
    _, complete, collected = take(collection, clients, [])
    assert not complete and collected is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torch(dtype: Any) -> None:
    collection, clients = Collection(cycles=1), members()
    given = torch.tensor(UPDATES[:4], dtype=dtype)
    take(collection, clients, [3, 1], updates=given[[3, 1]])
    result, complete, collected = take(collection, clients, [0, 2], updates=given[[0, 2]])
    assert complete and collected is not None and collected.rows.dtype == dtype
    expected = np.array(SIZES) @ given.double().numpy() / 10
    np.testing.assert_allclose(result.delta, expected, atol=1e-6)
