"""A round may be closed before the slowest client has answered."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp.strategy import Strategy
from flwr.superlink.grid import inmemory_grid

from fedsteer.flower import FedSteer
from fedsteer.flower.asking import is_enough, send_and_wait
from fedsteer.flower.replies import CUT_OFF
from fedsteer.records import Run
from tests.flower.fake import FakeGrid, arrays, drifting, failing, late, values

INITIAL = {"w": np.zeros(5, np.float32)}
NEVER = 1e9


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> FakeGrid:
    """Node 1 answers after one second, node 2 after two, ..., node 10 after ten."""
    seconds = {node: float(node) for node in range(1, 11)}
    grid = FakeGrid({node: drifting(node) for node in seconds}, seconds=seconds)
    monkeypatch.setattr("fedsteer.flower.asking.time", grid.clock)
    monkeypatch.setattr(inmemory_grid, "time", grid.clock)
    return grid


def messages(grid: FakeGrid) -> list[Message]:
    content = RecordDict({"arrays": arrays(**INITIAL)})
    return [Message(content, node, MessageType.TRAIN) for node in grid.answers]


def answered(replies: Any) -> list[int]:
    return sorted(reply.metadata.src_node_id for reply in replies if not reply.has_error())


@pytest.mark.parametrize(("enough", "nodes"), [(0.7, 7), (0.05, 1), (0.61, 7), (0.999, 10)])
def test_a_round_is_closed_when_enough_have_answered(
    enough: float, nodes: int, grid: FakeGrid
) -> None:
    replies = send_and_wait(grid, messages(grid), timeout=100.0, enough=enough)
    assert answered(replies) == list(range(1, nodes + 1))
    assert nodes <= grid.clock.now < 1.2 * nodes
    assert grid.timeouts == []


def test_ten_clients_take_seven_for_seven_tenths() -> None:
    assert is_enough(7, 10, 0.7) and not is_enough(6, 10, 0.7)
    assert is_enough(1, 10, 1e-12) and not is_enough(0, 10, 1e-12)


def test_an_error_is_no_answer(grid: FakeGrid) -> None:
    grid.answers |= {1: failing, 2: failing}
    replies = send_and_wait(grid, messages(grid), timeout=100.0, enough=0.5)
    assert answered(replies) == [3, 4, 5, 6, 7] and len(replies) == 7
    assert grid.clock.now < 8.0


def test_a_round_ends_when_all_have_replied_even_if_it_is_not_enough(grid: FakeGrid) -> None:
    grid.answers |= dict.fromkeys(range(1, 9), failing)
    assert answered(send_and_wait(grid, messages(grid), timeout=None, enough=0.5)) == [9, 10]
    assert grid.clock.now < 12.0


@pytest.mark.parametrize("timeout", [0.0, 0.05, 1.5, 4.95, 9.9, 50.0, None])
def test_the_time_limit_is_that_of_the_grid(timeout: float | None, grid: FakeGrid) -> None:
    """Nobody is quick enough to close the round, so it must end as Flower's own would."""
    if timeout is not None:
        grid.seconds[10] = NEVER
    replies = send_and_wait(grid, messages(grid), timeout=timeout, enough=0.999)
    took = grid.clock.now
    if timeout == 50.0 or timeout == 0.0:
        assert took == timeout
    grid.clock.now, grid.underway = 0.0, {}
    theirs = inmemory_grid.InMemoryGrid.send_and_receive(grid, messages(grid), timeout=timeout)  # type: ignore[arg-type]
    assert answered(replies) == answered(theirs)
    assert took <= grid.clock.now or timeout is None


def test_without_an_early_close_the_grid_waits_itself(grid: FakeGrid) -> None:
    grid.seconds = {}
    assert len(send_and_wait(grid, messages(grid), timeout=3.0)) == 10
    assert grid.timeouts == [3.0]
    assert send_and_wait(grid, [], timeout=3.0) == send_and_wait(grid, [], timeout=3.0, enough=0.5)


