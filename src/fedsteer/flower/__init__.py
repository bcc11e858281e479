"""Every rule as a drop-in Flower strategy (Message API); docs/flower.md shows how to use one.

The options are those of `StrategyOptions` and of the rule (`fedsteer rules fedsteer`).
"""

from fedsteer.errors import extra, unknown

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:  # pragma: no cover - without the extra
    raise ModuleNotFoundError(f"fedsteer.flower needs Flower: {extra('flower')}") from error

from collections.abc import Mapping
from typing import Any

from fedsteer.flower.client import private_updates, report_identity
from fedsteer.flower.options import StrategyOptions
from fedsteer.flower.strategy import RuleStrategy
from fedsteer.privacy import Privacy
from fedsteer.records.trackers import prometheus

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
    "Privacy",
    "RuleStrategy",
    "Scaffold",
    "StrategyOptions",
    "make_strategy",
    "private_updates",
    "prometheus",
    "report_identity",
]


class FedSteer(RuleStrategy):
    rule_name = "fedsteer"


class FedAvg(RuleStrategy):
    rule_name = "fedavg"


class FedProx(RuleStrategy):
    rule_name = "fedprox"


class FedVARP(RuleStrategy):
    rule_name = "fedvarp"


class ClusterFedVARP(RuleStrategy):
    rule_name = "cluster_fedvarp"


class FedStale(RuleStrategy):
    rule_name = "fedstale"


class MIFA(RuleStrategy):
    rule_name = "mifa"


class Scaffold(RuleStrategy):
    rule_name = "scaffold"


class FedAWE(RuleStrategy):
    rule_name = "fedawe"


STRATEGIES = {strategy.rule_name: strategy for strategy in RuleStrategy.__subclasses__()}
"""The strategies above by the names of their rules."""


def make_strategy(
    rule: str, run_config: Mapping[str, Any] | None = None, **options: Any
) -> RuleStrategy:
    """A strategy by the name of its rule; takes the "fedsteer-..." keys of `run_config`."""
    if rule not in STRATEGIES:
        raise unknown("rule", rule, STRATEGIES)
    return STRATEGIES[rule].from_run_config(run_config or {}, **options)
