"""The round loop: every rule runs, meets the same draws, and leaves the same kind of rows."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsteer.errors import ConfigurationError, RoundRefused
from fedsteer.participation import PROCESSES
from fedsteer.rules import RULES
from fedsteer.simulate.cells import plan_cells
from fedsteer.simulate.experiment import Model
from fedsteer.simulate.loop import RoundResult, Simulation
from fedsteer.training import evaluate
from tests.simulate.small import simulation, small
from tests.simulate.test_world import participations

VARIANTS: dict[str, dict[str, Any]] = {
    "refresh all": {"rule": "fedsteer", "select": "online", "refresh_all_every": 2},
    "reselect": {"rule": "fedsteer", "select": "online", "reselect_every": 2},
    "random": {"rule": "fedsteer", "select": "random"},
    "chosen": {"rule": "fedsteer", "core_set": [1, 4, 7]},
    "frequent": {"rule": "fedsteer", "select": "frequent", "frequencies": {"1": 0.9, "2": 0.8}},
    "two cycles": {"rule": "fedsteer", "cycles": 2},
    "keeps its model": {"rule": "fedsteer", "reinitialise": False},
    "clusters": {"rule": "cluster_fedvarp", "clusters": {str(c): c % 3 for c in range(12)}},
    "visits": {"rule": "fedvarp", "probabilities": "visits"},
    "bounded": {"rule": "fedavg", "norm_bound": 0.1},
}
ENTRIES = [*RULES, *(f"{name}:practical" for name in RULES), "full", *VARIANTS]
every_entry = pytest.mark.parametrize("entry", ENTRIES)

ALWAYS = {
    "round",
    "phase",
    "training_round",
    "active",
    "fresh",
    "refreshed",
    "collected",
    "dropped",
    "bytes_up",
    "bytes_down",
    "delta_norm",
    "bound_factor",
    "step_factor",
    "trust",
    "columns",
    "weight_sum",
    "server_bytes",
}
SOMETIMES = {"alignment", "condition", "train_loss", "variance"}
EVALUATED = {
    "accuracy",
    "loss",
    "class_accuracy",
    "group_accuracy",
    "client_accuracy",
    "held_out_accuracy",
}
OF_A_CLIENT = {
    "round",
    "client",
    "event",
    "weight",
    "probability",
    "norm",
    "relative_error",
    "refreshed_error",
    "cosine",
    "staleness",
    "loss",
    "steps",
}


def with_variants(settings: dict[str, Any] | None = None) -> Any:
    return small({f"variants.{name}": table for name, table in VARIANTS.items()} | (settings or {}))


def played(entry: str, **settings: Any) -> tuple[Simulation, list[RoundResult]]:
    made = simulation(with_variants({k.replace("__", "."): v for k, v in settings.items()}), entry)
    return made, list(made.rounds())


def assert_rows(made: Simulation, results: list[RoundResult]) -> None:
    for number, result in enumerate(results, start=1):
        row = result.row
        assert row["round"] == number == result.timing["round"]
        assert row.keys() >= ALWAYS and row.keys() <= ALWAYS | SOMETIMES | EVALUATED
        numbers = [v for k, v in row.items() if isinstance(v, float) and k not in SOMETIMES]
        assert all(math.isfinite(value) for value in numbers), row
        assert row["active"] == row["fresh"] + row["refreshed"]
        assert row["collected"] == (row["active"] if row["phase"] == "warm-up" else 0)
        assert row["active"] + row["dropped"] == len(result.clients)
        for client in result.clients:
            assert client.keys() == OF_A_CLIENT
            assert math.isfinite(client["weight"]) and 0 < client["probability"] <= 1
            assert client["norm"] > 0 and client["steps"] >= 1 and math.isfinite(client["loss"])
    training = [h.row for h in results if h.row["phase"] == "train"]
    assert [row["training_round"] for row in training] == list(range(1, 7))
    assert ["accuracy" in row for row in training] == [False, True] * 3
    assert torch.isfinite(made.model).all()


@every_entry
def test_every_rule_runs(entry: str) -> None:
    made, results = played(entry)
    assert_rows(made, results)
    result = made.result()
    assert result["rounds"] == 6 and result["warm_up_rounds"] == len(results) - 6
    assert result["uploads"] == sum(h.row["active"] for h in results)
    assert result["warm_up_uploads"] == sum(h.row["collected"] for h in results)
    assert result["bytes_up"] == 4 * made.world.network.dim * result["uploads"]
    assert result["accuracy"] == results[-1].row["accuracy"]
    assert any(h.row["delta_norm"] > 0 for h in results)


@pytest.mark.parametrize("entry", [*RULES, "full", "refresh all", "reselect", "two cycles"])
def test_every_rule_runs_on_estimated_probabilities(entry: str) -> None:
    made, results = played(entry, participation__reported="estimated")
    assert_rows(made, results)


@every_entry
def test_every_rule_meets_the_same_training_rounds(entry: str) -> None:
    _, plain = played("fedavg")
    made, results = played(entry)
    training = [h for h in results if h.row["phase"] == "train"]
    for ours, theirs in zip(training, plain, strict=True):
        here = {c["client"] for c in ours.clients if c["event"] == "fresh"}
        there = {c["client"] for c in theirs.clients}
        assert here == (set(range(12)) if entry == "full" else there)
    assert torch.equal(made.initial, simulation(with_variants()).initial)


def test_the_first_round_trains_the_same_updates_whatever_came_before() -> None:
    _, plain = played("fedavg")
    _, steered = played("fedsteer")
    first = next(h for h in steered if h.row["phase"] == "train")
    assert first.row["round"] > 1
    ours = {c["client"]: (c["loss"], c["norm"]) for c in first.clients}
    theirs = {c["client"]: (c["loss"], c["norm"]) for c in plain[0].clients}
    assert ours == theirs


@pytest.mark.parametrize("entry", ["fedsteer", "cluster_fedvarp", "two cycles"])
def test_the_model_does_not_move_in_a_warm_up_and_restarts_after_it(entry: str) -> None:
    made = simulation(with_variants(), entry)
    cycles = made.rule.options.cycles  # type: ignore[attr-defined]
    answered: list[int] = []
    moves = 0
    while made.rule.phase(made.state) == "warm-up":
        before = made.model.clone()
        result = made.round()
        assert result.row["phase"] == "warm-up" and result.row["training_round"] == 0
        assert all(c["event"] == "collect" for c in result.clients)
        assert not made.watched and "accuracy" not in result.row
        answered += [c["client"] for c in result.clients]
        if sorted(answered) == list(range(12)):
            moves += 1
            answered = []
            assert moves == cycles or not torch.equal(made.model, before)
        else:
            assert torch.equal(made.model, before)
    assert moves == cycles and not answered, "every client is asked once a cycle"
    assert torch.equal(made.model, made.initial)
    assert made.trained == 0


def test_a_rule_can_keep_the_model_of_its_warm_up() -> None:
    made = simulation(with_variants(), "keeps its model")
    while made.rule.phase(made.state) == "warm-up":
        made.round()
    assert not torch.equal(made.model, made.initial)


@pytest.mark.parametrize("method", ["sgd", "momentum", "adam", "yogi"])
@pytest.mark.parametrize("entry", ["fedavg", "fedsteer:practical", "fedawe"])
def test_server_optimisers(method: str, entry: str) -> None:
    made, results = played(entry, server__method=method, server__rate=0.05)
    assert_rows(made, results)
    if entry == "fedawe":  # it moves the model itself
        plain, _ = played(entry)
        assert torch.equal(plain.model, made.model)


def test_sgd_moves_the_model_by_rate_times_delta() -> None:
    made = simulation(small({"server.rate": 0.25}), "fedavg")
    before = made.model.clone()
    norm = made.round().row["delta_norm"]
    assert float((made.model - before).norm()) == pytest.approx(0.25 * norm, rel=1e-5)


@pytest.mark.parametrize("kind", PROCESSES)
@pytest.mark.parametrize("entry", ["fedsteer", "fedsteer:practical", "mifa"])
def test_every_kind_of_participation(kind: str, entry: str, tmp_path: Path) -> None:
    made, results = played(
        entry, participation__kind=kind, **_with_bars(participations(tmp_path).get(kind, {}))
    )
    assert_rows(made, results)


def _with_bars(settings: dict[str, Any]) -> dict[str, Any]:
    return {key.replace(".", "__"): value for key, value in settings.items()}


def test_a_client_that_never_comes_is_named_before_the_warm_up(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "".join(f"{client},0,9\n" for client in range(12) if client != 5)
    path.write_text("client,start,end\n" + rows)
    settings = {"participation.kind": "trace", "participation.trace": str(path)}
    with pytest.raises(ConfigurationError, match="client 5 never takes part"):
        simulation(small(settings), "fedsteer")
    assert len(list(simulation(small(settings), "fedsteer:practical").rounds())) == 6
    with pytest.raises(ConfigurationError, match=r"warm-up of fedsteer .*\.select=online"):
        plan_cells(small(settings), ["fedavg", "fedsteer"], tmp_path)  # before anything has run
    assert plan_cells(small(settings), ["fedavg", "fedsteer:practical"], tmp_path)


def test_a_client_that_never_comes_by_itself_can_be_asked_to_refresh(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = "".join(f"{client},0,9\n" for client in range(12) if client != 5)
    path.write_text("client,start,end\n" + rows)
    settings = {"participation.kind": "trace", "participation.trace": str(path)}
    settings |= {"options.fedsteer": {"core_set": [0, 1], "refresh_all_every": 1}}
    results = list(simulation(small(settings), "fedsteer").rounds())
    assert all(
        {"client": 5, "event": "refresh"}.items() <= row.items()
        for result in results
        for row in result.clients
        if row["client"] == 5
    )
    assert any(row["client"] == 5 for result in results for row in result.clients)


def test_the_records_tell_of_refreshes() -> None:
    _, results = played("refresh all")
    for result in results:
        row, events = result.row, [c["event"] for c in result.clients]
        if row["training_round"] % 2 == 0:
            assert row["active"] == 12 and row["refreshed"] == events.count("refresh") > 0
        else:
            assert row["refreshed"] == 0


def test_watched_clients_have_coordinates_in_every_training_round() -> None:
    made, _ = played("fedsteer", run__watch=[1, 5])
    assert made.watch == [1, 5]
    assert np.stack(made.watched).shape == (6, 2, 3)
    assert not played("fedavg")[0].watched


def test_the_evaluation_of_a_row_is_that_of_the_model() -> None:
    made, results = played("fedvarp")
    world = made.world
    found = evaluate(world.network, made.model, world.test_images, world.test_labels, 4)
    row = results[-1].row
    assert row["accuracy"] == found.accuracy and row["loss"] == found.loss
    assert row["class_accuracy"] == found.class_accuracy.tolist()
    assert row["group_accuracy"]["rare"] == np.mean(row["class_accuracy"][2:])
    own = world.partition.holds / world.sizes[:, None] @ found.class_accuracy
    assert row["client_accuracy"]["min"] == pytest.approx(own.min())
    assert row["client_accuracy"]["mean"] == pytest.approx(own.mean())


@pytest.mark.parametrize("entry", ["fedavg", "fedsteer"])
def test_after_a_swap_clients_train_and_are_judged_on_other_labels(entry: str) -> None:
    plain, swapped = (
        simulation(small(), entry),
        simulation(small({"partition.swap_after": 2}), entry),
    )
    world, seen = swapped.world, []
    while not swapped.finished:
        asked = swapped.ask()
        held = world.partition.at(swapped.trained + 1 if asked.training else 0)
        assert all(order.points is held.indices[order.client] for order in asked.orders)
        result = swapped.absorb(asked, world.engine.train_orders(asked.orders))
        seen.append(result)
        if swapped.trained <= 2:
            assert repr(result.row) == repr(plain.round().row)
    last = seen[-1].row
    assert last["group_accuracy"]["rare"] == np.mean(last["class_accuracy"][:2])
    own = world.partition.at(6).holds / world.sizes[:, None] @ last["class_accuracy"]
    assert last["client_accuracy"]["mean"] == pytest.approx(own.mean())


def test_bytes_of_control_variates_are_counted() -> None:
    made, results = played("scaffold")
    size = 4 * made.world.network.dim
    first, last = results[0].row, results[-1].row
    assert first["bytes_down"] == first["active"] * size, "all controls are still zero"
    assert last["bytes_down"] > 2 * last["active"] * size


@pytest.mark.parametrize("entry", [*RULES, "two cycles", "reselect"])
@pytest.mark.parametrize("after", [1, 4])
def test_a_packed_simulation_resumes_exactly(entry: str, after: int) -> None:
    whole, results = played(entry, server__method="adam", server__rate=0.05)
    experiment = with_variants({"server.method": "adam", "server.rate": 0.05})
    first = simulation(experiment, entry)
    for _ in range(after):
        first.round()
    arrays, meta = first.pack()
    resumed = simulation(experiment, entry)
    resumed.restore(arrays, meta)
    rest = list(resumed.rounds())
    assert torch.equal(resumed.model, whole.model)
    assert [repr(h.row) for h in rest] == [repr(h.row) for h in results[after:]]
    assert [repr(h.clients) for h in rest] == [repr(h.clients) for h in results[after:]]
    assert resumed.result() == whole.result()


def test_a_rate_that_explodes_is_refused_with_names() -> None:
    made = simulation(small({"training.rate": 1e30}), "fedavg")
    with pytest.raises(RoundRefused, match="sent a non-finite update"):
        list(made.rounds())


def test_the_practical_preset_drops_clients_that_explode() -> None:
    made, results = played("fedavg:practical", training__rate=1e30)
    assert all(h.row["active"] == 0 for h in results)
    first = results[0]
    assert first.row["dropped"] == len(first.clients) > 0
    assert {c["event"] for c in first.clients} == {"dropped"}
    assert torch.equal(made.model, made.initial)


@pytest.mark.parametrize("entry", ["fedavg", "fedsteer:practical", "fedvarp"])
def test_ten_thousand_clients(entry: str) -> None:
    settings: dict[str, Any] = {
        "partition.clients": 10_000,
        "partition.replace": True,
        "participation.weak": 0.005,
        "participation.powerful": 0.015,
        "run.rounds": 3,
        "run.watch": [5, 9_999],
        "run.evaluate_every": 3,
    }
    made = simulation(small(settings), entry)
    results = list(made.rounds())
    assert all(50 < h.row["active"] < 150 for h in results)
    assert math.isfinite(results[-1].row["accuracy"])
    if entry.startswith("fedsteer"):
        an_update_each = 4 * 10_000 * made.world.network.dim
        assert results[-1].row["server_bytes"] < an_update_each / 3


def test_a_network_of_the_user() -> None:
    own = Model("tests.training.own_networks:gated", {"width": 2})
    made = simulation(replace(small({"run.threads": 1, "run.rounds": 2}), model=own))
    assert made.world.engine.name == "sequential"
    assert len(list(made.rounds())) == 2


def test_a_core_set_of_strangers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="core_set names 99; clients are 0 to"):
        simulation(small({"options.fedsteer.core_set": [1, 99]}), "fedsteer")


def test_an_averaged_model_is_evaluated_beside_the_last_one() -> None:
    alone, both = simulation(small()), simulation(small({"server.average": 3}))
    rows = [list(run.rounds()) for run in (alone, both)]
    assert torch.equal(alone.model, both.model)
    averaged = both.averaged
    assert averaged is not None and not torch.equal(averaged, both.model)
    world, last = both.world, rows[1][-1].row
    found = evaluate(
        world.network, averaged, world.test_images, world.test_labels, world.dataset.classes
    )
    assert (last["average_accuracy"], last["average_loss"]) == (found.accuracy, found.loss)
    assert last["accuracy"] == rows[0][-1].row["accuracy"]
    assert alone.averaged is None and "average_accuracy" not in rows[0][-1].row
