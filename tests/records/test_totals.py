"""Running sums of a run."""

from __future__ import annotations

from fedsteer.records.totals import Totals


def test_sums_and_the_peak() -> None:
    totals = Totals()
    totals.count(training=False, uploads=5, bytes_up=50, bytes_down=60, server_bytes=900)
    totals.count(training=True, uploads=2, bytes_up=20, bytes_down=30, server_bytes=100)
    assert totals.result(rounds=2, trained=1) == {
        "uploads": 7,
        "warm_up_uploads": 5,
        "bytes_up": 70,
        "bytes_down": 90,
        "server_bytes": 900,
        "rounds": 1,
        "warm_up_rounds": 1,
    }
