"""What is compared: rules by name, and one cell for every rule and seed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError, unknown
from fedsteer.records.names import FULL, MANIFEST, SEED, label_of
from fedsteer.rules import RULES, Rule, make_rule, preset_options
from fedsteer.simulate.experiment import Experiment, rule_option

MOST_WARM_UP = 1_000_000
"""Rounds after which a warm-up gives up on a client that never takes part."""


@dataclass(frozen=True)
class RuleSpec:
    """A rule as a comparison names it: "fedavg", "fedsteer:practical", "full", or a variant."""

    label: str
    name: str
    preset: str
    options: dict[str, Any]
    preset_options: dict[str, Any]  # what `preset` stands for
    everybody: bool = False  # full participation: FedAvg with all clients present

    def record(self) -> dict[str, Any]:
        """For the manifest; `everybody` follows from the label."""
        return {name: value for name, value in vars(self).items() if name != "everybody"}

    @property
    def slug(self) -> str:
        """The label as a folder name."""
        return re.sub(r"(?:[^\w.=]|_)+", "-", self.label.lower()).strip("-")

    def build(self, experiment: Experiment, seed: int, odds: Any = None) -> Rule:
        """The rule itself; `odds` are p_i as rules are told."""
        known = {field.name for field in fields(RULES[self.name].options_type)}
        options: dict[str, Any] = {"seed": seed}
        if "local_rate" in known:
            # With momentum, every gradient counts 1 / (1 - momentum) times in the end.
            options["local_rate"] = experiment.training.rate / (1 - experiment.training.momentum)
        estimated = experiment.participation.reported == "estimated"
        if self.everybody:
            options["probabilities"] = "known"
        elif estimated:
            options["probabilities"] = "shrunk"
        own = {name: _with_numbers(rule_option(value)) for name, value in self.options.items()}
        if own.get("select") == "frequent" and odds is not None and not estimated:
            # Ties are broken at random: neighbours may have something in common.
            lots = generator(seed, "equally frequent clients").random(len(odds))
            often = {client: float(p) + 1e-9 * lots[client] for client, p in enumerate(odds)}
            own.setdefault("frequencies", often)
        return make_rule(self.name, **(self.preset_options | options | own))


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: a rule under a seed, and its folder."""

    experiment: Experiment
    rule: RuleSpec
    seed: int
    folder: Path
    torch_threads: int = 0  # if another machine decided; not part of the experiment


def find_rule(experiment: Experiment, text: str) -> RuleSpec:
    """The rule that a name on the command line or in an experiment means."""
    if text in experiment.variants:
        own = dict(experiment.variants[text])
        label, name, preset = text, own.pop("rule", text), own.pop("preset", "paper")
    else:
        label, own = label_of(text), {}
        name, _, preset = text.partition(":")
    everybody = name == FULL
    if everybody:
        name = "fedavg"
    if name not in RULES:
        raise unknown("rule", name, [*RULES, FULL, *experiment.variants])
    preset = preset or "paper"
    return RuleSpec(
        label=label,
        name=name,
        preset=preset,
        options=own if everybody else experiment.options.get(name, {}) | own,
        preset_options=preset_options(RULES[name], preset),
        everybody=everybody,
    )


def plan_cells(
    experiment: Experiment, names: Sequence[str], out: Path, seeds: Sequence[int] = ()
) -> list[Cell]:
    """All cells, seed by seed, so an interrupted comparison has whole seeds first.

    seeds   instead of those of the experiment
    """
    seeds = seeds or range(experiment.seeds)
    if (out / MANIFEST).exists():
        raise ConfigurationError(f"{out} holds a run, not a comparison; choose another --out")
    specs: dict[str, RuleSpec] = {}  # by folder
    for name in names:
        spec = find_rule(experiment, name)
        if spec.slug in specs:
            same = specs[spec.slug]
            raise ConfigurationError(
                f"the rule {name!r} is named twice"
                if same == spec
                else f"{same.label!r} and {spec.label!r} would share the folder {spec.slug!r}"
            )
        columns, clients = spec.options.get("core_size"), experiment.partition.clients
        if isinstance(columns, int) and columns > clients:
            raise ConfigurationError(
                f"core_size = {columns} of {name} is more than partition.clients = {clients}"
            )
        specs[spec.slug] = spec
    # Building a rule shows mistakes in its options now, not after hours.
    rules = [spec.build(experiment, 0, [1.0]) for spec in specs.values()]
    if waiting := [rule for rule in rules if rule.options.warms_up]:
        for seed in seeds:
            process = experiment.participation.process(experiment.partition.clients, seed)
            for rule in waiting:
                refuse_endless_warm_up(rule, process.probabilities)
    return [
        Cell(experiment=experiment, rule=spec, seed=seed, folder=out / slug / f"{SEED}{seed}")
        for seed in seeds
        for slug, spec in specs.items()
    ]


def refuse_endless_warm_up(rule: Rule, odds: Any) -> None:
    """A warm-up waits for all clients; refuse it if one of them (almost) never takes part."""
    if rule.options.warms_up and odds is not None and odds.min() * MOST_WARM_UP < 1:
        raise ConfigurationError(
            f"client {odds.argmin()} never takes part (p = {odds.min():g}), and the warm-up of "
            f"{rule.name} would never end; choose options.{rule.name}.select=online, or "
            "leave the rule out"
        )


def _with_numbers(value: Any) -> Any:
    """Client numbers as keys; the keys of a TOML table are strings."""
    if not isinstance(value, Mapping):
        return value
    return {int(k) if str(k).isdecimal() else k: entry for k, entry in value.items()}
