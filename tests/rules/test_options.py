"""Options: wrong ones are refused with one clear line, right ones mean what they say."""

from __future__ import annotations

import doctest
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest

import fedsteer
from fedsteer import RULES, ConfigurationError, Rule, StateError, make_rule
from fedsteer.options import default_of, describe_range
from fedsteer.rules import PRACTICAL, Algorithm, options

every_name = pytest.mark.parametrize("name", RULES)


@pytest.mark.parametrize(
    ("name", "wrong", "near"),
    [
        ("fedsteer", "rigde", "ridge"),
        ("fedsteer", "coreset", "core_set"),
        ("fedavg", "averge", "average"),
        ("fedstale", "betta", "beta"),
        ("fedvarp", "normbound", "norm_bound"),
        ("cluster_fedvarp", "cluster_cout", "cluster_count"),
    ],
)
def test_an_unknown_option_names_the_nearest(name: str, wrong: str, near: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        make_rule(name, **{wrong: 1})
    assert str(error.value) == f"unknown option of {name} {wrong!r}; did you mean {near!r}?"


def test_an_option_of_another_rule_is_unknown() -> None:
    with pytest.raises(ConfigurationError, match="unknown option of fedvarp 'ridge'"):
        make_rule("fedvarp", ridge=0.5)


def test_with_nothing_near_all_are_listed() -> None:
    with pytest.raises(ConfigurationError, match=r"known: .*bad_clients.*seed"):
        make_rule("fedvarp", xyz=1)


@pytest.mark.parametrize(("wrong", "near"), [("fedster", "fedsteer"), ("FedAvg", "fedavg")])
def test_an_unknown_rule_names_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(ConfigurationError, match=f"unknown rule {wrong!r}; did you mean {near!r}"):
        make_rule(wrong)


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'practical'"):
        make_rule("fedavg", preset="practcal")


@pytest.mark.parametrize(
    ("name", "wrong", "words"),
    [
        ("fedsteer", {"ridge": -1e-9}, "ridge must be at least 0"),
        ("fedsteer", {"ridge": float("nan")}, "ridge must be at least 0"),
        ("fedsteer", {"ridge": "big"}, "ridge must be a number, not 'big'"),
        ("fedsteer", {"ridge": True}, "ridge must be a number"),
        ("fedsteer", {"ridge": None}, "ridge must be a number"),
        ("fedsteer", {"core_size": 0}, "core_size must be at least 1"),
        ("fedsteer", {"core_size": 2.5}, "core_size must be a whole number"),
        ("fedsteer", {"core_size": 10**400}, "core_size must be at least 1 and finite"),
        ("fedsteer", {"swaps": -1}, "swaps must be at least 0"),
        ("fedsteer", {"cycles": 0}, "cycles must be at least 1"),
        ("fedsteer", {"candidates": 0}, "candidates must be at least 1"),
        ("fedsteer", {"reselect_every": 0}, "reselect_every must be at least 1"),
        ("fedsteer", {"refresh_all_every": 1.5}, "refresh_all_every must be a whole number"),
        ("fedsteer", {"coordinates": "own", "select": "online"}, "needs core_set"),
        (
            "fedsteer",
            {"core_set": [0], "coordinates": "own", "reselect_every": 2},
            "reselect_every",
        ),
        (
            "fedsteer",
            {"objective": "variance", "probabilities": "shrunk"},
            "needs p_i in the warm-up",
        ),
        ("fedsteer", {"core_set": [True]}, "core_set: client ids are int or str, not True"),
        ("fedsteer", {"own_scale": -0.1}, "own_scale must be at least 0"),
        ("fedsteer", {"refresh": "befor"}, "unknown refresh 'befor'; did you mean 'before'"),
        ("fedsteer", {"select": "serch"}, "did you mean 'search'"),
        ("fedsteer", {"cache": "float8"}, "unknown cache 'float8'"),
        ("fedsteer", {"cache": 16}, "unknown cache '16'"),
        ("fedsteer", {"core_set": []}, "at least one client, each once"),
        ("fedsteer", {"core_set": [1, 2, 1]}, "at least one client, each once"),
        ("fedsteer", {"select": "frequent"}, "needs frequencies"),
        ("fedsteer", {"basis": "mean", "magnitude": "follow"}, "needs basis='unit'"),
        ("fedstale", {"beta": 1.1}, "beta must be at least 0 and at most 1"),
        ("fedprox", {"proximal": -1}, "proximal must be at least 0"),
        ("scaffold", {"local_rate": 0.0}, "local_rate must be above 0"),
        ("fedsteer", {"drift": 0.5}, "drift needs local_rate"),
        ("fedsteer", {"drift": 1.5, "local_rate": 0.1}, "drift must be auto | "),
        ("fedsteer", {"drift": 0.5, "local_rate": 0.1, "refresh": "before"}, "needs refresh="),
        ("fedsteer", {"renew_after": 0}, "renew_after must be"),
        ("fedawe", {"rate": 0}, "rate must be above 0"),
        ("fedawe", {"norm_bound": 0.5}, "fedawe moves the model itself"),
        ("mifa", {"start": "zero"}, "did you mean 'zeros'"),
        ("cluster_fedvarp", {"cluster_count": 0}, "cluster_count must be at least 1"),
        ("cluster_fedvarp", {"clusters": {0: 3}, "cluster_count": 3}, "at least 0 and at most 2"),
        ("cluster_fedvarp", {"clusters": {0: "a"}}, "must be a whole number, 0 has 'a'"),
        ("cluster_fedvarp", {"clusters": {0: 0.5}}, "must be a whole number, 0 has 0.5"),
        ("cluster_fedvarp", {"clusters": [0, 1]}, "clusters must be {client: number}"),
        ("fedsteer", {"search_columns": 5}, "search_columns must be a list of two whole numbers"),
        ("fedsteer", {"search_columns": (0, 2.5)}, "search_columns must be a pair"),
        ("fedsteer", {"core_set": 5.0}, "core_set must be a list of clients, not 5.0"),
        ("fedsteer", {"frequencies": {0: "a"}}, "frequencies must be a number, 0 has 'a'"),
        (
            "fedsteer",
            {"frequencies": {0: float("nan")}},
            "must be at least 0 and finite, 0 has nan",
        ),
        ("cluster_fedvarp", {"clusters": {0: -1}}, "at least 0 and at most 9"),
        ("fedavg", {"average": "mean"}, "unknown average 'mean'"),
        (
            "fedavg",
            {"probabilities": 0.0},
            "probabilities must be known | intervals | visits | shrunk",
        ),
        ("fedavg", {"probabilities": 1.01}, "above 0 and at most 1"),
        ("fedavg", {"probabilities": "guess"}, "unknown probabilities 'guess'"),
        ("fedavg", {"interval_cap": 0}, "interval_cap must be at least 1"),
        ("fedavg", {"max_weight": 0.0}, "max_weight must be above 0"),
        ("fedavg", {"norm_bound": -0.5}, "norm_bound must be above 0"),
        ("fedavg", {"bad_clients": "ignore"}, "unknown bad_clients 'ignore'"),
        ("fedavg", {"seed": -1}, "seed must be at least 0"),
    ],
    ids=str,
)
def test_out_of_range(name: str, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        make_rule(name, **wrong)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("fedsteer", {"ridge": 0, "swaps": 0, "core_size": 1}),
        ("fedsteer", {"candidates": None, "cache": None, "core_set": None}),
        ("fedsteer", {"core_set": ["a", 1]}),
        ("fedstale", {"beta": 0.0}),
        ("fedstale", {"beta": 1}),
        ("fedavg", {"probabilities": 1.0}),
        ("fedavg", {"probabilities": 0.01}),
        ("fedavg", {"max_weight": None, "norm_bound": None}),
    ],
    ids=str,
)
def test_the_edges_of_the_ranges_are_allowed(name: str, right: dict[str, Any]) -> None:
    rule = make_rule(name, **right)
    for key, value in right.items():
        assert getattr(rule.options, key) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("select", ["search", "random"])
