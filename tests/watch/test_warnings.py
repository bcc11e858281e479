"""What an operator should hear of, once."""

from __future__ import annotations

from typing import Any

import pytest

from fedsteer.watch.warnings import MOST, Warned, Warnings


def test_the_same_again_counts_once_and_the_latest_come_first() -> None:
    warnings = Warnings()
    for moment, client in ((1, "a"), (2, "b"), (4, "a")):
        reason = "did not answer in time"
        row = {"round": moment, "client": client, "event": "failed", "reason": reason}
        warnings.note(row)
    warnings.note({"round": 3, "phase": "train", "fresh": 0})
    assert warnings.latest() == [
        Warned(text="did not answer in time", round=4, client="a", times=3),
        Warned(text="no fresh update in the round", round=3),
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"phase": "train", "fresh": 3, "trust": 0.4}, "far fewer clients come than before"),
        ({"client": 0, "event": "dropped", "reason": "not finite"}, "was dropped: not finite"),
        ({"client": 0, "event": "left", "reason": "silent for 99 rounds"}, "counts as gone"),
        ({"client": 0, "event": "failed"}, "no reason given"),
        ({"client": 0, "event": "fresh", "update_factor": 0.001}, "an update far too long"),
        ({"client": 0, "event": "fresh", "size": 10, "claimed_size": 21}, "data points"),
        ({"client": 0, "event": "fresh", "size": 10, "claimed_size": 4}, "data points"),
    ],
)
def test_what_is_worth_a_warning(row: dict[str, Any], words: str) -> None:
    warnings = Warnings()
    warnings.note({"round": 1} | row)
    (found,) = warnings.latest()
    assert words in found.text


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"phase": "warm-up", "fresh": 0, "trust": 1.0},
        {"phase": "train", "fresh": 1, "trust": 1.0},
        {"client": 0, "event": "fresh", "update_factor": 0.2, "size": 10, "claimed_size": 15},
    ],
)
def test_what_is_not(row: dict[str, Any]) -> None:
    warnings = Warnings()
    warnings.note({"round": 1} | row)
    assert warnings.latest() == []


def test_old_ones_are_forgotten() -> None:
    warnings = Warnings()
    for moment in range(MOST + 5):
        reason = f"reason {moment}"
        row = {"round": moment, "client": 0, "event": "failed", "reason": reason}
        warnings.note(row)
    assert [one.round for one in warnings.latest()] == list(range(MOST + 4, 4, -1))
