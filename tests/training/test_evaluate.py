"""Accuracy and loss against a loop over points."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedsteer.errors import TrainingFailed
from fedsteer.training import evaluate, make_network
from fedsteer.training.evaluate import MOST, Evaluation


@pytest.mark.parametrize("count", [1, 50, MOST, MOST + 1])
def test_against_a_loop_over_points(count: int) -> None:
    network = make_network("mlp", (1, 3, 3), 4, {"hidden": [6]})
    model = 3 * network.initial(0)
    draw = torch.Generator().manual_seed(count)
    images = torch.randn((count, 1, 3, 3), generator=draw)
    labels = torch.randint(0, 3, (count,), generator=draw)  # class 3 has no test points
    found = evaluate(network, model, images, labels, 4)

    right, seen, loss = [0] * 4, [0] * 4, 0.0
    outputs = network.logits(model, images).double().tolist()
    for output, label in zip(outputs, labels.tolist(), strict=True):
        largest = max(output)
        loss += math.log(sum(math.exp(o - largest) for o in output)) + largest - output[label]
        right[label] += output.index(largest) == label
        seen[label] += 1
    assert found.accuracy == pytest.approx(sum(right) / count)
    assert found.loss == pytest.approx(loss / count, rel=1e-4)
    expected = [r / s if s else math.nan for r, s in zip(right, seen, strict=True)]
    np.testing.assert_allclose(found.class_accuracy, expected)


def test_groups_and_clients_by_hand() -> None:
    found = Evaluation(accuracy=0.5, loss=1.0, class_accuracy=np.array([1.0, 0.5, 0.0, np.nan]))
    groups = found.group_accuracy({"common": [0, 1], "rare": [2, 3], "empty": [3]})
    assert groups["common"] == 0.75 and groups["rare"] == 0.0 and math.isnan(groups["empty"])

    holds = np.array([[4, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 9, 0]], float)
    own = [1.0, 0.75, 0.25, 0.0]
    assert found.client_accuracy(holds) == pytest.approx(
        {"mean": 0.5, "std": np.std(own), "p10": np.percentile(own, 10), "min": 0.0}
    )


def test_dropout_rests() -> None:
    network = make_network("tests.training.own_networks:forgetful", (1, 3, 3), 4, {})
    images = torch.rand((60, 1, 3, 3), generator=torch.Generator().manual_seed(0))
    labels = torch.arange(60) % 4
    found = [evaluate(network, network.initial(0), images, labels, 4).loss for _ in range(2)]
    assert found[0] == found[1]
    assert network.module.training


def test_a_network_made_in_its_evaluation_mode_trains_in_the_other() -> None:
    network = make_network("tests.training.own_networks:resting", (1, 3, 3), 4, {})
    assert all(module.training for module in network.module.modules())


@pytest.mark.parametrize("name", ["other_at_rest", "broken_at_rest"])
def test_a_network_that_breaks_at_rest_is_told_in_one_line(name: str) -> None:
    network = make_network(f"tests.training.own_networks:{name}", (1, 3, 3), 4, {})
    with pytest.raises(TrainingFailed, match="in evaluation") as error:
        evaluate(network, network.initial(0), torch.rand((5, 1, 3, 3)), torch.zeros(5).long(), 4)
    assert "\n" not in str(error.value) and network.module.training


def test_the_last_points_are_not_alone() -> None:
    """A network that takes statistics of what it sees at once."""
    network = make_network("tests.training.own_networks:normalised", (1, 3, 3), 4, {})
    images = torch.rand((MOST + 1, 1, 3, 3), generator=torch.Generator().manual_seed(0))
    assert evaluate(network, network.initial(0), images, torch.arange(MOST + 1) % 4, 4).loss > 0


def test_classes_without_test_points_count_for_no_client() -> None:
    found = Evaluation(accuracy=1.0, loss=0.0, class_accuracy=np.array([1.0, np.nan]))
    own = found.client_accuracy(np.array([[10.0, 0], [0, 10], [5, 5]]))
    assert own == {"mean": 1.0, "std": 0.0, "p10": 1.0, "min": 1.0}
    nothing = found.client_accuracy(np.array([[0.0, 3]]))
    assert all(np.isnan(value) for value in nothing.values())
