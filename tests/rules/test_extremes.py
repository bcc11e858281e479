"""Numbers at the edge of their range, and a client that was there once: nothing of it stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedsteer import Round, RoundRefused, make_rule
from fedsteer.rules import Rule
from fedsteer.steering.state import State

ONCE_HUGE = 1e18
KEEPING = {
    "fedsteer": {"core_set": [2]},
    "fedsteer, own": {"core_set": [0, 2], "coordinates": "own"},
    "fedvarp": {},
    "fedstale": {},
    "mifa": {},
}


def play(
    rule: Rule, state: State, first: int, clients: list[int], updates: Any, odds: float = 1.0
) -> Any:
    """The next step."""
    given = np.asarray(updates, np.float32)
    return rule.step(
        state,
        Round(number=first, clients=clients, updates=given, probabilities=[odds] * len(clients)),
    )


def nobody(rule: Rule, state: State, number: int, dim: int = 2) -> Any:
    """An empty round, which moves by the estimates of all clients."""
    return rule.step(
        state,
        Round(number=number, clients=[], updates=np.zeros((0, dim), np.float32), probabilities=[]),
    )


@pytest.mark.parametrize("name", KEEPING)
@pytest.mark.parametrize("leaves", [False, True])
def test_a_huge_update_is_forgotten_with_the_next_one(name: str, leaves: bool) -> None:
    """Running sums, where others' shares would be lost in its rounding error."""
    rule = make_rule(name.partition(",")[0], **KEEPING[name])
    state, usual = rule.init(2, [1, 1, 1]), [0.1, 0.7]
    state = play(rule, state, 1, [0, 1, 2], [usual] * 3).state
    state = play(rule, state, 2, [0], np.multiply([usual], ONCE_HUGE)).state
    if leaves:
        state = rule.leave(state, [0])
    state = play(rule, state, 3, [1] if leaves else [0], [usual]).state
    members = [1, 2] if leaves else [0, 1, 2]
    believed = np.mean(np.asarray(rule.estimate(state, members)), axis=0)
    np.testing.assert_allclose(nobody(rule, state, 4).delta, believed, rtol=1e-6)


def test_a_column_next_to_nothing_does_not_multiply_coordinates() -> None:
    rule = make_rule("fedsteer", core_set=[0], magnitude="follow")
    state = play(rule, rule.init(2, [1, 1]), 1, [0], [[1e-15, 1e-15]], 0.5).state
    state = play(rule, state, 2, [1], [[1, 1]], 0.5).state
    state = play(rule, state, 3, [0], [[1, 1]], 0.5).state
    assert np.abs(nobody(rule, state, 4).delta).max() <= 1000


def test_fedawe_keeps_models_as_exact_as_the_model() -> None:
    """Updates in half precision do not round a client's model."""
    rule = make_rule("fedawe")
    state, model = rule.init(1, [1]), np.ones(1, np.float32)
    for number in range(1, 101):
        given = Round(
            number=number, clients=[0], updates=np.full((1, 1), 1e-4, np.float16), model=model
        )
        step = rule.step(state, given)
        state, model = step.state, model - step.delta
    assert model == pytest.approx(0.99, abs=1e-5)


def test_fedawe_counts_from_when_a_client_joined() -> None:
    """Asked only to refresh, in round 500: no reason to weigh it 501 times in the next."""
    rule, model = make_rule("fedawe"), np.zeros(1, np.float32)
    one = np.ones((1, 1), np.float32)
    state = rule.step(
        rule.init(1, [1]), Round(number=1, clients=[0], updates=one, model=model)
    ).state
    joins = Round(number=500, clients=[1], updates=one, sizes=[1.0], model=model, refresh=[1])
    state = rule.step(state, joins).state
    step = rule.step(state, Round(number=501, clients=[1], updates=one, model=model))
    assert step.diagnostics.weights == pytest.approx([1.0])


