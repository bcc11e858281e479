"""Clients that fail in round after round are asked less often, and nobody suffers for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsteer.draws import generator
from fedsteer.flower import FedAvg, FedSteer
from fedsteer.records import Run, read_checkpoint, write_checkpoint
from fedsteer.records.names import CHECKPOINT
from tests.flower.drifting_clients import FILES
from tests.flower.fake import Answer, FakeGrid, arrays, drifting, failing, late, values

INITIAL = {"w": np.zeros(4, np.float32)}
NODES = range(1, 6)
ASKED = [1, 2, 4, 8, 16, 32, 64, 96]
"""The rounds in which a client that never answers is asked."""


class Killed(BaseException):
    """As if the process had ended."""


def bad(node: int, rounds: Collection[int], instead: Answer = late) -> Answer:
    """A client that answers, but not in these rounds."""
    honest = drifting(node)

    def answer(message: Message) -> Message | None:
        number = int(message.content["config"]["server-round"])
        return instead(message) if number in rounds else honest(message)

    return answer


def grid_with(answers: dict[int, Answer], nodes: Collection[int] = NODES) -> FakeGrid:
    return FakeGrid({node: drifting(node) for node in nodes} | answers)


def run(grid: FakeGrid, rounds: int, folder: Path | None = None, **options: Any) -> Any:
    options = {"back_off": True, "fraction_evaluate": 0.0} | options
    strategy = FedSteer(folder=None if folder is None else str(folder), **options)
    strategy.start(grid, arrays(**INITIAL), num_rounds=rounds, timeout=1.0)
    return strategy


def asked_of(grid: FakeGrid, node: int) -> list[int]:
    return [number for number, nodes in enumerate(grid.asked, start=1) if node in nodes]


@pytest.mark.parametrize("how", [late, failing])
def test_a_client_that_never_answers_is_asked_ever_less(how: Answer, tmp_path: Path) -> None:
    grid = grid_with({3: how})
    run(grid, 100, tmp_path)
    assert asked_of(grid, 3) == ASKED
    assert all(asked_of(grid, node) == list(range(1, 101)) for node in (1, 2, 4, 5))
    rows = Run(tmp_path).rows("clients")
    # It has never said its name.
    assert [row["round"] for row in rows if row["event"] == "failed"] == ASKED


def test_without_the_option_it_is_always_asked() -> None:
    grid = grid_with({3: late})
    run(grid, 10, back_off=False)
    assert asked_of(grid, 3) == list(range(1, 11))


def test_one_answer_and_it_begins_anew() -> None:
    grid = grid_with({3: bad(3, {1, 2, 4, 9, 10})})
    run(grid, 13)
    # It answers in round 8, misses 9 and 10, and is spared round 11.
    assert asked_of(grid, 3) == [1, 2, 4, 8, 9, 10, 12, 13]


def test_it_begins_anew_after_it_was_offline() -> None:
    grid = grid_with({3: late})

    def restart(count: int) -> None:
        grid.offline = {3} if count == 8 else set()  # from round 9 on, and back in round 11

    grid.before = restart
    run(grid, 14)
    assert asked_of(grid, 3) == [1, 2, 4, 8, 11, 12, 14]


def test_all_are_asked_if_nobody_else_is_left() -> None:
    grid = grid_with({}, nodes=[3])
    grid.answers[3] = late
    run(grid, 6)
    assert asked_of(grid, 3) == [1, 2, 3, 4, 5, 6]


def test_an_outage_of_all_counts_for_nobody() -> None:
    """Or a newcomer would be alone for a month."""
    outage = range(5, 31)
    grid = grid_with({node: bad(node, outage) for node in NODES})
    grid.answers[9] = bad(9, range(1, 100), failing)
    grid.offline = {9}

    def joins(count: int) -> None:
        grid.offline = set() if count >= 29 else {9}

    grid.before = joins
    run(grid, 33)
    assert all(asked_of(grid, node) == list(range(1, 34)) for node in NODES)


def test_small_samples_of_failing_clients_count() -> None:
    """A round that asks one client tells something of it."""
    grid = grid_with(dict.fromkeys((4, 5), late))
    run(grid, 60, fraction_train=0.2)
    assert all(len(nodes) == 1 for nodes in grid.asked)
    assert len(asked_of(grid, 4)) + len(asked_of(grid, 5)) < 60 / 4
    whole = grid_with(dict.fromkeys((4, 5), late))
    run(whole, 60, fraction_train=0.2, back_off=False)
    assert len(asked_of(whole, 4)) + len(asked_of(whole, 5)) > 60 / 4


def test_what_an_early_close_cut_off_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grid_with({2: failing})
    grid.seconds = {3: 50.0}
    monkeypatch.setattr("fedsteer.flower.asking.time", grid.clock)
    strategy = FedSteer(back_off=True, enough=0.5, fraction_evaluate=0.0)

    def evaluate(number: int, record: Any) -> None:
        grid.clock.now += 100.0  # node 3 has answered, too late

    strategy.start(grid, arrays(**INITIAL), num_rounds=8, evaluate_fn=evaluate)
    assert asked_of(grid, 3) == list(range(1, 9))
    assert asked_of(grid, 2) == [1, 2, 4, 8]


def test_it_is_not_asked_to_evaluate_either() -> None:
    grid = grid_with({3: bad(3, range(1, 9))})
    run(grid, 17, fraction_evaluate=1.0)
    evaluations = [number for number in range(1, 18) if 3 in grid.asked[2 * number - 1]]
    assert evaluations == [16, 17]  # it answered when it was asked in round 16


@pytest.mark.parametrize("sends", [3, 9, 10])
def test_a_resumed_run_asks_as_an_unbroken_one(sends: int, tmp_path: Path) -> None:
    def world() -> FakeGrid:
        return grid_with({3: bad(3, range(1, 12)), 4: bad(4, range(3, 12))})

    whole = world()
    run(whole, 20, tmp_path / "whole")
    broken, again = world(), world()

    def kill(count: int) -> None:
        if count == sends:
            raise Killed

    broken.before = kill
    with pytest.raises(Killed):
        run(broken, 20, tmp_path / "broken")
    run(again, 20, tmp_path / "broken")
    assert broken.asked + again.asked == whole.asked
    for name in FILES:
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    _, meta = read_checkpoint(tmp_path / "whole" / CHECKPOINT)
    assert json.loads(json.dumps(meta["run"]["back_off"])) == []  # all have answered


def test_a_checkpoint_from_before_it_is_resumed(tmp_path: Path) -> None:
    grid = grid_with({3: late})
    run(grid, 5, tmp_path)
    stored, meta = read_checkpoint(tmp_path / CHECKPOINT)
    assert meta["run"].pop("back_off") == [["node-3", 3, 8]]
    write_checkpoint(tmp_path / CHECKPOINT, stored, meta)
    run(grid, 7, tmp_path)
    assert asked_of(grid, 3) == [1, 2, 4, 6, 7]


def test_it_can_be_turned_off_at_a_restart(tmp_path: Path) -> None:
    grid = grid_with({3: late})
    run(grid, 5, tmp_path)
    run(grid, 7, tmp_path, back_off=False)
    assert asked_of(grid, 3) == [1, 2, 4, 6, 7]


def probabilities(folder: Path) -> dict[str, list[float]]:
    rows = [row for row in Run(folder).rows("clients") if row["event"] == "fresh"]
    return {
        name: [row["probability"] for row in rows if row["client"] == name]
        for name in {row["client"] for row in rows}
    }


def test_the_others_weigh_as_much_as_without_it(tmp_path: Path) -> None:
    """Whether a hung client was asked or not: for the estimates it did not come."""
    for name, on in (("with", True), ("without", False)):
        run(grid_with({3: bad(3, range(5, 100))}), 40, tmp_path / name, back_off=on)
    found, expected = probabilities(tmp_path / "with"), probabilities(tmp_path / "without")
    assert found == expected and len(found) == len(NODES)


def by_chance(node: int, share: float) -> Callable[[Message], Message | None]:
    """A client that fails in a share of the rounds, drawn anew in each."""
    draw = generator(7, "failures").random(1000)
    return bad(node, {number for number in range(1000) if draw[number] < share})


def test_a_client_that_fails_by_chance_counts_for_its_share(tmp_path: Path) -> None:
    """It comes less often than it would be there, and weighs so much more when it comes."""
    rounds = 800
    strategy = FedAvg(
        back_off=True, probabilities="visits", fraction_evaluate=0.0, folder=str(tmp_path)
    )
    grid = grid_with({3: by_chance(3, 0.5)})
    strategy.start(grid, arrays(**INITIAL), num_rounds=rounds, timeout=1.0)
    weights = {name: 0.0 for name in probabilities(tmp_path)}
    for row in Run(tmp_path).rows("clients"):
        weights[row["client"]] = weights.get(row["client"], 0.0) + row.get("weight", 0.0) / rounds
    came = len(probabilities(tmp_path)["client-3"]) / rounds
    assert came < 0.35  # it would answer half of the time
    points = {f"client-{node}": 10.0 + node for node in NODES}
    for name, size in points.items():
        assert weights[name] == pytest.approx(size / sum(points.values()), rel=0.1)


def test_the_probability_of_a_sample_is_that_among_those_who_may_be_asked(tmp_path: Path) -> None:
    grid = grid_with({1: late}, nodes=range(1, 8))
    run(grid, 7, tmp_path, fraction_train=0.5, probabilities="sampling", min_train_nodes=3)
    (row,) = Run(tmp_path).rounds[-1:]
    shares = {r["probability"] for r in Run(tmp_path).rows("clients") if r["event"] == "fresh"}
    assert row["asked"] == 3 and shares <= {3 / 6, round(4 / 7, 9), round(3 / 7, 9)}
    assert 3 / 6 in shares


def test_models_are_those_of_a_run_that_never_asked_it() -> None:
    """Its silence and its absence are the same to the rule."""
    hung, absent = grid_with({3: late}), grid_with({})
    absent.offline = {3}
    found, expected = run(hung, 12), run(absent, 12)
    np.testing.assert_array_equal(
        values(found.run.model.record())["w"], values(expected.run.model.record())["w"]
    )
