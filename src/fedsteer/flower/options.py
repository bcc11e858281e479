"""Options of a strategy, as keyword arguments and as keys of Flower's run configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError, check_name, unknown
from fedsteer.flower.buffers import STATISTICS
from fedsteer.flower.identity import client_name
from fedsteer.options import check_options, listed, numbers_by_client, option
from fedsteer.privacy import Privacy
from fedsteer.records import Run
from fedsteer.records.names import label_of
from fedsteer.rules import RULES, Algorithm, preset_options
from fedsteer.steering.optimiser import METHODS
from fedsteer.steering.rounds import LARGEST_COUNT

PREFIX = "fedsteer-"
SAMPLING = "sampling"
"""A source of probabilities for servers that sample: the share of the nodes that was asked."""
NAMING_CLIENTS = ("core_set", "frequencies", "clusters")
"""Options of rules that name clients by their reported ids."""


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """How the strategy works with Flower; the rule has its own options.

    Options with the names of Flower's own mean the same here, except that the strategy waits for no
    client once training has begun.
    """

    fraction_train: float = option(1.0, "share of online nodes asked to train", low=0.0, high=1.0)
    fraction_evaluate: float = option(1.0, "share asked to evaluate", low=0.0, high=1.0)
    min_train_nodes: int = option(1, "ask at least this many, if they are online", low=0)
    min_evaluate_nodes: int = option(1, "ask at least this many, if they are online", low=0)
    min_available_nodes: int = option(1, "wait for this many, before round 1 only", low=0)
    registration_timeout: float = option(300.0, "seconds to wait for them", low=0.0)
    enough: float = option(
        1.0, "a round closes once this share of those asked has answered", above=0.0, high=1.0
    )
    back_off: bool = option(False, "ask clients less often that failed in several rounds in a row")
    server_rate: float = option(1.0, "learning rate of the server", above=0.0)
    server_optimiser: str = option("sgd", "turns the aggregate into a step", choices=METHODS)
    server_average: int = option(
        0, "rounds in an averaged model, which is the final result; 0: there is none", low=0
    )
    authenticated: bool = option(
        False, "a client is its SuperNode's key; without one it is refused"
    )
    population: Mapping[int | str, float] | None = option(
        None, "{id: data points} if all clients are known; others are left out"
    )
    known_probabilities: Mapping[int | str, float] | None = option(
        None, "{id: p} if participation is known; other clients are not used"
    )
    privacy: Privacy | None = option(
        None, "clip and noise updates, and count what that costs each client"
    )
    weighted_by_key: str = option("num-examples", "metric with a client's number of data points")
    arrayrecord_key: str = option("arrays", "name of the arrays in messages")
    configrecord_key: str = option("config", "name of the configuration in messages")
    steer: tuple[str, ...] = option(("*",), "name patterns of the arrays to steer")
    buffers: tuple[str, ...] = option(
        STATISTICS, "name patterns of the arrays to average over the fresh clients instead"
    )
    folder: str | None = option(None, "for records and checkpoint; without it nothing is written")
    checkpoint_every: int = option(1, "rounds between checkpoints", low=1)
    resume: bool = option(True, "resume from the checkpoint in the folder, if there is one")
    experiment: str = option("flower", "the name of this run in reports")

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("steer", "buffers"):  # a single pattern may be plain text
            value = getattr(self, name)
            patterns = (value,) if isinstance(value, str) else listed(name, value, "name patterns")
            object.__setattr__(self, name, patterns)
        for name, most in (("population", LARGEST_COUNT), ("known_probabilities", 1.0)):
            if (table := getattr(self, name)) is not None:
                numbers_by_client(name, table, above=0.0, high=most)
                object.__setattr__(self, name, _by_name(name, table))
        if self.folder is not None and not isinstance(self.folder, (str, os.PathLike)):
            raise ConfigurationError(f"folder must be a path, not {self.folder!r}")
        if not isinstance(self.privacy, Privacy | None):
            raise ConfigurationError(f"privacy must be a Privacy(...), not {self.privacy!r}")

    def meaning_of(self, preset: str, kind: type[Algorithm]) -> dict[str, Any]:
        """The options that a preset stands for; in a run that resumes, as when it began."""
        if self.folder is not None and self.resume:
            before = Run(Path(self.folder))
            meant = before.preset_options
            if meant is not None and before.label == label_of(f"{kind.name}:{preset}"):
                return meant
        return preset_options(kind, preset)


def _by_name(option: str, table: Mapping[int | str, Any]) -> dict[str, Any]:
    """{client: value} with full client names."""
    named = {client_name(client): value for client, value in table.items()}
    if len(named) < len(table):
        raise ConfigurationError(f"{option} names a client twice: 7 and 'client-7' are the same")
    return named


def split_options(
    rule: str, preset: str, arguments: Mapping[str, Any]
) -> tuple[StrategyOptions, dict[str, Any]]:
    """Split keyword arguments into the strategy's options and the rule's."""
    own = {entry.name for entry in fields(StrategyOptions)}
    known = own | {entry.name for entry in fields(RULES[rule].options_type)}
    for name in arguments:
        if name not in known:
            raise unknown(f"option of {rule}", name, known)
    options = StrategyOptions(**{name: arguments[name] for name in arguments if name in own})
    # A bad reply should cost the share of one client, not the round.
    chosen: dict[str, Any] = {"bad_clients": "drop"}
    if options.known_probabilities is not None:
        chosen["probabilities"] = "known"
    elif preset != "practical":
        chosen["probabilities"] = "shrunk"
    chosen |= {name: arguments[name] for name in arguments if name not in own}
    for name in NAMING_CLIENTS:
        if isinstance(chosen.get(name), Mapping):
            chosen[name] = _by_name(name, chosen[name])
        elif name == "core_set" and chosen.get(name) is not None:
            chosen[name] = tuple(map(client_name, listed(name, chosen[name], "clients")))
    if chosen.get("probabilities") == SAMPLING:
        if options.known_probabilities is not None:
            raise ConfigurationError("give either known_probabilities or probabilities='sampling'")
        if not options.fraction_train:
            raise ConfigurationError("probabilities='sampling' needs a fraction_train above 0")
        chosen["probabilities"] = "known"  # every round has them
    elif chosen.get("probabilities") == "known" and options.known_probabilities is None:
        raise ConfigurationError("probabilities='known' needs known_probabilities={id: p, ...}")
    return options, chosen


def clients_named(options: StrategyOptions, rule_options: Any) -> dict[str, set[str]]:
    """The clients that options name, by option."""
    named = {name: getattr(options, name) for name in ("population", "known_probabilities")}
    named |= {name: getattr(rule_options, name, None) for name in NAMING_CLIENTS}
    return {name: set(clients) for name, clients in named.items() if clients}


def from_run_config(rule: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments from the keys "fedsteer-..." of `context.run_config`.

    `fedsteer-core-size = 10` becomes core_size=10. Run configurations have no lists, tables or
    empty values: write "a, b" for a list, "3=0.1, 7=0.9" for a table, "none" for no value.
    """
    options = {entry.name: entry for entry in fields(StrategyOptions)}
    options |= {entry.name: entry for entry in fields(RULES[rule].options_type)}
    known = [*options, "preset"]
    chosen: dict[str, Any] = {}
    for key, value in config.items():
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX).replace("-", "_")
        if name not in known:
            others = [r for r in RULES if name in {e.name for e in fields(RULES[r].options_type)}]
            if others:
                raise ConfigurationError(f"{key} is for {', '.join(others)}, not for {rule}")
            raise unknown("run config key", key, [PREFIX + k.replace("_", "-") for k in known])
        chosen[name] = _value(key, value, options[name]) if name in options else str(value)
    return chosen