def test_fedawe_takes_a_model_that_torch_tracks() -> None:
    rule, model = make_rule("fedawe"), torch.zeros(2, requires_grad=True)
    step = rule.step(
        rule.init(2, [1]), Round(number=1, clients=[0], updates=torch.ones(1, 2), model=model)
    )
    assert step.delta.tolist() == [1.0, 1.0] and not step.delta.requires_grad


@pytest.mark.parametrize("cache", [None, "float16"])
def test_a_warm_up_of_zeros_ends(cache: str | None) -> None:
    rule = make_rule("fedsteer", core_size=2, cycles=1, cache=cache)
    assert play(rule, rule.init(2, [1, 1]), 1, [0, 1], np.zeros((2, 2)), 0.5).action == "restart"


@pytest.mark.parametrize("like", [np.ones, torch.ones])
def test_an_aggregate_out_of_range_is_refused_without_a_warning(like: Any) -> None:
    rule = make_rule("fedavg")
    state = rule.init(3, [1, 1])
    updates = like((1, 3), dtype=np.float32 if like is np.ones else torch.float32)
    with pytest.raises(RoundRefused, match="not finite"):
        rule.step(state, Round(number=1, clients=[0], updates=updates, probabilities=[1e-40]))
    with pytest.raises(RoundRefused, match=r"in \(0, 1\]"):
        rule.step(state, Round(number=1, clients=[0], updates=updates, probabilities=[1e-310]))


@pytest.mark.parametrize("like", [np.full, torch.full])
def test_an_aggregate_in_range_only_of_the_wider_type_is_refused(like: Any) -> None:
    """With a tiny ridge the pass is taken in float64; Delta is not."""
    rule = make_rule("fedsteer", core_set=[0], ridge=0.0)
    updates = like((1, 2), 3e38, dtype=np.float32 if like is np.full else torch.float32)
    with pytest.raises(RoundRefused, match="not finite"):
        rule.step(
            rule.init(2, [1, 1]), Round(number=1, clients=[0], updates=updates, probabilities=[0.1])
        )


def test_short_columns_count_beside_long_ones() -> None:
    """A millionth as long: no reason to take it for a rounding error."""
    rule = make_rule("fedsteer", core_set=[0, 1], basis="mean")
    state = play(rule, rule.init(2, [1, 1, 1]), 1, [0, 1], [[2e6, 0], [0, 1]], 0.5).state
    state = play(rule, state, 2, [2], [[0, 1]], 0.5).state
    np.testing.assert_allclose(rule.coordinates(state, [2]), [[0, 2 / 3]], rtol=1e-6)


def test_short_columns_stay_when_a_long_one_comes_in() -> None:
    rule = make_rule(
        "fedsteer", select="online", core_size=2, magnitude="follow", reselect_every=3, swaps=1
    )
    state = play(rule, rule.init(3, [1] * 4), 1, [0, 1], [[0, 1e-3, 0], [0, 0, 1e-3]], 0.5).state
    state = play(rule, state, 2, [2], [[0, 0, 1e-3]], 0.5).state
    before = rule.estimate(state, [2])
    state = play(rule, state, 3, [3], [[2e3, 0, 0]], 0.5).state
    np.testing.assert_allclose(rule.estimate(state, [2]), before, rtol=1e-5)
    assert np.abs(before).max() > 6e-4


@pytest.mark.parametrize("length", [1e-155, 1e-150, 1.0, 1e150])
def test_float64_to_the_ends_of_its_range(length: float) -> None:
    rule = make_rule("fedsteer", core_set=[0])
    updates = np.array([[length]])
    state = rule.step(
        rule.init(1, [1, 1]), Round(number=1, clients=[0], updates=updates, probabilities=[0.5])
    ).state
    state = rule.step(
        state, Round(number=2, clients=[1], updates=updates, probabilities=[0.5])
    ).state
    np.testing.assert_allclose(rule.coordinates(state, [1]), [[length * 2 / 3]], rtol=1e-3)


