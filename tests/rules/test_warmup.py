"""The executed warm-up, driven by `plan` from the first round to the first of training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, Rule, State, make_rule
from fedsteer.draws import generator
from fedsteer.rules.cluster_fedvarp import ClusterMemory, k_means
from fedsteer.rules.fedsteer import FedSteerMemory
from fedsteer.rules.warm_up import Collection, WarmUpMemory
from tests.reference.coreset import naive_search

DIM, N, K = 15, 11, 3
DRAW = np.random.default_rng(0)
SIZES = DRAW.integers(1, 20, N).astype(float)
SHARES = SIZES / SIZES.sum()
CHANCES = DRAW.uniform(0.15, 0.8, N)
CENTRES = 3 * DRAW.standard_normal((4, DIM))


@dataclass
class Federation:
    """Clients whose update depends on the model only, so that a cycle's snapshot can be redone."""

    rule: Rule
    state: State
    model: Any = field(default_factory=lambda: np.zeros(DIM))
    draw: Any = field(default_factory=lambda: np.random.default_rng(1))
    number: int = 0
    present: list[Any] = field(default_factory=lambda: list(range(N)))
    sizes: dict[Any, float] = field(default_factory=lambda: dict(enumerate(SIZES)))
    answered: set[Any] = field(default_factory=set)
    joined: set[Any] = field(default_factory=set)
    uploads: int = 0

    def update(self, client: Any) -> Any:
        key = client if isinstance(client, int) else sum(map(ord, client))
        target = CENTRES[key % 4] + np.random.default_rng(key).standard_normal(DIM)
        return 0.5 * (self.model - target)

    def chance(self, client: Any) -> float:
        return float(CHANCES[client]) if isinstance(client, int) else 0.5

    def round(self) -> Any:
        """One round of Bernoulli participation, answered exactly as `plan` asks."""
        self.number += 1
        available = [c for c in self.present if self.draw.random() < self.chance(c)]
        assert self.rule.phase(self.state) == "warm-up"
        asked = self.rule.plan(self.state, self.number, available)
        assert asked.train == asked.refresh == ()
        assert asked.collect == tuple(c for c in available if c not in self.answered)
        clients = list(asked.collect)
        self.answered |= set(clients)
        self.uploads += len(clients)
        sizes = None
        if newcomers := [c for c in clients if c not in range(N) and c not in self.joined]:
            sizes = [self.sizes[c] for c in clients]
            self.joined |= set(newcomers)
        updates = np.array([self.update(c) for c in clients]).reshape(-1, DIM)
        probabilities = [self.chance(c) for c in clients]
        step = self.rule.step(
            self.state,
            Round(
                number=self.number,
                clients=clients,
                updates=updates,
                probabilities=probabilities,
                sizes=sizes,
            ),
        )
        self.state = step.state
        assert step.diagnostics.phase == "warm-up"
        return step

    def cycle(self) -> tuple[Any, Any]:
        """Rounds until all clients answered: (the last step, snapshot of all updates)."""
        snapshot = np.array([self.update(c) for c in self.present])
        while True:
            step = self.round()
            if self.answered >= set(self.present):
                break
            assert step.action == "hold" and not step.delta.any()
            assert self.number < 200
        self.answered.clear()
        weights = np.array([self.sizes[c] for c in self.present])
        expected = weights @ snapshot / weights.sum()
        np.testing.assert_allclose(step.delta, expected, rtol=0, atol=1e-12)
        if step.action == "move":
            self.model = self.model - 0.3 * step.delta
        return step, snapshot


def federation(name: str, **options: Any) -> Federation:
    rule = make_rule(name, **options)
    return Federation(rule, rule.init(DIM, SIZES))


def steering(state: State) -> FedSteerMemory:
    """FedSteer's memory, in a warm-up the one that is being prepared."""
    own = state.memory.own  # type: ignore[attr-defined]
    found = own.prepared if isinstance(own, WarmUpMemory) else own
    assert isinstance(found, FedSteerMemory)
    return found