def test_selections_that_need_all_clients_say_so(select: str) -> None:
    with pytest.raises(ConfigurationError, match="needs sizes"):
        make_rule("fedsteer", select=select).init(5)
    with pytest.raises(ConfigurationError, match="needs sizes"):
        make_rule("cluster_fedvarp").init(5)
    with pytest.raises(ConfigurationError, match="needs sizes"):
        make_rule("mifa", start="wait").init(5)


def test_most_frequent_clients() -> None:
    rule = make_rule(
        "fedsteer", select="frequent", core_size=3, frequencies={"b": 0.2, 4: 0.9, "a": 0.2, 1: 0.1}
    )
    own = rule.init(5).memory.own  # type: ignore[attr-defined]
    assert own.columns.owners == [4, "a", "b"]


def test_random_core_set_is_a_function_of_the_seed() -> None:
    def owners(seed: int) -> Any:
        rule = make_rule("fedsteer", select="random", core_size=5, seed=seed)
        return rule.init(3, [1.0] * 40).memory.own.columns.owners  # type: ignore[attr-defined]

    assert owners(1) == owners(1) != owners(2)
    assert len(set(owners(1))) == 5 and set(owners(1)) <= set(range(40))


@every_name
def test_options_are_frozen(name: str) -> None:
    rule = make_rule(name)
    with pytest.raises(FrozenInstanceError):
        rule.options.seed = 3  # type: ignore[misc]


@every_name
def test_paper_preset_is_the_defaults(name: str) -> None:
    rule = make_rule(name)
    for entry in fields(rule.options):
        assert getattr(rule.options, entry.name) == default_of(entry)
    assert make_rule(name, preset="paper").options == rule.options


@every_name
def test_practical_preset(name: str) -> None:
    rule = make_rule(name, preset="practical")
    assert rule.options.probabilities == PRACTICAL["probabilities"] == "shrunk"
    assert rule.options.bad_clients == "drop"
    assert rule.options.nobody_fresh == "hold"
    lengths = rule.options.norm_bound, rule.options.update_bound, rule.options.step
    assert lengths == ((None, 4.0, "fixed") if rule.own_rate else (1.0, 4.0, "aligned"))
    if name in ("fedsteer", "cluster_fedvarp"):
        assert rule.options.select == "online"  # type: ignore[attr-defined]
    rule.init(5)  # it needs to know nothing beforehand