@pytest.mark.parametrize("length", [1e-90, 1.0, 1e80])
def test_the_same_update_again_has_a_cosine_of_one(length: float) -> None:
    rule, updates = make_rule("fedvarp"), np.array([[length, 0.0]])
    state = rule.step(
        rule.init(2, [1]), Round(number=1, clients=[0], updates=updates, probabilities=[1.0])
    ).state
    step = rule.step(state, Round(number=2, clients=[0], updates=updates, probabilities=[1.0]))
    assert step.diagnostics.cosines == pytest.approx([1.0])


def test_scaffolds_variates_may_be_longer_than_half_precision_holds() -> None:
    rule = make_rule("scaffold", local_rate=0.001)
    updates = np.full((1, 2), 100, np.float16)
    state = rule.step(
        rule.init(2, [1]), Round(number=1, clients=[0], updates=updates, steps=[1])
    ).state
    sent = rule.plan(state, 2, [0]).each[0]["control"]
    np.testing.assert_allclose(sent, [1e5, 1e5])


def test_the_order_in_which_clients_leave_does_not_matter() -> None:
    found = []
    for leaving in (["a", "b"], ["b", "a"]):
        rule = make_rule("fedsteer", select="online", core_size=2)
        state = rule.init(2)
        for number, here in enumerate((["a", "b", "c"], ["c"], ["x", "y"]), 1):
            updates = np.eye(3, 2, dtype=np.float32)[: len(here)] + 1
            step = rule.step(
                state,
                Round(
                    number=number, clients=here, updates=updates, probabilities=[0.5] * len(here)
                ),
            )
            state = step.state if number > 1 else rule.leave(step.state, leaving)
        found.append(
            rule.step(
                state, Round(number=4, clients=[], updates=np.zeros((0, 2)), probabilities=[])
            )
        )
    assert found[0].diagnostics.core_set == found[1].diagnostics.core_set


def test_a_cluster_that_all_members_left_is_founded_anew() -> None:
    sizes = [83, 76, 41, 50, 42]
    rule = make_rule("cluster_fedvarp", cluster_count=2, cycles=1)
    updates = np.array([[-1, 0], [1, 0.1], [1, 0], [1, 0.2], [1, 0.1]], np.float32)
    state = rule.init(2, dict(enumerate(sizes)))
    step = rule.step(
        state, Round(number=1, clients=[*range(5)], updates=updates, probabilities=[0.5] * 5)
    )
    state = rule.leave(step.state, [0])
    comes = Round(number=2, clients=[9], updates=updates[:1], probabilities=[0.5], sizes=[7.0])
    state = rule.step(state, comes).state
    np.testing.assert_allclose(rule.estimate(state, [9]), updates[:1])


def test_numbers_of_rounds_and_points_end_somewhere() -> None:
    rule = make_rule("fedavg")
    state, updates = rule.init(1, [1]), np.ones((1, 1))
    with pytest.raises(RoundRefused, match="does not follow"):
        rule.step(state, Round(number=1 << 63, clients=[0], updates=updates, probabilities=[0.5]))
    with pytest.raises(RoundRefused, match="at most 1e\\+15"):
        rule.step(
            state, Round(number=1, clients=[0], updates=updates, probabilities=[0.5], sizes=[1e300])
        )
    assert rule.step(
        state, Round(number=1, clients=[0], updates=updates, probabilities=[0.5])
    ).delta == [2.0]


def test_own_coordinates_on_a_column_that_was_next_to_nothing_are_cut() -> None:
    """A client that only refreshes leaves its column as it is."""
    rule = make_rule("fedsteer", core_set=[0], coordinates="own", magnitude="follow")
    state = rule.init(3, [1.0] * 2)
    tiny, long = (np.array([[size, 0.0, 0.0]]) for size in (1e-6, 1.0))
    state = rule.step(state, Round(number=1, clients=[0], updates=tiny, probabilities=[0.5])).state
    state = rule.step(
        state, Round(number=2, clients=[0], updates=long, probabilities=[0.5], refresh=[0])
    ).state
    np.testing.assert_allclose(rule.coordinates(state, [0]), [[1e3]])


