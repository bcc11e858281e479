from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsteer.errors import ConfigurationError
from fedsteer.participation import PROCESSES, GroupsOptions, Participation
from fedsteer.participation.bernoulli import Bernoulli, EverybodyOptions
from fedsteer.participation.diurnal import Diurnal, DiurnalOptions
from fedsteer.participation.markov import Markov
from fedsteer.participation.trace import Trace

P = np.array([0.04, 0.16, 0.5, 0.9])
MANY = np.repeat(P, 250)  # client i has probability P[i // 250]


def diurnal(probabilities: np.ndarray, *, seed: int = 0, **options: Any) -> Diurnal:
    return Diurnal(probabilities, DiurnalOptions(**options), seed)


def processes(seed: int) -> list[Participation]:
    """Every process; a new one is enrolled by one line."""
    rng = np.random.default_rng(seed)
    return [
        EverybodyOptions().process(7, seed),
        Bernoulli(P, seed),
        GroupsOptions().process(20, seed),
        Markov(P, 12.0, seed),
        Markov(np.append(P, 1.0), 50.0, seed),
        diurnal(P, amplitude=0.9, period=7.5, seed=seed),
        diurnal(P, amplitude=0.9, phases="spread", seed=seed),
        Trace(tuple(np.sort(rng.random((1, 2))) * 100 for _ in range(6)), 7.0, 100.0),
    ]


KINDS = range(len(processes(0)))


def table(process: Participation, rounds: int, first: int = 0) -> np.ndarray:
    """(rounds, clients) of who was there."""
    rows = np.zeros((rounds, process.clients), dtype=bool)
    for row in range(rounds):
        rows[row, process.present(first + row)] = True
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_present_is_sorted_and_distinct(kind: int) -> None:
    process = processes(3)[kind]
    for number in range(50):
        clients = process.present(number)
        assert clients.dtype == np.int64 and clients.ndim == 1
        assert (np.diff(clients) > 0).all()
        assert not clients.size or (clients[0] >= 0 and clients[-1] < process.clients)
    probabilities = process.probabilities
    assert probabilities is not None and probabilities.shape == (process.clients,)
    assert (probabilities >= 0).all() and (probabilities <= 1).all()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10), rounds=st.lists(st.integers(0, 120), min_size=1, max_size=12))
def test_any_order_gives_the_same_clients(kind: int, seed: int, rounds: list[int]) -> None:
    asked_at_random, asked_in_order = processes(seed)[kind], processes(seed)[kind]
    expected = [asked_in_order.present(number) for number in range(121)]
    for number in rounds:
        np.testing.assert_array_equal(asked_at_random.present(number), expected[number])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_returned_is_the_callers(kind: int) -> None:
    process = processes(0)[kind]
    process.present(4)[:] = 0
    np.testing.assert_array_equal(process.present(4), processes(0)[kind].present(4))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [-1, 1.5, "1"])
def test_a_round_is_a_whole_number(kind: int, number: int) -> None:
    with pytest.raises(ConfigurationError, match="round"):
        processes(0)[kind].present(number)


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_are_the_long_run_shares(kind: int) -> None:
    process = processes(1)[kind]
    share = table(process, 6000).mean(axis=0)
    # Bursts of 50 rounds leave about 6000 / 100 independent draws, hence the wide tolerance.
    tolerance = 0.13 if isinstance(process, Markov) else 0.03
    np.testing.assert_allclose(share, process.probabilities, atol=tolerance)


def test_the_papers_groups() -> None:
    process = GroupsOptions().process(100, 4)
    assert sorted(process.probabilities.tolist()) == [0.04] * 50 + [0.16] * 50
    assert not np.array_equal(process.probabilities, GroupsOptions().long_run(100, 5))
    present = [len(process.present(number)) for number in range(2000)]
    assert abs(np.mean(present) - 10) < 0.3
    assert abs(np.var(present) - 50 * (0.04 * 0.96 + 0.16 * 0.84)) < 1


def test_bernoulli_rounds_and_clients_are_independent() -> None:
    rows = table(Bernoulli(np.full(40, 0.3), seed=2), 4000).astype(float)
    across_clients = np.corrcoef(rows.T)
    across_rounds = [np.corrcoef(rows[:-1, i], rows[1:, i])[0, 1] for i in range(40)]
    limit = 5 / 4000**0.5
    assert np.abs(across_clients - np.eye(40)).max() < limit
    assert np.abs(across_rounds).max() < limit


def test_markov_has_the_right_share_and_burst_length() -> None:
    mean_on = 12.0
    rows = table(Markov(MANY, mean_on, seed=0), 1500)
    for group, p in enumerate(P):
        own = rows[:, 250 * group : 250 * (group + 1)]
        assert abs(own.mean() - p) < 0.02
        assert abs(own[0].mean() - p) < 0.1  # stationary from the first round
        ends = (own[:-1] & ~own[1:]).sum() / own[:-1].sum()
        starts = (~own[:-1] & own[1:]).sum() / (~own[:-1]).sum()
        assert ends == pytest.approx(1 / mean_on, rel=0.05)
        assert starts == pytest.approx(p / (1 - p) / mean_on, rel=0.12)


