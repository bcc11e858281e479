"""How a run is set up: its manifest, and whether a checkpoint or a start belongs to it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedsteer.errors import ConfigurationError
from fedsteer.flower.options import SAMPLING, StrategyOptions
from fedsteer.records.files import plain
from fedsteer.records.names import label_of
from fedsteer.rules import Rule

TOO_LONG = {"arrays": "other arrays", "population": "another population"}
"""Settings whose values are too long for an error message, in words."""


def rule_options(rule: Rule, sampling: bool) -> dict[str, Any]:
    """The rule's options as the user gave them; for "sampling" the rule itself gets "known"."""
    return asdict(rule.options) | ({"probabilities": SAMPLING} if sampling else {})


def manifest(
    rule: Rule, preset: str, options: StrategyOptions, sampling: bool, dim: int
) -> dict[str, Any]:
    """The content of manifest.json."""
    return {
        "rule": {
            "label": label_of(f"{rule.name}:{preset}"),
            "name": rule.name,
            "preset": preset,
            "options": rule_options(rule, sampling),
        },
        "seed": rule.options.seed,
        "experiment": {
            "name": options.experiment,
            "title": "A Flower run",
            "server": {"rate": options.server_rate, "method": options.server_optimiser},
            "participation": {
                "fraction_train": options.fraction_train,
                "authenticated": options.authenticated,
            },
        },
        "engine": {"name": "flower"},
        "dim": dim,
    }


def describe_setup(
    rule: Rule, options: StrategyOptions, sampling: bool, arrays: list[list[Any]]
) -> dict[str, Any]:
    """The settings that cannot change between two starts of a run."""
    setup = {
        "rule": rule.name,
        "server_optimiser": "sgd" if rule.own_rate else options.server_optimiser,
        "authenticated": options.authenticated,
        "population": options.population,
        "arrays": arrays,
        **rule_options(rule, sampling),
    }
    described: dict[str, Any] = json.loads(json.dumps(plain(setup)))
    return described


def refuse_other_setup(before: Mapping[str, Any], now: Mapping[str, Any], folder: Any) -> None:
    """Raise if a checkpoint belongs to another rule, model or options.

    An option that the checkpoint does not have is newer and had its default.
    """
    for key in now:
        if key in before and before[key] != now[key]:
            difference = TOO_LONG.get(key, f"{key} = {before[key]}, not {now[key]}")
            raise ConfigurationError(
                f"{folder} holds a checkpoint with {difference}; choose another folder, or set "
                "resume=False to start over there"
            )


def refuse_other_model(before: list[list[Any]], now: list[list[Any]]) -> None:
    """Raise if a second start, which continues with the trained model, brings another one."""
    if before != now:
        raise ConfigurationError(
            "this strategy has trained a model with other arrays, and a second start continues "
            "with that model; make a new strategy"
        )


def refuse_to_repeat(number: int, done: int, folder: Any) -> None:
    """Refuse a round that is done already: a loop that is not ours always begins with round 1."""
    where = "this strategy" if folder is None else f"the checkpoint in {folder}"
    instead = "make a new strategy" if folder is None else "choose another folder"
    raise ConfigurationError(
        f"round {number} was asked for, but {where} is after round {done}: only fedsteer's own "
        f"start() continues from there; call that, or {instead}"
    )