@pytest.mark.parametrize("name", ["fedvarp", "fedstale", "mifa", "fedsteer"])
def test_a_huge_update_that_shrinks_in_stages_leaves_nothing(name: str) -> None:
    draw = np.random.default_rng(0)
    rule = make_rule(name, **({"core_set": [1, 2]} if name == "fedsteer" else {}))
    state = play(rule, rule.init(2, [1] * 4), 1, [1, 2, 3], draw.normal(size=(3, 2)), 0.5).state
    for number, length in enumerate(10.0 ** np.arange(18, -1, -3), 2):
        state = play(rule, state, number, [0], length * draw.normal(size=(1, 2)), 0.5).state
    believed = np.mean(np.asarray(rule.estimate(state, [0, 1, 2, 3])), axis=0)
    np.testing.assert_allclose(nobody(rule, state, 20).delta, believed, rtol=1e-5)


@pytest.mark.parametrize(("dtype", "apart"), [("float64", 1e-6), ("float32", 3e-4), ("float32", 0)])
def test_reselection_among_columns_that_are_nearly_alike(dtype: str, apart: float) -> None:
    """Huge coordinates that cancel would stop doing so with the next new column."""

    def longest(**options: Any) -> float:
        draw, found = np.random.default_rng(1), 0.0
        rule = make_rule("fedsteer", select="online", core_size=3, probabilities=0.5, **options)
        state, common = rule.init(200, np.ones(8)), draw.normal(size=200)
        for number in range(1, 41):
            common = common + 0.1 * draw.normal(size=200)
            here = np.flatnonzero(draw.random(8) < 0.5)
            updates = np.outer(draw.normal(size=len(here)), common)
            updates += apart * draw.normal(size=updates.shape)
            step = rule.step(
                state, Round(number=number, clients=here, updates=updates.astype(dtype))
            )
            state, found = step.state, max(found, step.diagnostics.delta_norm)
        return found

    assert longest(reselect_every=1) < 2 * longest()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {}),
        ("fedvarp", {}),
        ("mifa", {}),
        ("cluster_fedvarp", {"select": "online", "cluster_count": 2}),
        ("fedsteer", {"select": "online", "core_size": 2}),
    ],
)
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("library", [np, torch])
def test_updates_are_cast_to_the_type_of_like_or_of_the_first(
    name: str, options: dict[str, Any], library: Any, given: bool
) -> None:
    """What that type cannot hold is refused, and the state stays as it was."""
    rule = make_rule(name, probabilities=0.5, **options)
    short, ones = (
        library.ones((2, 8), dtype=getattr(library, kind)) for kind in ("float16", "float32")
    )
    state = rule.init(8, np.ones(3), like=short if given else None)
    first = ones if given else short
    state = rule.step(state, Round(number=1, clients=[0, 1], updates=first)).state
    packed = arrays_of(state)
    for updates in (1e6 * ones, [*(1e6 * ones)]):
        with pytest.raises(RoundRefused, match="client 0 sent a non-finite update"):
            rule.step(state, Round(number=2, clients=[0, 1], updates=updates))
    assert arrays_of(state) == packed
    state = rule.step(state, Round(number=2, clients=[0, 1], updates=ones)).state
    step = rule.step(state, Round(number=3, clients=[1], updates=[ones[0]]))
    assert np.isfinite(np.asarray(step.delta)).all()


def arrays_of(state: State) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.pack()[0].items()}


