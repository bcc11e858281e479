"""What `plan` sends along: payloads equal those of the references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, make_rule
from fedsteer.errors import RoundRefused
from tests.reference.fedawe import NaiveFedAWE
from tests.reference.fedsteer import NaiveDriftCorrection
from tests.reference.scaffold import NaiveScaffold
from tests.rules.enrolled import CORE, DIM, ENROLLED, SIZES, as_round, events, start


def test_fedprox_sends_its_strength() -> None:
    rule = make_rule("fedprox", proximal=0.3)
    asked = rule.plan(rule.init(DIM, SIZES), 1, [2, 0])
    assert asked.train == (2, 0) == asked.everyone and dict(asked.shared) == {"proximal": 0.3}


def driven(name: str, naive: Any, **options: Any) -> Any:
    """Play a story to the rule and its reference, yielding a plan before every round."""
    rule = make_rule(name, **options)
    state, model = rule.init(DIM, SIZES), np.zeros(DIM)
    for event in events(3, rounds=40):
        if event.leaving:
            state = rule.leave(state, event.leaving)
            naive.leave(event.leaving)
            continue
        yield event, rule.plan(state, event.number, event.clients)
        step = rule.step(state, as_round(event, np.array, model))
        naive.step(
            event.number,
            event.clients,
            event.updates,
            event.probabilities,
            event.sizes,
            steps=event.steps,
            model=model,
        )
        state, model = step.state, model - 0.1 * step.delta


def test_scaffold_sends_the_controls() -> None:
    naive = NaiveScaffold(DIM, dict(enumerate(SIZES)), local_rate=0.1)
    sent = 0
    for event, asked in driven("scaffold", naive):
        if not asked.shared:
            assert not np.any(naive.control)
            continue
        np.testing.assert_allclose(asked.shared["control"], naive.control, atol=1e-10)
        for client in event.clients:
            control = asked.each.get(client, {}).get("control", np.zeros(DIM))
            np.testing.assert_allclose(control, naive.client_control(client), atol=1e-10)
            sent += client in asked.each
    assert sent > 40


def test_fedsteer_sends_the_corrections_of_clients_seen_before() -> None:
    options = {"core_set": CORE, "drift": 0.4, "local_rate": 0.1}
    naive: Any = NaiveDriftCorrection(DIM, dict(enumerate(SIZES)), **options)
    sent = 0
    for event, asked in driven("fedsteer", naive, **options):
        assert not asked.shared
        for client in event.clients:
            found = asked.each.get(client, {}).get("correction", np.zeros(DIM))
            np.testing.assert_allclose(found, naive.correction(client), atol=1e-10)
            sent += bool(np.any(found))
    assert sent > 40


def test_drift_is_off_until_the_local_rate_is_known() -> None:
    assert make_rule("fedsteer", preset="practical").needs == frozenset()
    told = make_rule("fedsteer", preset="practical", local_rate=0.1)
    assert told.needs == {"steps"} and told.options.alpha == 0.25  # type: ignore[attr-defined]
    assert make_rule("fedsteer", local_rate=0.1).needs == frozenset()


def test_a_round_without_steps_is_refused_if_drift_is_corrected() -> None:
    rule = make_rule("fedsteer", core_set=CORE, drift=0.5, local_rate=0.1)
    state = rule.init(DIM, SIZES)
    with pytest.raises(RoundRefused, match="fedsteer needs steps"):
        rule.step(
            state, Round(number=1, clients=[2], updates=np.ones((1, DIM)), probabilities=[0.5])
        )


def test_scaffold_forgets_the_control_of_clients_that_left() -> None:
    rule = make_rule("scaffold")
    state, draw = rule.init(DIM, SIZES), np.random.default_rng(0)

    def visit(state: Any, number: int, client: Any, sizes: Any = None) -> Any:
        update = draw.standard_normal((1, DIM))
        return rule.step(
            state,
            Round(
                number=number,
                clients=[client],
                updates=update,
                probabilities=None,
                sizes=sizes,
                steps=[2],
            ),
        ).state

    state = visit(visit(state, 1, 3), 2, 4)
    assert set(rule.plan(state, 3, [3, 4]).each) == {3, 4}
    state = rule.leave(state, [3])
    assert set(rule.plan(state, 3, [3, 4]).each) == {4}
    control = state.memory.own.control.copy()
    draw = np.random.default_rng(1)
    back = rule.plan(visit(state, 3, 3, [5.0]), 4, [3]).each[3]["control"]
    update = np.random.default_rng(1).standard_normal(DIM)
    np.testing.assert_allclose(back, update / (2 * 0.1) - control, atol=1e-12)


@pytest.mark.parametrize("sizes", [np.ones(100), None])
def test_scaffolds_control_is_the_mean_of_all_however_many_there_are(sizes: Any) -> None:
    """Where every gradient is 1, so are c and all c_i, also while clients are still joining."""
    rule, steps, rate = make_rule("scaffold", local_rate=0.1), 5, 0.1
    state, none = rule.init(DIM, sizes), np.zeros(DIM)
    for number in range(1, 31):
        here = [(10 * number + i) % 100 for i in range(10)]
        asked = rule.plan(state, number, here)
        control = asked.shared.get("control", none)
        own = [asked.each.get(client, {}).get("control", none) for client in here]
        updates = steps * rate * (1.0 - np.array(own) + control)
        state = rule.step(
            state, Round(number=number, clients=here, updates=updates, steps=[steps] * 10)
        ).state
    np.testing.assert_allclose(rule.plan(state, 31, [0]).shared["control"], 1.0)


def test_fedawe_sends_the_model_each_client_continues_from() -> None:
    naive = NaiveFedAWE(DIM, dict(enumerate(SIZES)))
    sent = 0
    for event, asked in driven("fedawe", naive):
        if naive.initial is None:
            assert not asked.each
            continue
        assert set(asked.each) == set(event.clients) & naive.members
        for client in asked.each:
            np.testing.assert_allclose(
                asked.each[client]["start"], naive.start(client), rtol=0, atol=1e-10
            )
            sent += 1
    assert sent > 60


@pytest.mark.parametrize("closed", [True, False])
def test_refresh_all_asks_the_others_every_so_many_rounds(closed: bool) -> None:
    rule = make_rule("fedsteer", core_set=CORE, refresh_all_every=3)
    played = start(rule, closed=closed)
    happenings = events(4, rounds=9, closed=closed, departures=False)
    for event in happenings:
        asked = rule.plan(played.state, event.number, event.clients)
        members = set(played.state.clients.members)
        due = event.number % 3 == 0
        others = members - set(event.clients) if due and closed else set()
        assert set(asked.refresh) == others and asked.train == tuple(event.clients)
        reachable = rule.plan(played.state, event.number, event.clients, [1, 2, "far"])
        expected = {1, 2, "far"} - set(event.clients) if due else set()
        assert set(reachable.refresh) == expected
        played.play([event])


def test_rules_without_anything_to_send_ask_for_training_only() -> None:
    for label in ("fedavg", "fedvarp", "mifa", "fedstale", "steer", "cluster-given"):
        asked = start(ENROLLED[label].rule()).rule.plan(
            ENROLLED[label].rule().init(DIM, SIZES), 1, [3, 1]
        )
        assert asked.train == (3, 1) and not asked.shared and not asked.each
        assert asked.refresh == asked.collect == ()