def collection(state: State) -> Collection | None:
    own = state.memory.own  # type: ignore[attr-defined]
    return own.collection if isinstance(own, WarmUpMemory) else None


def weights_of(objective: str) -> Any:
    if objective == "variance":
        return SHARES**2 * (1 - CHANCES) / CHANCES
    return SHARES**2 / CHANCES if objective == "authors" else SHARES


def random_start(seed: int = 0) -> list[int]:
    return generator(seed, "first core set").choice(N, K, replace=False).tolist()


@pytest.mark.parametrize("cycles", [1, 3])
@pytest.mark.parametrize("objective", ["size", "variance", "authors"])
@pytest.mark.parametrize("seed", [0, 5])
def test_core_set_is_the_naive_search_chained_over_the_cycles(
    cycles: int, objective: str, seed: int
) -> None:
    world = federation("fedsteer", core_size=K, cycles=cycles, objective=objective, seed=seed)
    core = random_start(seed)
    assert steering(world.state).columns.owners == core
    for cycle in range(1, cycles + 1):
        step, snapshot = world.cycle()
        assert step.action == ("restart" if cycle == cycles else "move")
        targets = snapshot
        if objective == "authors":
            targets = snapshot / np.linalg.norm(snapshot, axis=1, keepdims=True)
        core = naive_search(targets, weights_of(objective), core, 0.5, 5)
        assert steering(world.state).columns.owners == core
        collecting = collection(world.state)
        if cycle < cycles:
            assert collecting is not None and collecting.done == cycle
            assert world.uploads == cycle * N
        else:
            assert collecting is None
    assert core != random_start(seed)
    assert world.rule.phase(world.state) == "train"


def test_subsampled_candidates() -> None:
    world = federation("fedsteer", core_size=K, cycles=3, candidates=4)
    core = random_start()
    for cycle in (1, 2, 3):
        _, snapshot = world.cycle()
        drawn = generator(0, "core-set search", round=cycle).choice(N, 4, replace=False)
        before = set(core)
        core = naive_search(snapshot, SHARES, core, 0.5, 5, sorted(drawn.tolist()))
        assert steering(world.state).columns.owners == core
        assert set(core) <= before | set(drawn.tolist())


def test_search_on_some_model_weights_only() -> None:
    world = federation("fedsteer", core_size=K, cycles=2, search_columns=(10, 15))
    core = random_start()
    for _ in range(2):
        _, snapshot = world.cycle()
        core = naive_search(snapshot[:, 10:15], SHARES, core, 0.5, 5)
    assert steering(world.state).columns.owners == core


@pytest.mark.parametrize("warm_start", ["updates", "empty"])
def test_columns_when_training_begins(warm_start: str) -> None:
    world = federation("fedsteer", core_size=K, cycles=2, warm_start=warm_start)
    world.cycle()
    _, snapshot = world.cycle()
    space = steering(world.state).columns
    if warm_start == "updates":
        rows = snapshot[space.owners]
        np.testing.assert_array_equal(space.rows, rows)
        np.testing.assert_allclose(space.gram, rows @ rows.T)
    else:
        assert space.rows is None and not space.gram.any()
    # There are no coordinates yet: the first training round is that of FedAvg.
    updates = np.random.default_rng(3).standard_normal((2, DIM))
    given = Round(
        number=world.number + 1, clients=[4, 8], updates=updates, probabilities=CHANCES[[4, 8]]
    )
    assert world.rule.plan(world.state, world.number + 1, [4, 8]).train == (4, 8)
    step = world.rule.step(world.state, given)
    assert step.diagnostics.phase == "train" and step.action == "move"
    np.testing.assert_allclose(step.delta, (SHARES / CHANCES)[[4, 8]] @ updates, atol=1e-12)
    assert step.diagnostics.columns == (K if warm_start == "updates" else 0)
    coordinates = world.rule.coordinates(step.state, [4, 0])
    assert coordinates is not None and not coordinates[1].any()
    assert bool(coordinates[0].any()) == (warm_start == "updates")


