"""Options in Python and as keys of Flower's run configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import fedsteer.flower
from fedsteer import RULES, ConfigurationError
from fedsteer.flower import FedAvg, FedSteer, FedVARP, StrategyOptions, make_strategy
from fedsteer.flower.identity import key_name
from fedsteer.flower.options import from_run_config


def test_public_names() -> None:
    rules = "FedSteer FedAvg FedProx FedVARP ClusterFedVARP FedStale MIFA Scaffold FedAWE"
    others = "RuleStrategy StrategyOptions STRATEGIES make_strategy report_identity prometheus"
    private = {"Privacy", "private_updates"}
    assert set(fedsteer.flower.__all__) == {*rules.split(), *others.split()} | private
    assert all(hasattr(fedsteer.flower, name) for name in fedsteer.flower.__all__)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_the_strategy_and_its_rule_share_no_option_name(rule: str) -> None:
    ours = {entry.name for entry in fields(StrategyOptions)}
    assert not ours & {entry.name for entry in fields(RULES[rule].options_type)}


def test_practical_is_the_default() -> None:
    strategy = FedSteer()
    assert strategy.preset == "practical"
    assert strategy.rule.options.probabilities == "shrunk"
    assert strategy.rule.options.step == "aligned"
    assert strategy.rule.options.select == "online"  # type: ignore[attr-defined]


def test_the_paper_without_known_probabilities_estimates_them() -> None:
    assert FedVARP(preset="paper").rule.options.probabilities == "shrunk"
    known = FedVARP(preset="paper", known_probabilities={3: 0.5})
    assert known.rule.options.probabilities == "known"
    assert FedVARP(known_probabilities={3: 0.5}).rule.options.probabilities == "known"
    with pytest.raises(ConfigurationError, match="known_probabilities"):
        FedVARP(probabilities="known")


@pytest.mark.parametrize(
    ("options", "word"),
    [({"fraction_train": 0.0}, "fraction_train"), ({"known_probabilities": {3: 0.5}}, "known_pro")],
)
def test_probabilities_of_sampling_need_a_sample(options: dict[str, Any], word: str) -> None:
    assert FedVARP.from_run_config({"fedsteer-probabilities": "sampling"}).run.sampling
    with pytest.raises(ConfigurationError, match=word):
        FedVARP(probabilities="sampling", **options)


def test_the_warm_up_of_the_paper_needs_the_population() -> None:
    from tests.flower.fake import FakeGrid, arrays

    with pytest.raises(ConfigurationError, match="population"):
        FedSteer(preset="paper").start(FakeGrid(), arrays(w=[1.0]))


def test_clients_are_named_by_the_id_they_report() -> None:
    strategy = FedSteer(core_set=[3, "client-4", "key-ab"], population={3: 5, "x": 7})
    assert strategy.rule.options.core_set == (  # type: ignore[attr-defined]
        "client-3",
        "client-4",
        "key-ab",
    )
    assert strategy.options.population == {"client-3": 5, "client-x": 7}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"fraction_trian": 0.5}, "did you mean 'fraction_train'"),
        ({"core_sise": 5}, "did you mean 'core_size'"),
        ({"fraction_train": 1.5}, "at most 1"),
        ({"fraction_train": "0.5"}, "must be a number"),
        ({"min_train_nodes": 1.5}, "must be a whole number"),
        ({"resume": "false"}, "resume must be true or false"),
        ({"authenticated": "no"}, "authenticated must be true or false"),
        ({"core_set": "12"}, "core_set must be a list of clients, not '12'"),
        ({"core_set": 7}, "core_set must be a list of clients, not 7"),
        ({"core_set": 5.0}, r"core_set must be a list of clients, not 5\.0"),
        ({"steer": 5}, "steer must be a list of name patterns, not 5"),
        ({"select": "frequent", "frequencies": [0.1, 0.2]}, "frequencies must be {client: number}"),
        ({"population": {7: 10, "client-7": 20}}, "population names a client twice"),
        ({"known_probabilities": [0.5]}, "known_probabilities must be {client: number}"),
        ({"min_train_nodes": -1}, "at least 0"),
        ({"server_rate": 0.0}, "above 0"),
        ({"server_optimiser": "adamw"}, "did you mean 'adam'"),
        ({"registration_timeout": -1.0}, "at least 0"),
        ({"ridge": -1.0}, "ridge"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        FedSteer(**options)


def test_run_config_keys() -> None:
    config = {
        "num-rounds": 3,  # the app's own
        "fedsteer-preset": "paper",
        "fedsteer-core-size": 5,
        "fedsteer-ridge": 1,
        "fedsteer-fraction-train": 1,
        "fedsteer-authenticated": True,
        "fedsteer-steer": "head.*, *lora*",
        "fedsteer-folder": "none",
        "fedsteer-norm-bound": "none",
        "fedsteer-known-probabilities": "3=0.25, ward-7=0.5",
        "fedsteer-core-set": "3, ward-7",
        "fedsteer-search-columns": "2, 5",
        "fedsteer-seed": 4,
    }
    strategy = FedSteer.from_run_config(config, server_rate=0.5)
    options, rule = strategy.options, strategy.rule.options
    assert options.authenticated and options.folder is None and options.server_rate == 0.5
    assert options.steer == ("head.*", "*lora*")
    assert options.known_probabilities == {"client-3": 0.25, "client-ward-7": 0.5}
    assert (rule.core_size, rule.ridge, rule.seed) == (5, 1.0, 4)  # type: ignore[attr-defined]
    assert rule.core_set == ("client-3", "client-ward-7")  # type: ignore[attr-defined]
    assert rule.search_columns == (2, 5)  # type: ignore[attr-defined]
    assert rule.norm_bound is None and strategy.preset == "paper"
    clusters = from_run_config("cluster_fedvarp", {"fedsteer-clusters": "3=0, 4=1"})
    assert clusters == {"clusters": {"3": 0, "4": 1}}
    sampled = from_run_config("fedavg", {"fedsteer-probabilities": 0.25})
    assert FedAvg(**sampled).rule.options.probabilities == 0.25


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_option_has_a_run_config_key(rule: str) -> None:
    for entry in [*fields(StrategyOptions), *fields(RULES[rule].options_type)]:
        key = "fedsteer-" + entry.name.replace("_", "-")
        value: object = "1=1" if "Mapping" in str(entry.type) else True
        value = "1, 2" if "tuple" in str(entry.type) else value
        assert set(from_run_config(rule, {key: value})) == {entry.name}


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"fedsteer-core-sise": 5}, "did you mean 'fedsteer-core-size'"),
        ({"fedsteer-proximal": 0.1}, "is for fedprox, not for fedsteer"),
        ({"fedsteer-preset": "best"}, "unknown preset"),
        ({"fedsteer-authenticated": 3}, "true or false"),
        ({"fedsteer-population": "3:5"}, "must read like"),
        ({"fedsteer-population": "100"}, "must read like"),
        ({"fedsteer-known-probabilities": "3=0.1, 3=0.9"}, "names a client twice"),
        ({"fedsteer-core-size": "many"}, "whole number"),
        ({"fedsteer-search-columns": "a, b"}, "whole numbers"),
    ],
)
def test_mistakes_in_the_run_config_are_named(config: dict[str, object], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        FedSteer.from_run_config(config)


def test_strategies_by_name() -> None:
    assert isinstance(make_strategy("fedsteer", {"fedsteer-core-size": 3}), FedSteer)
    with pytest.raises(ConfigurationError, match="did you mean 'fedsteer'"):
        make_strategy("fedster")


@pytest.mark.parametrize("name", ["population", "known_probabilities"])
@pytest.mark.parametrize("value", [-1, 0, "a", float("nan"), None, True, 1e16])
def test_numbers_of_clients_are_checked_at_once(name: str, value: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"{name} must be (above 0 and at most|a number, )"
    ):
        FedSteer(**{name: {3: value}})


def test_paths_and_keys_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="folder must be a path, not 3"):
        FedSteer(folder=3)
    with pytest.raises(ConfigurationError, match="a public key is bytes"):
        key_name("-----BEGIN")  # type: ignore[arg-type]
