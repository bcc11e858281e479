"""The experiment, as fedsteer's simulator has it: data, partition, participation and network."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from fedsteer.simulate.cells import RuleSpec, find_rule
from fedsteer.simulate.experiment_files import load_experiment, parse_settings
from fedsteer.simulate.world import World, build_world


def world_of(config: Mapping[str, Any]) -> tuple[World, RuleSpec]:
    """What a run configuration means; made once per process."""
    names = ("experiment", "settings", "rule", "seed")
    return _world_of(*(str(config[name]) for name in names))


@cache
def _world_of(experiment: str, settings: str, rule: str, seed: str) -> tuple[World, RuleSpec]:
    found = load_experiment(experiment, parse_settings(settings.split()))
    spec = find_rule(found, rule)
    return build_world(found, int(seed), spec.everybody), spec