def test_without_reinitialisation_the_last_cycle_moves_like_the_others() -> None:
    world = federation("fedsteer", core_size=K, cycles=2, reinitialise=False)
    assert [world.cycle()[0].action for _ in range(2)] == ["move", "move"]
    assert world.rule.phase(world.state) == "train"


@pytest.mark.parametrize("reinitialise", [True, False])
@pytest.mark.parametrize(("source", "expected"), [("visits", 1 / 3), ("intervals", 1.0)])
def test_estimated_probabilities_count_from_the_end_of_the_warm_up(
    reinitialise: bool, source: str, expected: float
) -> None:
    """Rounds spent waiting say nothing about how often a client takes part."""
    world = federation(
        "fedsteer", core_size=K, cycles=2, reinitialise=reinitialise, probabilities=source
    )
    world.cycle()
    world.cycle()
    given = Round(number=world.number + 3, clients=[4], updates=np.ones((1, DIM)))
    found = world.rule.step(world.state, given).diagnostics.probabilities
    assert found[0] == pytest.approx(expected)


def test_the_norm_bound_never_touches_the_held_or_restarted_model() -> None:
    world = federation("fedsteer", core_size=K, cycles=2, norm_bound=1e-3)
    while world.rule.phase(world.state) == "warm-up":
        step = world.round()
        if step.action != "hold":
            world.answered.clear()
        assert (step.diagnostics.bound_factor < 1) == (step.action == "move")


def test_a_client_that_leaves_is_not_waited_for() -> None:
    """It leaves in the middle of a cycle, from the core set; a random client takes its place."""
    world = federation("fedsteer", core_size=K, cycles=2)
    world.cycle()
    core = list(steering(world.state).columns.owners)
    world.round()
    gone = core[1]
    world.state = world.rule.leave(world.state, [gone])
    world.present.remove(gone)
    world.answered.discard(gone)
    assert steering(world.state).columns.owners == [core[0], None, core[2]]
    step, snapshot = world.cycle()
    assert step.action == "restart"
    draw = generator(0, "core-set search", round=2)
    place = {client: index for index, client in enumerate(world.present)}
    start = [place[core[0]], place[core[2]]]
    spare = np.setdiff1d(np.arange(N - 1), start)
    start += draw.choice(spare, 1, replace=False).tolist()
    weights = SIZES[world.present] / SIZES[world.present].sum()
    found = naive_search(snapshot, weights, start, 0.5, 5)
    assert steering(world.state).columns.owners == [world.present[i] for i in found]


def test_the_last_one_missing_leaves() -> None:
    """The next round completes the cycle, without a client in it."""
    world = federation("fedsteer", core_size=K, cycles=1)
    snapshot = np.array([world.update(c) for c in range(N)])
    others = [c for c in range(N) if c != 6]
    given = Round(number=1, clients=others, updates=snapshot[others], probabilities=CHANCES[others])
    step = world.rule.step(world.state, given)
    assert step.action == "hold"
    state = world.rule.leave(step.state, [6])
    assert world.rule.plan(state, 2, others).everyone == ()
    step = world.rule.step(state, Round(number=2, clients=[], updates=[], probabilities=[]))
    assert step.action == "restart"
    expected = SIZES[others] @ snapshot[others] / SIZES[others].sum()
    np.testing.assert_allclose(step.delta, expected, atol=1e-12)
    assert 6 not in steering(step.state).columns.owners


@pytest.mark.parametrize("name", ["fedsteer", "cluster_fedvarp"])
def test_a_client_that_joins_in_the_middle_is_collected_too(name: str) -> None:
    world = federation(name, cycles=2)
    world.round()
    world.present.append("newcomer")
    world.sizes["newcomer"] = 40.0
    step, _ = world.cycle()
    assert step.action == "move" and "newcomer" in world.joined
    step, snapshot = world.cycle()
    assert step.action == "restart" and len(snapshot) == N + 1
    clients = step.state.memory.clients  # type: ignore[attr-defined]
    assert clients.total == SIZES.sum() + 40


