"""Updates that began from an old model are recognised, and honest ones are never taken for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsteer.flower import FedAvg, FedSteer
from fedsteer.flower.outdated import SAMPLE, SentModels
from fedsteer.records import Run
from tests.flower.fake import FakeGrid, arrays, drifting, reply_with, values

DIM = 40
INITIAL = {"w": np.zeros(DIM, np.float32)}


def reasons(folder: Path) -> list[tuple[int, str, str]]:
    rows = Run(folder).rows("clients")
    return [(row["round"], row["client"], row["reason"]) for row in rows if "reason" in row]


def forgetful(client: int, *, away: range) -> Any:
    """A client that is away for some rounds, and then trains the model it had before."""
    kept: dict[str, Any] = {}

    def answer(message: Message) -> Message | None:
        number = int(message.content["config"]["server-round"])
        if number < away.start:
            kept["w"] = values(message.content["arrays"])["w"]  # type: ignore[arg-type]
        if number in away:
            return None
        moved = kept["w"] + 0.1 * (np.cos(np.arange(DIM) + client) - kept["w"])
        return reply_with(message, arrays(w=moved.astype(np.float32)), 10, client)

    return answer


def test_a_client_that_returns_with_an_old_model_is_left_out(tmp_path: Path) -> None:
    others = {n: drifting(n, target=9.0) for n in (1, 7, 13, 19)}
    grid = FakeGrid(others | {8: forgetful(8, away=range(4, 26))})
    strategy = FedSteer(folder=str(tmp_path), step="fixed", fraction_evaluate=0.0)
    strategy.start(grid, arrays(**INITIAL), num_rounds=30)
    found = {(number, client) for number, client, said in reasons(tmp_path) if "began" in said}
    assert found == {(number, "client-8") for number in range(26, 31)}


@pytest.mark.parametrize("present", [1, 3])
def test_clients_that_reach_their_optimum_every_time_are_not(present: int, tmp_path: Path) -> None:
    """With one client in a round, the model is a client's own optimum again and again."""

    def solved(client: int) -> Any:
        def answer(message: Message) -> Message:
            goal = np.cos(np.arange(DIM) + client).astype(np.float32)
            return reply_with(message, arrays(w=goal), 10, client)

        return answer

    grid = FakeGrid({client: solved(client) for client in range(1, 7)})
    rule: dict[str, Any] = {"preset": "paper", "probabilities": 0.5}
    sampled = {"fraction_train": present / 6, "fraction_evaluate": 0.0}
    FedAvg(folder=str(tmp_path), **rule, **sampled).start(grid, arrays(**INITIAL), num_rounds=60)
    assert reasons(tmp_path) == []


def test_large_models_are_sampled() -> None:
    models = SentModels(dim=10 * SAMPLE)
    old, new = np.zeros(10 * SAMPLE, np.float32), np.ones(10 * SAMPLE, np.float32)
    assert len(models.places) == SAMPLE
    models.note(1, old)
    small = np.full(10 * SAMPLE, 0.01, np.float32)
    assert models.origin("a", small) is None
    models.note(2, new)
    assert models.origin("a", small) is None
    assert models.origin("a", new - (old - small)) == 1
    assert models.origin("stranger", new - (old - small)) is None  # nothing is known of it
    assert models.origin("a", np.full(10 * SAMPLE, np.nan, np.float32)) is None
