"""Which rules a run or comparison names: "fedavg", "fedsteer:practical", "full", or a variant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError, unknown
from fedsteer.records.names import FULL, label_of
from fedsteer.rules import PRESETS, RULES, Rule, make_rule
from fedsteer.simulate.experiment import Experiment

MOST_WARM_UP = 1_000_000
"""Rounds: a warm-up that waits for a client which never comes must end some day."""


@dataclass(frozen=True)
class Entry:
    """One row of a comparison."""

    label: str
    rule: str
    preset: str
    options: dict[str, Any]
    everybody: bool = False  # full participation: FedAvg with everybody present

    @property
    def slug(self) -> str:
        """The label as a folder name."""
        return re.sub(r"(?:[^\w.=]|_)+", "-", self.label.lower()).strip("-")

    def build(self, experiment: Experiment, seed: int, odds: Any = None) -> Rule:
        """The rule itself, told what the experiment knows; `odds` are p_i as rules are told."""
        known = {field.name for field in fields(RULES[self.rule].options_type)}
        options: dict[str, Any] = {"seed": seed}
        if "local_rate" in known:
            # Momentum takes every gradient 1 / (1 - momentum) times, sooner or later.
            options["local_rate"] = experiment.training.rate / (1 - experiment.training.momentum)
        if experiment.participation.reported == "estimated" and not self.everybody:
            options["probabilities"] = "shrunk"
        own = {name: _numbered(value) for name, value in self.options.items()}
        told = experiment.participation.reported != "estimated"
        if own.get("select") == "frequent" and odds is not None and told:
            own.setdefault("frequencies", _drawn_ties(odds, seed))
        return make_rule(self.rule, preset=self.preset, **(options | own))


def refuse_endless_warm_up(rule: Rule, odds: Any) -> None:
    """A warm-up waits for everybody: also for a client that never takes part, or as good as."""
    if rule.options.warms_up and odds is not None and odds.min() * MOST_WARM_UP < 1:
        raise ConfigurationError(
            f"client {odds.argmin()} never takes part (p = {odds.min():g}), and the warm-up of "
            f"{rule.name} would wait for it for ever; choose options.{rule.name}.select=online, or "
            "leave the rule out"
        )


def _drawn_ties(odds: Any, seed: int) -> dict[int, float]:
    """How often each client takes part, equals in drawn order: who comes first by number may have
    something in common."""
    lots = generator(seed, "equally frequent clients").random(len(odds))
    return {client: float(p) + 1e-9 * lots[client] for client, p in enumerate(odds)}


def _numbered(value: Any) -> Any:
    """Clients are numbers here, but keys of a TOML table are text."""
    if not isinstance(value, Mapping):
        return value
    return {int(k) if str(k).isdecimal() else k: entry for k, entry in value.items()}


def find_entry(experiment: Experiment, text: str) -> Entry:
    """The entry that a name on the command line or in an experiment means."""
    if text in experiment.variants:
        table = dict(experiment.variants[text])
        rule, preset = table.pop("rule", text), table.pop("preset", "paper")
        if rule not in RULES:
            raise unknown("rule", rule, RULES)
        return Entry(text, rule, preset, experiment.options.get(rule, {}) | table)
    if text == FULL:
        return Entry(label_of(text), "fedavg", "paper", {}, everybody=True)
    name, _, preset = text.partition(":")
    if name == FULL:
        raise ConfigurationError(f"{FULL} is FedAvg with everybody present: it has no presets")
    if name not in RULES:
        raise unknown("rule", name, [*RULES, FULL, *experiment.variants])
    if preset and preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    return Entry(label_of(text), name, preset or "paper", dict(experiment.options.get(name, {})))
