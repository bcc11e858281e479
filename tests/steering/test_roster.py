"""Ids and slots: no two ids ever share one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsteer.steering.ids import ClientId, Roster, id_order

IDS = st.one_of(st.integers(-3, 12), st.sampled_from(["a", "b", "c", "0", "5"]))
MOVES = st.lists(st.tuples(st.sampled_from("er"), st.lists(IDS, max_size=5, unique=True)))


@settings(deadline=None)
@given(st.integers(0, 6), MOVES)
def test_never_two_ids_in_one_slot(dense: int, moves: list[tuple[str, list[ClientId]]]) -> None:
    roster = Roster(dense=dense)
    inside: set[ClientId] = set(range(dense))
    for move, clients in moves:
        if move == "e":
            planned = roster.preview(clients).tolist()
            roster.enrol(clients)
            assert roster.find(clients).tolist() == planned
            inside |= set(clients)
        else:
            roster.remove(clients)
            inside -= {c for c in clients if not (isinstance(c, int) and 0 <= c < dense)}
        everyone = roster.everyone()
        slots = roster.find(everyone).tolist()
        assert set(everyone) == inside and len(everyone) == len(inside)
        assert len(set(slots)) == len(slots) and min(slots, default=0) >= 0
        assert [roster.name(slot) for slot in slots] == everyone
        assert max(slots, default=-1) < roster.next_slot


@given(st.lists(IDS, max_size=6, unique=True), st.randoms())
def test_order_of_a_list_does_not_decide_slots(clients: list[ClientId], random: object) -> None:
    mixed = list(clients)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    one, other = Roster(dense=3), Roster(dense=3)
    one.enrol(clients)
    other.enrol(mixed)
    assert one.find(clients).tolist() == other.find(clients).tolist()


def test_dense_ids_are_their_own_slots() -> None:
    roster = Roster(dense=1_000_000)
    assert roster.find([0, 999_999, 1_000_000, -1, "0"]).tolist() == [0, 999_999, -1, -1, -1]
    assert not roster.ids
    roster.remove([5])
    assert roster.find([5]).tolist() == [5] and not roster.free


def test_slots_are_used_again() -> None:
    roster = Roster(dense=2)
    roster.enrol(["a", "b", "c"])
    assert roster.find(["a", "b", "c"]).tolist() == [2, 3, 4]
    roster.remove(["b", "a", "nobody"])
    assert roster.find(["a", "b"]).tolist() == [-1, -1]
    roster.enrol(["d", "e", "f"])
    assert sorted(roster.find(["d", "e"]).tolist()) == [2, 3]
    assert roster.find(["f"]).tolist() == [5]
    assert roster.next_slot == 6


def test_preview_writes_nothing() -> None:
    roster = Roster(dense=1)
    roster.enrol(["a"])
    assert roster.preview(["z", "a", 0, "y"]).tolist() == [3, 1, 0, 2]
    assert roster.everyone() == [0, "a"]


def test_numpy_integers_are_found() -> None:
    roster = Roster()
    roster.enrol([7])
    assert roster.find([np.int64(7)]).tolist() == [0]  # type: ignore[list-item]


def test_ids_have_one_order() -> None:
    mixed: list[ClientId] = ["b", 10, "a", 9, -1, "10"]
    assert sorted(mixed, key=id_order) == [-1, 9, 10, "10", "a", "b"]
