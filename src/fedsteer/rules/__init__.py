"""The server rules, one file each, and the table of their names."""

from typing import Any

from fedsteer.errors import check_name
from fedsteer.rules.algorithm import Algorithm, Requests
from fedsteer.rules.cluster_fedvarp import ClusterFedVARP
from fedsteer.rules.diagnostics import Diagnostics, Step
from fedsteer.rules.fedavg import FedAvg
from fedsteer.rules.fedawe import FedAWE
from fedsteer.rules.fedprox import FedProx
from fedsteer.rules.fedstale import FedStale
from fedsteer.rules.fedsteer.rule import FedSteer
from fedsteer.rules.fedvarp import FedVARP
from fedsteer.rules.mifa import MIFA
from fedsteer.rules.options import LENGTH_OPTIONS
from fedsteer.rules.rule import Rule
from fedsteer.rules.scaffold import Scaffold
from fedsteer.steering.rounds import Round

__all__ = ["RULES", "Algorithm", "Diagnostics", "Requests", "Round", "Rule", "Step", "make_rule"]

RULES: dict[str, type[Algorithm]] = {
    kind.name: kind
    for kind in (
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

PRACTICAL = {
    "probabilities": "shrunk",
    "norm_bound": 1.0,
    "update_bound": 4.0,
    "size_bound": 10.0,
    "leave_after": 10.0,
    "discount_estimates": True,
    "step": "aligned",
    "nobody_fresh": "hold",
    "bad_clients": "drop",
}
"""The preset "practical" of every rule; a rule's own `presets` are added."""

PRESETS = ("paper", "practical")


def make_rule(name: str, *, preset: str = "paper", **options: Any) -> Rule:
    """A rule by name.

    preset    "paper": as published; "practical": for deployments, see `PRACTICAL`
    options   override the preset; `fedsteer rules NAME` lists them

    >>> make_rule("fedsteer", core_set=[3, 17, 42], ridge=0.5).name
    'fedsteer'
    """
    check_name("rule", name, RULES)
    kind = RULES[name]
    chosen = preset_options(kind, preset) | options
    for option in chosen:
        check_name(f"option of {name}", option, kind.options_type.__dataclass_fields__)
    return Rule(kind(kind.options_type(**chosen)))


def preset_options(kind: type[Algorithm], preset: str) -> dict[str, Any]:
    """What a preset means for this algorithm."""
    check_name("preset", preset, PRESETS)
    if preset == "paper":
        return {}
    chosen = PRACTICAL | dict(kind.presets.get(preset, {}))
    if kind.own_rate:
        chosen = {name: value for name, value in chosen.items() if name not in LENGTH_OPTIONS}
    return chosen
