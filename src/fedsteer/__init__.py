"""Federated learning that stays accurate when most clients are rarely there.

>>> from fedsteer import make_rule, Round
>>> rule = make_rule("fedsteer", core_set=[3, 17, 42], ridge=0.5)
"""

from fedsteer.errors import (
    ConfigurationError,
    DataError,
    Diverged,
    FedsteerError,
    RoundRefused,
    StateError,
    TrainingFailed,
)
from fedsteer.rules import RULES, Diagnostics, Requests, Round, Rule, Step, make_rule
from fedsteer.steering.optimiser import ServerOptimiser
from fedsteer.steering.state import State

__version__ = "0.1.0"

__all__ = [
    "RULES",
    "ConfigurationError",
    "DataError",
    "Diagnostics",
    "Diverged",
    "FedsteerError",
    "Requests",
    "Round",
    "RoundRefused",
    "Rule",
    "ServerOptimiser",
    "State",
    "StateError",
    "Step",
    "TrainingFailed",
    "__version__",
    "make_rule",
]
