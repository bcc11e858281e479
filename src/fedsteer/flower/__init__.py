"""Every rule as a drop-in Flower strategy (Message API).

    from fedsteer.flower import FedSteer

    strategy = FedSteer(core_size=10, folder="runs/flower")
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)

The ClientApp does not change. Options of the strategy are in `StrategyOptions`; everything else
goes to the rule (`fedsteer rules fedsteer` lists it). Default preset: practical.
"""

from __future__ import annotations

from fedsteer.errors import extra, unknown

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:  # pragma: no cover - said to people without the extra
    raise ModuleNotFoundError(f"fedsteer.flower needs Flower: {extra('flower')}") from error

from collections.abc import Mapping
from typing import Any

from fedsteer.flower.client import report_identity
from fedsteer.flower.options import StrategyOptions
from fedsteer.flower.strategy import RuleStrategy

__all__ = [
    "MIFA",
    "STRATEGIES",
    "ClusterFedVARP",
    "FedAWE",
    "FedAvg",
    "FedProx",
    "FedStale",
    "FedSteer",
    "FedVARP",
    "RuleStrategy",
    "Scaffold",
    "StrategyOptions",
    "make_strategy",
    "report_identity",
]


class FedSteer(RuleStrategy):
    """Old coordinates on today's basis."""

    rule_name = "fedsteer"


class FedAvg(RuleStrategy):
    """The weighted sum of whoever is there."""

    rule_name = "fedavg"


class FedProx(RuleStrategy):
    """FedAvg's server; clients read "proximal-mu", see `fedsteer.flower.client`."""

    rule_name = "fedprox"


class FedVARP(RuleStrategy):
    """The last update of every client as its estimate."""

    rule_name = "fedvarp"


class ClusterFedVARP(RuleStrategy):
    """One remembered update per cluster."""

    rule_name = "cluster_fedvarp"


class FedStale(RuleStrategy):
    """FedVARP with less trust in old updates."""

    rule_name = "fedstale"


class MIFA(RuleStrategy):
    """The mean of everybody's last update."""

    rule_name = "mifa"


class Scaffold(RuleStrategy):
    """Control variates; clients add "correction" to gradients, see `fedsteer.flower.client`."""

    rule_name = "scaffold"


class FedAWE(RuleStrategy):
    """Every client goes on from where it left off."""

    rule_name = "fedawe"


STRATEGIES: dict[str, type[RuleStrategy]] = {
    strategy.rule_name: strategy
    for strategy in (
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


def make_strategy(
    rule: str, run_config: Mapping[str, Any] | None = None, **options: Any
) -> RuleStrategy:
    """A strategy by the name of its rule, with the "fedsteer-..." keys of `context.run_config`."""
    if rule not in STRATEGIES:
        raise unknown("rule", rule, STRATEGIES)
    return STRATEGIES[rule].from_run_config(run_config or {}, **options)
