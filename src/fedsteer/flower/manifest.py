"""How a run was set up: for its manifest, and to tell whether a checkpoint belongs to it."""

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
from fedsteer.steering.optimiser import ServerOptimiser

TOO_LONG = {"arrays": "other arrays", "population": "another population"}
"""What has no room in a message, and is said instead."""


def rule_options(rule: Rule, sampling: bool) -> dict[str, Any]:
    """The rule's options as they were given: it knows sampled probabilities only as known ones."""
    return asdict(rule.options) | ({"probabilities": SAMPLING} if sampling else {})


def manifest(
    rule: Rule, preset: str, options: StrategyOptions, sampling: bool, dim: int
) -> dict[str, Any]:
    """What manifest.json says about the run."""
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
    rule: Rule,
    optimiser: ServerOptimiser,
    options: StrategyOptions,
    sampling: bool,
    arrays: list[list[Any]],
) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    setup = {
        "rule": rule.name,
        "server_optimiser": optimiser.method,
        "authenticated": options.authenticated,
        "population": options.population,
        "arrays": arrays,
        **rule_options(rule, sampling),
    }
    described: dict[str, Any] = json.loads(json.dumps(plain(setup)))
    return described


def refuse_other_setup(was: Mapping[str, Any], now: Mapping[str, Any], folder: Any) -> None:
    """Raise where a checkpoint belongs to another rule, model or options.

    An option that is new in this release is in no older checkpoint and has its default.
    """
    for key in now:
        if key in was and was[key] != now[key]:
            which, instead = f"{key} = {was[key]}", f", not {now[key]}"
            if key in TOO_LONG:
                which, instead = TOO_LONG[key], ""
            raise ConfigurationError(
                f"{folder} holds a checkpoint with {which}{instead}; choose another folder, or "
                "resume=False to begin anew there"
            )


def refuse_other_model(was: list[list[Any]], now: list[list[Any]]) -> None:
    """Raise where a second start, which goes on with the model there is, brings another one."""
    if was != now:
        raise ConfigurationError(
            "this strategy has trained a model with other arrays, and a second start goes on with "
            "that; make a new strategy"
        )


def refuse_to_repeat(number: int, done: int, folder: Any) -> None:
    """A loop that is not ours begins with round 1 again, whatever has been done already."""
    where = "this strategy" if folder is None else f"the checkpoint in {folder}"
    instead = "make a new strategy" if folder is None else "choose another folder"
    raise ConfigurationError(
        f"round {number} was asked for, but {where} is after round {done}: only fedsteer's own "
        f"start() goes on from there; call that on the strategy, or {instead}"
    )
