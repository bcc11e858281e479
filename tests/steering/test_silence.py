"""Clients that vanish leave, honest rare ones do not, and clients that return are welcome."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, State, make_rule
from fedsteer.steering.attendance import EVERY, LEAST, OPEN, VISITS, Attendance
from fedsteer.steering.table import Table

DIM = 5


def looked(
    last: list[int], longest: list[int], count: list[int], number: int = 1000, times: float = 5.0
) -> Any:
    visits = np.column_stack([last, last, longest, count])
    gone, fading = Attendance(Table(visits)).silent(np.arange(len(last)), number, times)
    return gone.tolist(), fading.tolist()


def test_silence_is_measured_in_usual_intervals() -> None:
    """The usual interval is about ten rounds; client 2 has longer ones."""
    last = [995, 996, 700, 700, 990]
    assert looked(last, [10, 12, 80, 10, 9], [50] * 5) == ([3], [])
    assert looked(last, [10, 12, 10, 10, 9], [50, 50, VISITS - 1, 50, 50]) == ([3], [])


def test_a_warning_comes_once_and_half_way() -> None:
    members, longest = [999] * 9, [30] * 9
    warned = [
        number
        for number in range(1000, 1200, EVERY)
        if looked([*[number] * 9, 930], [*longest, 30], [9] * 10, number, times=5.0)[1]
    ]
    assert members and warned == [1010]  # 150 rounds are the limit


def test_few_rounds_are_never_too_many() -> None:
    last = [1000] * 5 + [1000 - LEAST]
    assert looked(last, [1] * 6, [900] * 6) == ([], [])
    assert looked([*last[:5], 999 - LEAST], [1] * 6, [900] * 6)[0] == [5]


def test_clients_that_vanish_together_leave_later() -> None:
    """The rounds since their last visit are common, but only up to OPEN of them count."""
    away = 5 * OPEN
    assert looked([1000 - away] * 6, [1] * 6, [400] * 6)[0] == []
    assert looked([999 - away] * 6, [1] * 6, [400] * 6)[0] == [*range(6)]


def play(rule: Any, state: State, number: int, clients: list[Any], **more: Any) -> Any:
    updates = np.ones((len(clients), DIM)) * (1 + np.arange(len(clients)))[:, None]
    return rule.step(state, Round(number=number, clients=clients, updates=updates, **more))


@pytest.mark.parametrize("name", ["fedsteer", "fedvarp", "fedstale", "mifa", "cluster_fedvarp"])
@pytest.mark.parametrize("sizes", [[4.0, 4.0, 2.0], None])
def test_a_client_that_vanished_is_forgotten_until_it_returns(
    name: str, sizes: list[float] | None
) -> None:
    rule = make_rule(name, preset="practical", leave_after=5.0, norm_bound=None)
    own = {} if sizes else {"sizes": [4.0, 4.0, 2.0]}
    state = rule.init(DIM, sizes)
    for number in range(1, 21):
        state = play(rule, state, number, [0, 1, 2], **own).state
    own = {} if sizes else {"sizes": [4.0, 4.0]}
    gone: dict[Any, int] = {}
    for number in range(21, 141):
        step = play(rule, state, number, [0, 1], **own)
        state, left = step.state, step.diagnostics.gone
        gone |= left
        assert not left or (left == {2: 110} and number == 130)
    assert gone == {2: 110} and state.clients.members == [0, 1]
    assert sum(state.clients.sizes.values()) == 8.0
    arrays, meta = state.pack()
    state = State.unpack(arrays, meta)
    back = play(rule, state, 141, [2], **({} if sizes else {"sizes": [2.0]}))
    assert back.state.clients.members == [0, 1, 2]
    assert back.state.clients.sizes[2] == 2.0


def test_warnings_before_it_leaves() -> None:
    rule = make_rule("fedavg", preset="practical", leave_after=5.0)
    state = rule.init(DIM, [1.0] * 3)
    faded = {}
    for number in range(1, 100):
        step = play(rule, state, number, [0, 1, 2] if number < 21 else [0, 1])
        state = step.state
        faded |= {number: step.diagnostics.fading} if step.diagnostics.fading else {}
    assert faded == {80: {2: 60}}


def test_without_the_option_clients_stay() -> None:
    rule = make_rule("fedavg", probabilities="shrunk")
    state = rule.init(DIM, [1.0] * 3)
    for number in range(1, 400):
        state = play(rule, state, number, [0, 1, 2] if number < 21 else [0, 1]).state
    assert state.clients.members == [0, 1, 2]


def away(sizes: Any) -> tuple[Any, State, Any]:
    """A rule, its state once client "c" has fallen silent, and the number of the last round."""
    rule = make_rule("fedavg", preset="practical", leave_after=5.0, step="fixed")
    state = rule.init(DIM, sizes)
    names = list(sizes)
    for number in range(1, 141):
        state = play(rule, state, number, names if number < 21 else names[:2]).state
    assert state.clients.members == names[:2]
    return rule, state, 140


def test_what_is_known_of_a_returning_client_goes_once_it_leaves_for_good() -> None:
    rule, state, number = away({"a": 4.0, "b": 4.0, "c": 2.0})
    state = play(rule, state, number + 1, ["c"]).state
    assert state.clients.sizes["c"] == 2.0
    state = rule.leave(state, ["c"])
    for stranger in ("c", "d"):  # "d" would get the slot of "c"
        dropped = play(rule, state.copy(), number + 2, [stranger]).diagnostics.dropped
        assert "its number of data points was not given" in dropped[stranger]


def test_a_returning_client_may_say_how_large_it_was() -> None:
    """Its last size counts for `size_bound`, whether it brings one or not."""
    rule, state, last = away({"a": 4.0, "b": 4.0, "c": 2000.0})
    state = play(rule, state, last + 1, ["a", "b"], sizes=[4.0, 4.0]).state
    for brought, believed in ((None, 2000.0), ([2000.0], 2000.0), ([1e9], 2000.0)):
        more = {} if brought is None else {"sizes": brought}
        back = play(rule, state.copy(), last + 2, ["c"], **more)
        assert back.state.clients.sizes["c"] == believed


@pytest.mark.parametrize("name", ["fedsteer", "fedvarp", "mifa", "cluster_fedvarp", "scaffold"])
def test_a_silent_client_can_leave_for_good(name: str) -> None:
    """Then nothing is known of it any more: without a size it cannot come back."""
    rule = make_rule(name, preset="practical", leave_after=5.0)
    state, more = rule.init(DIM, [4.0, 4.0, 2.0]), {}
    for number in range(1, 131):
        present = [0, 1, 2] if number < 21 else [0, 1]
        more = {"steps": [3] * len(present)} if name == "scaffold" else {}
        state = play(rule, state, number, present, **more).state
    assert state.clients.members == [0, 1]
    state = rule.leave(state, [2])
    assert state.clients.members == [0, 1]
    more = {"steps": [3]} if name == "scaffold" else {}
    dropped = play(rule, state, 131, [2], **more).diagnostics.dropped
    assert "cannot join" in dropped[2]


def test_an_outage_is_nobodys_silence() -> None:
    """After 500 rounds without anybody, intervals are what they were, and so is patience."""
    rule = make_rule("fedavg", preset="practical", leave_after=5.0)
    state, gone = rule.init(DIM, [1.0] * 3), {}
    for number in range(1, 801):
        present = [0, 1, 2] if number < 21 else [] if number < 521 else [0, 1]
        step = play(rule, state, number, present)
        state, gone = step.state, gone | {number: step.diagnostics.gone}
        assert number > 520 or not gone[number]
    assert [number for number, left in gone.items() if left] == [630]
