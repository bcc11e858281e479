"""If a client fails in local training, the error names it, whichever engine it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedsteer.errors import ConfigurationError, TrainingFailed
from fedsteer.training import make_network
from fedsteer.training.engines.batched import BatchedEngine
from tests.training.made_data import CLASSES, FederatedData, training_data
from tests.training.test_engines import KINDS, NETWORKS, OWN, every_engine, trained_by


def picky_data() -> FederatedData:
    data = training_data(sizes=(3, 4, 5, 6))
    data.images[int(data.clients[2][1])] = 9.0
    return data


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_the_client_that_fails_is_named(order: tuple[int, ...]) -> None:
    network = make_network(f"{OWN}:picky", (1, 8, 8), CLASSES, {})
    with pytest.raises(TrainingFailed, match=r"client 2 failed .*: a pixel is above 5"):
        trained_by("sequential", network, picky_data(), KINDS["plain"], list(order))


@every_engine
def test_a_label_that_cannot_be_names_its_client(engine: str) -> None:
    data = training_data(sizes=(3, 4, 5))
    data.labels[int(data.clients[1][0])] = CLASSES
    network = NETWORKS["mlp-relu"].network()
    with pytest.raises(TrainingFailed, match="client 1 failed"):
        trained_by(engine, network, data, KINDS["plain"])


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (ZeroDivisionError("divided"), r"none does alone: divided; run\.engine=sequential"),
        (torch.OutOfMemoryError("CUDA out of memory"), r"3 clients at once.*fewer --jobs"),
    ],
)
def test_what_only_fails_together_says_so(
    problem: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise problem

    monkeypatch.setattr(BatchedEngine, "_train_stacked", fail)
    data = training_data(sizes=(3, 4, 5))
    with pytest.raises(TrainingFailed, match=words):
        trained_by("batched", NETWORKS["logistic"].network(), data, KINDS["plain"])


@every_engine
def test_a_client_without_data_is_named(engine: str) -> None:
    data = training_data(sizes=(3, 4))
    data = replace(data, clients=[data.clients[0], np.zeros(0, np.int64)])
    with pytest.raises(ConfigurationError, match="client 1 has no data"):
        trained_by(engine, NETWORKS["logistic"].network(), data, KINDS["plain"])
