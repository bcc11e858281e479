"""If the server asks a fraction of the online nodes, that fraction is the probability."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsteer.flower import FedAvg, FedSteer, StrategyOptions
from fedsteer.flower.asking import sample
from fedsteer.records import Run
from tests.flower.fake import FakeGrid, arrays, drifting

INITIAL = {"w": np.zeros(5, np.float32), "n": np.array(0)}


def test_a_sample_is_a_function_of_the_seed_and_the_round() -> None:
    clients = {node: f"client-{node}" for node in range(100)}

    def draw(
        clients: dict[int, str] = clients,
        purpose: str = "train",
        fraction: float = 0.1,
        least: int = 1,
        seed: int = 7,
        number: int = 3,
    ) -> list[int]:
        wanted: Any = {f"fraction_{purpose}": fraction, f"min_{purpose}_nodes": least}
        return sample(clients, StrategyOptions(**wanted), purpose, seed=seed, number=number)

    assert len(draw()) == 10 and draw() == draw(dict(reversed(clients.items())))
    assert draw() != draw(number=4) and draw() != draw(seed=8)
    assert draw() != draw(purpose="evaluate")
    assert len(draw(fraction=0.01, least=5)) == 5
    assert draw(fraction=0.0, least=5) == [] and draw({}, fraction=0.5, least=5) == []


def test_a_fraction_is_asked_and_its_probability_is_used(tmp_path: Path) -> None:
    grid = FakeGrid({c: drifting(c) for c in range(1, 11)})
    strategy = FedSteer(
        fraction_train=0.3, probabilities="sampling", fraction_evaluate=0.0, folder=str(tmp_path)
    )
    strategy.start(grid, arrays(**INITIAL), num_rounds=3)
    assert [len(nodes) for nodes in grid.asked] == [3, 3, 3]
    assert {row["probability"] for row in Run(tmp_path).rows("clients")} == {0.3}
    assert Run(tmp_path).manifest["rule"]["options"]["probabilities"] == "sampling"


@pytest.mark.parametrize(
    ("nodes", "fraction", "least", "asked"),
    [(14, 0.1, 1, 1), (10, 0.05, 2, 2), (4, 0.01, 1, 1), (7, 0.5, 1, 4), (3, 0.4, 9, 3)],
)
def test_weights_of_a_sample_sum_to_one_on_average(
    nodes: int, fraction: float, least: int, asked: int
) -> None:
    points = {c: 10 + c for c in range(nodes)}
    strategy = FedAvg(
        fraction_train=fraction,
        min_train_nodes=least,
        probabilities="sampling",
        population=points,
        fraction_evaluate=0.0,
    )
    grid = FakeGrid({100 + c: drifting(c) for c in range(nodes)})
    found = strategy.start(grid, arrays(**INITIAL), num_rounds=300).train_metrics_clientapp
    assert {len(sent) for sent in grid.asked} == {asked}
    sums = [float(found[number]["fedsteer-weight-sum"]) for number in found]  # type: ignore[arg-type]
    # The standard error of a mean over 300 samples of `asked` among clients of unequal size.
    sizes = np.array(list(points.values())) / np.mean(list(points.values()))
    error = np.sqrt(sizes.var() / asked / 300)
    assert np.mean(sums) == pytest.approx(1.0, abs=3 * error + 1e-9)


def test_the_share_is_that_of_the_online_nodes(tmp_path: Path) -> None:
    grid = FakeGrid({c: drifting(c) for c in range(1, 11)})
    grid.before = lambda sends: grid.offline.update(range(1, 1 + 3 * (sends + 1)))
    strategy = FedSteer(
        fraction_train=0.5, probabilities="sampling", fraction_evaluate=0.0, folder=str(tmp_path)
    )
    strategy.start(grid, arrays(**INITIAL), num_rounds=3)
    found = {row["round"]: row["probability"] for row in Run(tmp_path).rows("clients")}
    assert found == {1: pytest.approx(5 / 10), 2: pytest.approx(4 / 7), 3: pytest.approx(2 / 4)}