@pytest.mark.parametrize("cache", [None, "float16", "float32", "float64"])
@pytest.mark.parametrize("warm_start", ["updates", "empty"])
def test_columns_of_a_narrower_type_stay_finite(cache: str | None, warm_start: str) -> None:
    rule = make_rule(
        "fedsteer", core_size=2, cycles=1, cache=cache, warm_start=warm_start, probabilities=0.5
    )
    huge = 1e39 * np.random.default_rng(0).normal(size=(3, 8))
    state = rule.step(
        rule.init(8, np.ones(3)), Round(number=1, clients=[0, 1, 2], updates=huge)
    ).state
    second = Round(number=2, clients=[0, 1, 2], updates=huge)
    if cache in ("float16", "float32"):
        with pytest.raises(RoundRefused, match="client 0 sent a non-finite update"):
            rule.step(state, second)
    else:
        state = rule.step(state, second).state
    assert all(np.isfinite(array).all() for array in state.pack()[0].values())
    step = rule.step(state, Round(number=3, clients=[0], updates=np.ones((1, 8))))
    assert np.isfinite(step.delta).all()


def test_a_total_of_fractions_is_exact_after_the_largest_left() -> None:
    rule = make_rule("mifa", start="wait")
    state = rule.init(2, [0.9, 0.4, 1e5])
    for number, client in ((1, 0), (2, 1)):
        state = rule.step(
            state, Round(number=number, clients=[client], updates=np.ones((1, 2)))
        ).state
    state = rule.leave(state, [2])
    assert (
        rule.step(state, Round(number=3, clients=[0, 1], updates=np.ones((2, 2)))).action == "move"
    )
    rule = make_rule("scaffold")
    first = Round(
        number=1, clients=[0, 1, 2], updates=np.array([[1.0, 2], [3, 4], [5, 6]]), steps=[1] * 3
    )
    own = rule.leave(rule.step(rule.init(2, [0.01, 1e15, 1.0]), first).state, [1, 2]).memory.own  # type: ignore[attr-defined]
    np.testing.assert_allclose(own.control, own.controls.rows[0], rtol=1e-12)
    assert own.total == 0.01
    rule = make_rule("fedavg", probabilities=1.0)
    state = rule.leave(rule.init(2, [0.1, 0.2, 1e15]), [2])
    np.testing.assert_allclose(
        rule.step(state, Round(number=1, clients=[0, 1], updates=np.ones((2, 2)))).delta, 1.0
    )


@pytest.mark.parametrize("name", ["fedavg", "fedsteer", "mifa", "scaffold"])
def test_one_of_the_first_two_clients_cannot_move_the_model_far(name: str) -> None:
    """The median of two would be half of what it sends, or half of the points it claims."""
    rule, state = make_rule(name, preset="practical"), None
    sent = np.array([[1.0, 0.0], [0.0, 1e18]], np.float32)
    for number in range(1, 6):
        state = rule.init(2) if state is None else state
        given = Round(number=number, clients=[0, 1], updates=sent, sizes=[10.0, 1e15], steps=[1, 1])
        step = rule.step(state, given)
        state = step.state
        assert np.linalg.norm(step.delta) < 2
        assert step.diagnostics.sizes[1] <= 100 * 10.0**number


@pytest.mark.parametrize("library", [np, torch])
def test_a_column_too_short_for_its_type_counts_as_zeros(library: Any) -> None:
    """In a pass of float64 its length is known, but float32 cannot scale it."""
    rule = make_rule("fedsteer", core_set=[0], ridge=0.0, drift=0.5, local_rate=1.0)
    state = rule.init(2, [1, 1])
    for number in range(1, 4):
        updates = library.ones((2, 2), dtype=library.float32)
        updates[0] *= 1e-40
        given = Round(
            number=number, clients=[0, 1], updates=updates, steps=[1, 1], probabilities=[0.5] * 2
        )
        state = rule.step(state, given).state
        for own in rule.plan(state, number + 1, [0, 1]).each.values():
            assert np.isfinite(np.asarray(own["correction"])).all()
        assert np.isfinite(np.asarray(rule.estimate(state, [0, 1]))).all()
