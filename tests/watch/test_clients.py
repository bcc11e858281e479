"""What each client is right now, and since when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedsteer.watch.clients import Clients, counts


def fresh(client: Any, *rounds: int, **more: Any) -> list[dict[str, Any]]:
    return [{"round": moment, "client": client, "event": "fresh"} | more for moment in rounds]


def states(
    rows: Iterable[dict[str, Any]], now: int, count: int = 0, more: int = 0
) -> dict[str, tuple[str, int]]:
    """Every client after round `now`, if its rows and those of `more` rounds have been read."""
    clients = Clients(count)
    for row in sorted(rows, key=lambda row: row["round"]):
        if row["round"] <= now + more:
            clients.note(row)
    return {one.name: (one.state, one.since) for one in clients.states(now)}


def test_fresh_since_the_first_of_its_visits_in_a_row() -> None:
    rows = [*fresh("a", 1, 3, 4, 5), *fresh("b", 5), *fresh("c", 4)]
    assert states(rows, now=5) == {"a": ("fresh", 3), "b": ("fresh", 5), "c": ("away", 4)}


def test_refreshed_and_collected_clients_answered_too() -> None:
    rows = [*fresh("a", 2, event="refresh"), *fresh("b", 2, event="collect")]
    assert {state for state, _ in states(rows, now=2).values()} == {"fresh"}


def test_absent_clients_are_estimated_only_if_the_rule_estimates() -> None:
    nothing = fresh(0, 1, 3, relative_error=1.0) + fresh(1, 4, relative_error=1.0)
    assert states(nothing, now=4)["0"] == ("away", 3)
    assert states([*nothing, *fresh(1, 2, relative_error=0.7)], now=4)["0"] == ("estimated", 3)


def test_clients_of_the_manifest_that_never_came_are_unseen() -> None:
    assert states(fresh(1, 2), now=2, count=3) == {
        "1": ("fresh", 2),
        "0": ("unseen", 0),
        "2": ("unseen", 0),
    }


def test_failed_since_the_first_failure_in_a_row_until_it_answers() -> None:
    failures = [
        *fresh("a", 3, event="failed", reason="no disk"),
        *fresh("a", 5, event="dropped", reason="not finite"),
    ]
    assert states([*fresh("a", 1), *failures], now=9) == {"a": ("failed", 3)}
    assert states([*fresh("a", 1, 6), *failures], now=6) == {"a": ("fresh", 6)}


def test_the_reason_of_a_failure_is_its_headline() -> None:
    clients = Clients()
    trace = "Traceback (most recent call last):\n  File ...\nValueError: no disk"
    clients.note({"round": 1, "client": "a", "event": "failed", "reason": trace})
    (state,) = clients.states(1)
    assert state.reason == "ValueError: no disk"


def test_stale_after_twice_the_usual_pause() -> None:
    often = [row for name in "bcd" for row in fresh(name, *range(1, 61))]
    rows = [*fresh("a", 1, 11, 21), *often]
    assert states(rows, now=41)["a"] == ("away", 21)
    assert states(rows, now=42)["a"] == ("stale", 21)


def test_nobody_is_stale_for_a_short_while_or_where_everybody_is_rare() -> None:
    often = [row for name in "bcd" for row in fresh(name, *range(1, 61))]
    assert states([*often, *fresh("a", 1, 2, 3)], now=13)["a"] == ("away", 3)
    assert states([*often, *fresh("a", 1, 2, 3)], now=14)["a"] == ("stale", 3)
    rare = [row for start in range(5) for row in fresh(start, 1 + start, 40 + start)]
    assert states([*rare, *fresh("new", 2)], now=60)["new"] == ("away", 2)


def test_gone_until_it_answers() -> None:
    rows = [*fresh("a", 1), *fresh("a", 200, event="left", reason="silent for 199 rounds")]
    assert states(rows, now=300) == {"a": ("gone", 200)}
    assert states([*rows, *fresh("a", 301)], now=301) == {"a": ("fresh", 301)}


def test_a_client_goes_by_its_node_until_it_first_answers() -> None:
    rows = [
        *fresh("node-7", 1, event="failed", reason="did not answer in time"),
        *fresh("ward", 2, node="node-7"),
    ]
    assert states(rows, now=2) == {"ward": ("fresh", 2)}


def test_rows_of_a_round_that_is_being_written_make_it_the_present_one() -> None:
    rows = [*fresh("a", 5), *fresh("b", 6)]
    assert states(rows, now=5, more=1) == {"b": ("fresh", 6), "a": ("away", 5)}


def test_odd_rows_do_no_harm() -> None:
    clients = Clients()
    for row in ({}, {"client": 1}, {"client": 1, "event": 3}, {"client": None, "event": "fresh"}):
        clients.note(row)
    assert clients.states(1) == []
    clients.note({"client": [1], "event": "fresh", "round": "x"})
    assert clients.states(1)[0].name == "[1]"


def test_the_most_urgent_come_first_and_are_counted() -> None:
    rows = [*fresh("a", 5), *fresh("b", 1), *fresh("c", 5, event="failed"), *fresh("d", 2)]
    clients = Clients(1)
    for row in rows:
        clients.note(row)
    found = clients.states(5)
    assert [one.name for one in found] == ["c", "a", "b", "d", "0"]
    assert counts(found) == {"failed": 1, "fresh": 1, "away": 2, "unseen": 1}