@pytest.mark.parametrize("warm_start", ["updates", "empty"])
def test_a_client_that_joins_in_the_round_that_ends_it_can_be_chosen(warm_start: str) -> None:
    rule = make_rule("fedsteer", core_size=2, cycles=1, warm_start=warm_start)
    updates = np.array([[1.0, 0, 0], [1.1, 0, 0], [0, 50.0, 0], [0, 0, 60.0]])
    round = Round(
        number=1,
        clients=[0, 1, "x", "y"],
        updates=updates,
        probabilities=[0.5] * 4,
        sizes=[1, 1, 50, 50],
    )
    step = rule.step(rule.init(3, [1.0, 1.0]), round)
    space = steering(step.state).columns
    assert set(space.owners) == {"x", "y"}
    if warm_start == "updates":
        columns = {owner: row for owner, row in zip(space.owners, space.rows, strict=True)}
        np.testing.assert_array_equal(columns["x"], updates[2])
        np.testing.assert_array_equal(columns["y"], updates[3])


def test_reselection_knows_whom_the_search_chose() -> None:
    """A chosen client that was not seen since counts as in the snapshot."""
    rule = make_rule("fedsteer", core_size=3, cycles=1, reselect_every=1, sketch_width=8)
    updates = np.eye(8)[[0, 1, 2, 0, 1, 2, 0, 1, 2]] + 0.01 * DRAW.standard_normal((9, 8))
    state = rule.step(
        rule.init(8, [1.0] * 9),
        Round(number=1, clients=range(9), updates=updates, probabilities=[0.5] * 9),
    ).state
    first = list(steering(state).columns.owners)
    assert sorted(owner % 3 for owner in first) == [0, 1, 2]  # type: ignore[operator]
    state = rule.step(
        state,
        Round(number=2, clients=[0, 3, 6], updates=updates[[0, 3, 6]], probabilities=[0.5] * 3),
    ).state
    owners = steering(state).columns.owners
    assert sorted(owner % 3 for owner in owners) == [0, 1, 2]  # type: ignore[operator]


@pytest.mark.parametrize("name", ["fedsteer", "cluster_fedvarp"])
def test_a_client_that_answered_left_and_returned_is_asked_again(name: str) -> None:
    world = federation(name, cycles=1)
    snapshot = np.array([world.update(c) for c in range(N)])
    state = world.rule.step(
        world.state,
        Round(number=1, clients=[4, 5], updates=snapshot[[4, 5]], probabilities=CHANCES[[4, 5]]),
    ).state
    state = world.rule.leave(state, [4])
    assert world.rule.plan(state, 2, [4, 5, 6]).collect == (4, 6)
    others = [c for c in range(N) if c not in (4, 5)]
    state = world.rule.step(
        state,
        Round(number=2, clients=others, updates=snapshot[others], probabilities=CHANCES[others]),
    ).state
    assert world.rule.phase(state) == "train"  # without waiting for it
    rule = make_rule(name, cycles=1)
    state = rule.step(
        rule.init(DIM, SIZES),
        Round(number=1, clients=[4], updates=snapshot[[4]], probabilities=CHANCES[[4]]),
    ).state
    state = rule.leave(state, [4])
    given = Round(
        number=2,
        clients=[4, 5],
        updates=snapshot[[5, 5]],
        probabilities=CHANCES[[4, 5]],
        sizes=SIZES[[4, 5]],
    )
    state = rule.step(state, given).state
    step = rule.step(
        state,
        Round(number=3, clients=others, updates=snapshot[others], probabilities=CHANCES[others]),
    )
    snapshot[4] = snapshot[5]
    np.testing.assert_allclose(step.delta, SHARES @ snapshot, rtol=0, atol=1e-12)