def test_a_message_that_was_not_sent_is_not_waited_for(
    grid: FakeGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SuperLink gives None instead of an id."""
    push = grid.push_messages
    monkeypatch.setattr(grid, "push_messages", lambda all: [*[*push(all)][:9], None])
    grid.answers[1] = failing
    assert len(send_and_wait(grid, messages(grid), timeout=None, enough=0.95)) == 9


def test_late_clients_are_left_out_with_a_reason(
    grid: FakeGrid, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    strategy = FedSteer(enough=0.8, folder=str(tmp_path))
    strategy.start(grid, arrays(**INITIAL), num_rounds=1, timeout=100.0)
    failed = [r for r in Run(tmp_path).rows("clients") if r["event"] == "failed"]
    assert {row["reason"] for row in failed} == {CUT_OFF}
    assert len(failed) == 2 and Run(tmp_path).rounds[0]["fresh"] == 8
    assert "closed after 8 of 10 answers" in caplog.text
    # Nodes 9 and 10 were still at work when the others were asked to evaluate.
    assert grid.asked == [[*range(1, 11)], [*range(1, 9)]]
    assert "closed after 7 of 8 answers" in caplog.text and 15.0 <= grid.clock.now < 18.0
    assert CUT_OFF not in caplog.text  # it is what was asked for, and no warning


def test_who_is_still_at_work_is_not_asked(grid: FakeGrid) -> None:
    strategy = FedSteer(enough=0.8, fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=4, timeout=100.0)
    everyone = set(range(1, 11))
    missing = [everyone - set(nodes) for nodes in grid.asked]
    # Closed with eight of ten after 8 s, with seven of eight, with eight of nine.
    assert missing == [set(), {9, 10}, {8}, {10}]


def test_a_node_is_asked_again_when_its_message_has_expired(grid: FakeGrid) -> None:
    """Then the SuperLink answers for it."""
    grid.seconds = {10: 20.0} | {node: 4.0 for node in range(1, 10)}
    grid.answers[10] = failing
    strategy = FedSteer(enough=0.9, fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=7, timeout=100.0)
    assert [number for number, nodes in enumerate(grid.asked, 1) if 10 in nodes] == [1, 6]


def test_all_are_asked_if_all_are_at_work(grid: FakeGrid) -> None:
    grid.answers = {9: drifting(9), 10: drifting(10)}
    strategy = FedSteer(enough=0.5, fraction_evaluate=0.0)

    def gone(count: int) -> None:
        grid.offline = {9}  # before the second round, only the one who is at work is there

    grid.before = gone
    strategy.start(grid, arrays(**INITIAL), num_rounds=2, timeout=100.0)
    assert grid.asked == [[9, 10], [10]]


def test_a_round_that_is_not_closed_early_says_so(grid: FakeGrid, tmp_path: Path) -> None:
    grid.answers |= dict.fromkeys((8, 9, 10), late)
    strategy = FedSteer(enough=0.8, folder=str(tmp_path), fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=1, timeout=30.0)
    failed = [r for r in Run(tmp_path).rows("clients") if r["event"] == "failed"]
    assert {row["reason"] for row in failed} == {"did not answer in time"} and len(failed) == 3
    assert grid.clock.now == 30.0


def test_the_arrays_are_those_of_a_round_without_the_late(grid: FakeGrid) -> None:
    early = FedSteer(enough=0.8).start(grid, arrays(**INITIAL), num_rounds=1)
    quick = FakeGrid({node: late if node > 8 else drifting(node) for node in grid.answers})
    whole = FedSteer().start(quick, arrays(**INITIAL), num_rounds=1)
    np.testing.assert_array_equal(values(early.arrays)["w"], values(whole.arrays)["w"])


def test_flowers_own_loop_waits_for_all(grid: FakeGrid, tmp_path: Path) -> None:
    grid.seconds = {10: NEVER}
    strategy = FedSteer(enough=0.5, folder=str(tmp_path))
    Strategy.start(strategy, grid, arrays(**INITIAL), num_rounds=1)
    (failed,) = [r for r in Run(tmp_path).rows("clients") if r["event"] == "failed"]
    assert failed["reason"] == "did not answer in time"
    strategy.run.store.close()
