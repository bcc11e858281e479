"""The server rules, one file each, and the table of their names."""

from __future__ import annotations

from typing import Any

from fedsteer.errors import unknown
from fedsteer.rules.base import Rule
from fedsteer.rules.cluster_fedvarp import ClusterFedVARP
from fedsteer.rules.diagnostics import Diagnostics
from fedsteer.rules.fedavg import FedAvg
from fedsteer.rules.fedawe import FedAWE
from fedsteer.rules.fedprox import FedProx
from fedsteer.rules.fedstale import FedStale
from fedsteer.rules.fedsteer import FedSteer
from fedsteer.rules.fedvarp import FedVARP
from fedsteer.rules.mifa import MIFA
from fedsteer.rules.options import build_options
from fedsteer.rules.parts import Requests, Step
from fedsteer.rules.scaffold import Scaffold
from fedsteer.steering.rounds import Round

__all__ = ["RULES", "Diagnostics", "Requests", "Round", "Rule", "Step", "make_rule"]

RULES: dict[str, type[Rule]] = {
    rule.name: rule
    for rule in (
        FedSteer,
        FedAvg,
        FedProx,
        FedVARP,
        ClusterFedVARP,
        FedStale,
        MIFA,
        Scaffold,
        FedAWE,
    )
}

PRACTICAL = {"probabilities": "shrunk", "norm_bound": 0.5, "bad_clients": "drop"}
"""What preset "practical" means for every rule; a rule's own `presets` come on top."""

PRESETS = ("paper", "practical")


def make_rule(name: str, *, preset: str = "paper", **options: Any) -> Rule:
    """A rule by name.

    preset    "paper": as published; "practical": estimated probabilities, norm bound, bad clients
              dropped, and for FedSteer an online core set instead of a warm-up
    options   override the preset; `fedsteer rules NAME` lists them

    >>> make_rule("fedsteer", core_set=[3, 17, 42], ridge=0.5).name
    'fedsteer'
    """
    if name not in RULES:
        raise unknown("rule", name, RULES)
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    rule = RULES[name]
    return rule(build_options(rule.options_type, name, preset_options(rule, preset) | options))


def preset_options(rule: type[Rule], preset: str) -> dict[str, Any]:
    """What a preset means for this rule."""
    if preset == "paper":
        return {}
    chosen = PRACTICAL | dict(rule.presets.get(preset, {}))
    if rule.own_rate:
        del chosen["norm_bound"]
    return chosen