def test_markov_with_the_shortest_bursts_is_bernoulli() -> None:
    for p in P:
        same = np.full(20, p)
        process, independent = Markov(same, 1 / (1 - p), seed=6), Bernoulli(same, 6)
        for number in range(100):
            np.testing.assert_array_equal(process.present(number), independent.present(number))


def test_diurnal_swings_together_or_apart() -> None:
    base = np.full(2000, 0.3)
    together = diurnal(base, amplitude=0.8, period=24, seed=0)
    apart = diurnal(base, amplitude=0.8, period=24, phases="spread", seed=0)
    by_hour = table(together, 48).sum(axis=1).reshape(2, 24).mean(axis=0) / 2000
    expected = 0.3 * (1 + 0.8 * np.sin(2 * np.pi * np.arange(24) / 24))
    np.testing.assert_allclose(by_hour, expected, atol=0.03)
    assert np.ptp(table(apart, 48).sum(axis=1) / 2000) < 0.07
    np.testing.assert_allclose(together.at(6), 0.54)
    np.testing.assert_array_equal(together.probabilities, base)


@pytest.mark.parametrize("period", [10, 10.5, 2.5])
def test_diurnal_probability_counts_the_clipping(period: float) -> None:
    process = diurnal(np.array([0.9, 1.0]), amplitude=1.0, period=period)
    mean = np.mean([process.at(number) for number in range(2100)], axis=0)
    np.testing.assert_allclose(process.probabilities, mean, atol=1e-9)
    long = diurnal(process.base, amplitude=1.0, period=1e11)  # takes no longer than others
    np.testing.assert_allclose(long.probabilities, [0.7, 0.7], atol=0.05)
    assert (mean < [0.9, 1.0]).all()
    assert all(0 < p <= 1 for number in range(30) for p in process.at(number))


def test_many_clients_cost_no_loop() -> None:
    clients = 1_000_000
    probabilities = np.full(clients, 0.01)
    for process in (Bernoulli(probabilities), Markov(probabilities, 3.0), diurnal(probabilities)):
        assert abs(len(process.present(0)) - 10_000) < 500


@pytest.mark.parametrize(
    "refused",
    [
        lambda: EverybodyOptions().process(0, 0),
        lambda: Bernoulli(np.array([])),
        lambda: Bernoulli(np.array([[0.5]])),
        lambda: Bernoulli(np.array([0.5, 0.0])),
        lambda: Bernoulli(np.array([0.5, 1.1])),
        lambda: Bernoulli(np.array([np.nan])),
        lambda: Bernoulli("half"),  # type: ignore[arg-type]
        lambda: Bernoulli(P, seed=-1),
        lambda: GroupsOptions().process(0, 0),
        lambda: GroupsOptions(share=1.5),
        lambda: GroupsOptions(weak=0.0),
        lambda: EverybodyOptions().process(5, -1),
        lambda: Markov(P, 1.0),
        lambda: Markov(P, -3.0),
        lambda: Markov(P, float("inf")),
        lambda: Markov(P, float("nan")),
        lambda: diurnal(P, amplitude=1.5),
        lambda: diurnal(P, period=1),
        lambda: diurnal(P, period=float("nan")),
        lambda: diurnal(P, phases="random"),
        lambda: EverybodyOptions(reported="guessed"),
        lambda: EverybodyOptions(reported="wrong", wrong_factor=0.0),
        lambda: EverybodyOptions(reported="wrong", wrong_noise=-1.0),
        lambda: EverybodyOptions(reported="known", wrong_factor=2.0),
    ],
)
def test_refused_in_one_line(refused: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        refused()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def told(process: Participation, seed: int = 0, **options: Any) -> np.ndarray | None:
    return EverybodyOptions(**options).told(process, seed)


def test_what_rules_are_told() -> None:
    process = Bernoulli(MANY)
    assert told(process) is process.probabilities
    assert told(process, reported="estimated") is None
    halved = told(process, reported="wrong", wrong_factor=0.5)
    np.testing.assert_allclose(halved, MANY / 2)
    noisy = told(process, 3, reported="wrong", wrong_noise=0.5)
    np.testing.assert_array_equal(noisy, told(process, 3, reported="wrong", wrong_noise=0.5))
    assert noisy is not None and (noisy > 0).all() and (noisy <= 1).all()
    assert np.std(np.log(noisy[:250] / MANY[:250])) == pytest.approx(0.5, rel=0.15)
    tripled = told(process, reported="wrong", wrong_factor=3.0)
    assert tripled is not None and tripled.max() == 1.0


def test_a_process_without_known_probabilities_can_only_be_estimated() -> None:
    class Unknown(Bernoulli):
        @property
        def probabilities(self) -> None:  # type: ignore[override]
            return None

    assert told(Unknown(P), reported="estimated") is None
    with pytest.raises(ConfigurationError, match="not known"):
        told(Unknown(P))


@pytest.mark.parametrize("kind", PROCESSES)
def test_every_kind_explains_its_options(kind: str) -> None:
    assert PROCESSES[kind].kind == kind and PROCESSES[kind].__doc__
    assert all(entry.metadata["help"] for entry in fields(PROCESSES[kind]))
