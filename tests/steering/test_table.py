"""The growing table."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsteer.steering.table import Table


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.lists(st.integers(0, 70), unique=True, max_size=6), st.integers(0, 99))),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_reads_what_was_written_and_fill_elsewhere(
    rows: int, writes: object, asked: object
) -> None:
    table, plain = Table.empty(rows, 2, fill=-1.0), {}
    for slots, value in writes:  # type: ignore[attr-defined]
        table[np.array(slots, np.int64)] = float(value)
        plain |= dict.fromkeys(slots, float(value))
    found = table[np.array(asked, np.int64)]
    assert found.tolist() == [[plain.get(slot, -1.0)] * 2 for slot in asked]  # type: ignore[attr-defined]


def test_reading_makes_no_room() -> None:
    table = Table.empty(2)
    assert table[np.array([0, 5])].tolist() == [0.0, 0.0]
    assert len(table.values) == 2


def test_growing_keeps_type_and_is_not_row_by_row() -> None:
    table = Table.empty(0, dtype="int64")
    sizes = set()
    for slot in range(1000):
        table[np.array([slot])] = slot
        sizes.add(len(table.values))
    assert table.values.dtype == np.int64 and len(sizes) < 10
    assert table[np.arange(1000)].tolist() == list(range(1000))


def test_a_read_is_a_copy() -> None:
    table = Table.empty(3)
    table[np.array([0, 1])][:] = 9.0
    assert not table.values.any()
