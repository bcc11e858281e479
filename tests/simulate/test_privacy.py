"""Experiments with privacy: noise on arrival, counts in the records, budgets, resume."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from fedsteer.errors import ConfigurationError
from fedsteer.privacy import Privacy, epsilon
from fedsteer.report import summarise, to_text
from fedsteer.rules import RULES
from tests.simulate.small import exact_files, run_small, simulation, small, stopped_run

PRIVATE = {"privacy.clip": 0.01, "privacy.noise": 5.0}


@pytest.fixture(autouse=True)
def _accountant() -> None:
    pytest.importorskip("dp_accounting")


@pytest.mark.parametrize("entry", [*RULES, "fedsteer:practical"])
def test_every_rule_runs_on_noised_updates(entry: str) -> None:
    run, plain = simulation(small(PRIVATE), entry), simulation(small(), entry)
    results = list(run.rounds())
    shortest = 0.01 * (5.0 * math.sqrt(run.world.network.dim) / 2 - 1)
    norms = [row["norm"] for result in results for row in result.clients]
    assert norms and min(norms) > shortest
    costs = [result.row["epsilon"] for result in results]
    assert costs == sorted(costs) and costs[-1] == run.result()["epsilon"]
    most = max(run.ledger.releases.values())
    assert costs[-1] == epsilon(run.ledger.privacy, most)
    assert sum(run.ledger.releases.values()) == len(norms)
    assert "epsilon" not in next(plain.rounds()).row


def test_without_noise_updates_are_clipped_and_nothing_is_promised() -> None:
    run = simulation(small({"privacy.clip": 0.01, "privacy.noise": 0.0}), "fedvarp")
    result = run.round()
    assert [row["norm"] for row in result.clients] == pytest.approx([0.01] * len(result.clients))
    assert result.row["epsilon"] == math.inf


def test_the_noise_is_a_function_of_the_seed() -> None:
    models = [
        [run.model for run in runs for _ in run.rounds()][-1]
        for runs in ([simulation(small(PRIVATE), seed=seed)] for seed in (0, 0, 1))
    ]
    np.testing.assert_array_equal(models[0], models[1])
    assert (models[0] != models[2]).any()


@pytest.mark.parametrize("entry", ["fedvarp", "fedsteer:practical"])
def test_a_resumed_run_has_counted_all_releases(entry: str, tmp_path: Path) -> None:
    private = {key.replace(".", "__"): value for key, value in PRIVATE.items()}
    whole = run_small(tmp_path / "whole", entry, **private)
    stopped_run(tmp_path / "broken", 3, entry, **private)
    broken = run_small(tmp_path / "broken", entry, resume=True, **private)
    assert exact_files(broken.folder) == exact_files(whole.folder)
    assert broken.result["epsilon"] == whole.result["epsilon"]
    assert f"{whole.result['epsilon']:.3g}" in to_text(summarise([whole]))


def test_clients_stay_away_once_their_budget_is_spent_and_then_the_run_ends() -> None:
    budget = epsilon(Privacy(clip=0.01, noise=5.0), 2) + 1e-6
    limits = {"privacy.budget": budget, "run.rounds": 40}
    run = simulation(small(PRIVATE | limits), "fedvarp")
    results = list(run.rounds())
    assert set(run.ledger.releases.values()) == {2} and len(run.ledger.releases) == 12
    assert run.finished and 2 < len(results) < 40
    assert results[-1].row["epsilon"] <= budget


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"privacy needs privacy\.clip"):
        small({"privacy.noise": 2.0})
    with pytest.raises(ConfigurationError, match="more than"):
        simulation(small(PRIVATE | {"privacy.budget": 0.1}))