def test_a_core_set_that_could_not_be_filled_is_filled_later() -> None:
    """In the first cycle only two clients send anything but zeros; later all do."""
    rule = make_rule("fedsteer", core_size=4, cycles=2)
    state = rule.init(DIM, SIZES)
    snapshot = np.random.default_rng(2).standard_normal((N, DIM))
    first = np.zeros((N, DIM))
    first[[3, 7]] = snapshot[[3, 7]]
    state = rule.step(
        state, Round(number=1, clients=range(N), updates=first, probabilities=CHANCES)
    ).state
    assert set(steering(state).columns.owners) == {3, 7}
    step = rule.step(
        state, Round(number=2, clients=range(N), updates=snapshot, probabilities=CHANCES)
    )
    assert len(set(steering(step.state).columns.owners)) == 4


def test_when_all_send_zeros_training_begins_without_columns() -> None:
    rule = make_rule("fedsteer", core_size=K, cycles=1)
    step = rule.step(
        rule.init(DIM, SIZES),
        Round(number=1, clients=range(N), updates=np.zeros((N, DIM)), probabilities=CHANCES),
    )
    assert step.action == "restart" and not steering(step.state).columns.owners
    step = rule.step(
        step.state, Round(number=2, clients=[0], updates=np.ones((1, DIM)), probabilities=[0.5])
    )
    assert np.isfinite(step.delta).all()


@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_are_k_means_of_the_last_snapshot(seed: int) -> None:
    world = federation("cluster_fedvarp", cluster_count=4, cycles=2, seed=seed)
    step, _ = world.cycle()
    assert step.action == "move"
    step, snapshot = world.cycle()
    assert step.action == "restart"
    own = step.state.memory.own  # type: ignore[attr-defined]
    assert isinstance(own, ClusterMemory)
    labels = k_means(snapshot @ snapshot.T, SHARES, 4, generator(seed, "clusters"))
    assert own.member_of[np.arange(N)].tolist() == labels.tolist()
    np.testing.assert_allclose(own.mass, np.bincount(labels, SIZES, 4))
    # Training begins with empty clusters, as FedAvg, and remembers from then on.
    updates = np.random.default_rng(3).standard_normal((2, DIM))
    after = world.rule.step(
        step.state,
        Round(
            number=world.number + 1, clients=[4, 8], updates=updates, probabilities=CHANCES[[4, 8]]
        ),
    )
    np.testing.assert_allclose(after.delta, (SHARES / CHANCES)[[4, 8]] @ updates, atol=1e-12)


@pytest.mark.parametrize("name", ["fedsteer", "cluster_fedvarp"])
def test_leaving_a_cluster_or_core_set_in_warm_up_keeps_the_weights(name: str) -> None:
    world = federation(name, cycles=1)
    world.round()
    for gone in (2, 9):
        world.state = world.rule.leave(world.state, [gone])
        world.present.remove(gone)
        world.answered.discard(gone)
    step, _ = world.cycle()
    assert step.action == "restart"
    own = step.state.memory.own  # type: ignore[attr-defined]
    if name == "cluster_fedvarp":
        assert own.mass.sum() == pytest.approx(SIZES.sum() - SIZES[2] - SIZES[9])
    else:
        assert not {2, 9} & set(own.columns.owners)


def test_the_same_in_torch() -> None:
    """The whole warm-up in torch ends with the same core set and columns."""
    ours, theirs = (make_rule("fedsteer", core_size=K, cycles=2) for _ in range(2))
    one, other = ours.init(DIM, SIZES), theirs.init(DIM, SIZES)
    draw = np.random.default_rng(4)
    for number in range(1, 60):
        active = np.flatnonzero(draw.random(N) < CHANCES)
        updates = draw.standard_normal((len(active), DIM))
        first = ours.step(
            one,
            Round(
                number=number,
                clients=active.tolist(),
                updates=updates,
                probabilities=CHANCES[active],
            ),
        )
        second = theirs.step(
            other,
            Round(
                number=number,
                clients=active.tolist(),
                updates=torch.tensor(updates),
                probabilities=CHANCES[active],
            ),
        )
        one, other = first.state, second.state
        assert first.action == second.action
        np.testing.assert_allclose(first.delta, second.delta, rtol=0, atol=1e-10)
    assert ours.phase(one) == "train"
    assert steering(one).columns.owners == steering(other).columns.owners