@every_name
def test_options_override_the_preset(name: str) -> None:
    rule = make_rule(name, preset="practical", bad_clients="refuse", probabilities=0.3)
    assert rule.options.bad_clients == "refuse" and rule.options.probabilities == 0.3


@every_name
def test_every_option_explains_itself(name: str) -> None:
    """What `fedsteer rules NAME` shows: a meaning for each option, a default in its range."""
    kind = RULES[name].options_type
    for entry in fields(kind):
        assert entry.metadata["help"], entry.name
        assert isinstance(describe_range(entry), str)
    assert kind() == make_rule(name).options
    assert (RULES[name].__doc__ or "").strip()


@every_name
def test_rules_are_known_by_their_name(name: str) -> None:
    rule = make_rule(name)
    assert rule.name == name and isinstance(rule, Rule) and type(rule.algorithm) is RULES[name]


def test_a_rule_shows_what_differs_from_the_defaults() -> None:
    assert repr(make_rule("fedvarp")) == "Rule(fedvarp)"
    steer = make_rule("fedsteer", core_set=np.array([4, 7]), ridge=np.float64(0.1))
    assert repr(steer) == "Rule(fedsteer, core_set=(4, 7), ridge=0.1)"
    assert repr(make_rule("mifa", preset="practical")) == (
        "Rule(mifa, probabilities='shrunk', norm_bound=1.0, update_bound=4.0, size_bound=10.0, "
        "leave_after=10.0, discount_estimates=True, "
        "step='aligned', nobody_fresh='hold', bad_clients='drop')"
    )


def test_a_state_keeps_its_source_of_probabilities_and_its_bound() -> None:
    state = make_rule("fedavg", probabilities="shrunk", norm_bound=0.5).init(3, [1.0, 2.0])
    with pytest.raises(
        StateError, match=r"='shrunk', .* norm_bound=0\.5, update_bound=None, .*step=\'fixed\', not"
    ):
        make_rule("fedavg").plan(state, 1, [0])
    make_rule("fedavg", probabilities="shrunk", norm_bound=0.5, seed=3).plan(state, 1, [0])


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("fedsteer", {"core_set": [0]}, {"core_set": [1]}),
        ("fedsteer", {"select": "online"}, {"select": "online", "core_size": 3}),
        ("fedsteer", {"core_set": [0]}, {"core_set": [0], "basis": "mean"}),
        ("fedsteer", {"core_set": [0]}, {"core_set": [0], "magnitude": "follow"}),
        ("fedsteer", {"core_set": [0]}, {"core_set": [0], "reselect_every": 2}),
        ("cluster_fedvarp", {"cluster_count": 2}, {"cluster_count": 6}),
    ],
)
def test_a_state_keeps_what_its_memory_is_made_by(name: str, before: Any, after: Any) -> None:
    state = make_rule(name, **before).init(3, [1.0, 2.0])
    with pytest.raises(StateError, match="the state was made with"):
        make_rule(name, **after).plan(state, 1, [0])
    make_rule(name, **before).plan(state, 1, [0])


def test_numbers_mean_the_same_in_every_spelling() -> None:
    state = make_rule("fedsteer", core_set=[0, 1], norm_bound=1).init(3, [1.0, 2.0])
    other = make_rule("fedsteer", core_set=np.array([0, 1]), norm_bound=np.float32(1.0))
    other.plan(state, 1, [0])
    assert make_rule("fedsteer", core_size=np.int64(5)).options.core_size == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sizes", "named", "words"),
    [
        ([1.0] * 20, ["3", "17"], "names '3', the client is 3"),
        ({"3": 1.0, "17": 1.0}, [17], "names 17, the client is '17'"),
    ],
)
def test_a_client_by_the_wrong_kind_of_name(sizes: Any, named: list[Any], words: str) -> None:
    for name, given in (
        ("fedsteer", {"core_set": named}),
        ("cluster_fedvarp", {"clusters": dict.fromkeys(named, 0)}),
        ("fedsteer", {"select": "frequent", "frequencies": dict.fromkeys(named, 0.5)}),
    ):
        with pytest.raises(ConfigurationError, match=words):
            make_rule(name, **given).init(3, sizes)


def test_describe_range() -> None:
    described = {entry.name: describe_range(entry) for entry in fields(options.Options)}
    assert (
        described["probabilities"] == "known | intervals | visits | shrunk | above 0 and at most 1"
    )
    assert described["bad_clients"] == "refuse | drop"
    assert described["seed"] == "at least 0"


@pytest.mark.parametrize("module", [fedsteer, fedsteer.rules])
def test_the_examples_in_the_documentation_run(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_an_algorithm_with_a_memory_writes_and_forgets_it() -> None:
    with pytest.raises(TypeError, match="Half must implement all of begin, commit, forget"):

        class Half(Algorithm):
            def begin(self, clients: Any) -> Any: ...

            def compute(self, memory: Any, active: Any) -> Any: ...
