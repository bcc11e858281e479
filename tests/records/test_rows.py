"""Running totals of a run."""

from __future__ import annotations

from fedsteer import Requests
from fedsteer.records.rows import Totals


def test_sums_and_the_peak() -> None:
    totals = Totals()
    warm_up = {"uploads": 5, "bytes_up": 50, "bytes_down": 60, "server_bytes": 900}
    totals.count(Requests(collect=(1, 2)), training_round=0, **warm_up)
    columns = totals.count(
        Requests(train=(1, 2), refresh=(3,)),
        training_round=1,
        uploads=2,
        bytes_up=20,
        bytes_down=30,
        server_bytes=100,
    )
    assert columns == {
        "training_round": 1,
        "refreshed": 1,
        "collected": 0,
        "bytes_up": 20,
        "bytes_down": 30,
        "server_bytes": 100,
    }
    assert totals.result(rounds=2, trained=1) == {
        "uploads": 7,
        "warm_up_uploads": 5,
        "bytes_up": 70,
        "bytes_down": 90,
        "server_bytes": 900,
        "rounds": 1,
        "warm_up_rounds": 1,
    }