def _value(key: str, value: Any, entry: Field[Any]) -> Any:
    """Convert a value of a run configuration to the option's type."""
    kind = str(entry.type)
    if isinstance(value, str):
        if "None" in kind and value.strip().lower() in ("none", ""):
            return None
        if "Mapping" in kind:
            return _table(key, value, int if "int]" in kind else float)
        if "Privacy" in kind:
            return _privacy(key, value)
        if kind == "bool" and value.lower() in ("true", "false"):
            return value.lower() == "true"
    if "tuple" in kind:
        parts = [part.strip() for part in str(value).split(",") if part.strip()]
        try:
            return tuple(map(int, parts) if "int, int" in kind else parts)
        except ValueError:
            raise ConfigurationError(f"{key} must be whole numbers, not {value!r}") from None
    if kind.startswith("str") and "float" not in kind:
        return str(value)
    return value  # the options themselves check the rest


def _privacy(key: str, text: str) -> Privacy:
    """The settings that a text like "clip=1, noise=8, where=client" means."""
    table = _table(key, text, lambda value: value if value.isalpha() else float(value))
    for name in table:
        check_name("setting of privacy", name, [entry.name for entry in fields(Privacy)])
    return Privacy(**table)


def _table(key: str, text: str, number: Callable[[str], Any]) -> dict[str, Any]:
    """The table that a text like "3=0.1, 7=0.9" means."""
    pairs = [part.rpartition("=") for part in text.split(",") if part.strip()]
    try:
        table = {client.strip(): number(value) for client, _, value in pairs}
    except ValueError:
        table = {"": 0}
    if "" in table:
        raise ConfigurationError(f"{key} must read like '3=0.1, 7=0.9', not {text!r}")
    if len(table) < len(pairs):
        raise ConfigurationError(f"{key} names a client twice: {text!r}")
    return table
