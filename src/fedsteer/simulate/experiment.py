"""What is run: one frozen dataclass per section of an experiment file.

Every section and key is checked; an unknown one is an error that names the nearest valid one. The
sections [partition] and [participation] have one dataclass per `kind`, in `fedsteer.data` and
`fedsteer.participation`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from fedsteer.data import PARTITIONS, PartitionOptions
from fedsteer.errors import ConfigurationError, check_name, unknown
from fedsteer.options import check_options, check_value, default_of, option, single
from fedsteer.participation import PROCESSES, ParticipationOptions
from fedsteer.privacy import Privacy
from fedsteer.rules import RULES
from fedsteer.steering.optimiser import ServerOptimiser
from fedsteer.training.engines import ENGINES, OLD_NAMES
from fedsteer.training.local import LocalTraining

PRECISIONS = ("fast", "float32")
DEVICES = ("cpu", "cuda")
MOST_WHOLE = 1 << 63  # of any whole number in a setting
MOST_ROUNDS, MOST_THREADS, MOST_SEEDS = 1_000_000_000, 1_024, 10_000

Kinds = Mapping[str, type[Any]]
KINDS: dict[str, Kinds] = {"partition": PARTITIONS, "participation": PROCESSES}
"""Sections that have kinds: each kind has options of its own."""


@dataclass(frozen=True)
class Data:
    """Which images."""

    name: str = option("digits", "`fedsteer data list`")
    folder: str | None = option(None, "default: $FEDSTEER_DATA, then the cache", path=True)
    options: dict[str, Any] = option({}, "of the made-up data set only")


@dataclass(frozen=True)
class Model:
    """Which network: a name or "package.module:factory", and its options."""

    name: str = option("mlp", 'or "package.module:factory": factory(shape, classes, **options)')
    options: dict[str, Any] = option({}, "e.g. hidden = [64]")


@dataclass(frozen=True)
class RunPlan:
    """How long, how often, on what."""

    rounds: int = option(150, "of training; a warm-up comes before", low=1, high=MOST_ROUNDS)
    evaluate_every: int = option(10, "rounds", low=1)
    checkpoint_every: int = option(10, "rounds", low=1)
    device: str = option("cpu", "or cuda, cuda:1")
    engine: str = option("auto", "auto: by the static rule of fedsteer.training.engines")
    threads: int = option(0, "of torch; 0: by the static rule", low=0, high=MOST_THREADS)
    precision: str = option(
        "fast", "of local training on a GPU: fast (tf32, bfloat16) or float32", choices=PRECISIONS
    )
    test_share: float = option(
        1.0, "of the test set, from its end (the authors' code uses .7)", above=0, high=1
    )
    watch: list[int] = option([5, 55, 95], "clients whose coordinates are recorded")
    baseline: str = option("fedavg", "comparisons are paired with this rule")


@dataclass(frozen=True)
class Experiment:
    """All sections. `rules` are the rules compared, by name; `options` are theirs."""

    name: str = "digits"
    title: str = ""
    data: Data = field(default_factory=Data)
    partition: PartitionOptions = field(default_factory=PARTITIONS["label-groups"])
    participation: ParticipationOptions = field(default_factory=PROCESSES["groups"])
    model: Model = field(default_factory=Model)
    training: LocalTraining = field(default_factory=LocalTraining)
    server: ServerOptimiser = field(default_factory=ServerOptimiser)
    privacy: Privacy = field(default_factory=Privacy)
    run: RunPlan = field(default_factory=RunPlan)
    rules: list[str] = field(default_factory=lambda: ["fedsteer"])
    seeds: int = option(5, "how many, from 0 on", low=1, high=MOST_SEEDS)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # per rule name
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)  # label -> rule and options
    tuned: list[str] = field(default_factory=list)  # settings that every rule has of its own

    def __post_init__(self) -> None:
        check_options(self)
        check_options(self.run, "run.")
        if not self.rules:
            raise ConfigurationError("rules must name at least one rule")
        if not self.name or self.name in (".", "..") or set(self.name) & set("/\\\0"):
            raise ConfigurationError(f"name must be the name of a folder, not {self.name!r}")
        if self.run.device.partition(":")[0] not in DEVICES:
            raise unknown("run.device", self.run.device, DEVICES)
        for text in (self.name, self.title, *self.rules, *self.variants):
            if not text.isprintable():
                raise ConfigurationError(f"{text!r} has characters that nobody can read")
        check_name("run.engine", self.run.engine, ("auto", *ENGINES, *OLD_NAMES))
        after = getattr(self.partition, "swap_after", None)
        if after is not None and after >= self.run.rounds:
            raise ConfigurationError(
                f"partition.swap_after = {after} comes after the last round: run.rounds = "
                f"{self.run.rounds}"
            )
        for section, tables in (("options", self.options), ("variants", self.variants)):
            for name, table in tables.items():
                if not isinstance(table, Mapping):
                    raise ConfigurationError(f"{section}.{name} is a table, not a value")
        for rule, table in self.options.items():  # including rules that are not run
            check_name("rule in options", rule, RULES)
            known = {entry.name: entry for entry in fields(RULES[rule].options_type)}
            for key, value in table.items():
                check_name(f"option of {rule}", key, known)
                check_value(known[key], rule_option(value), f"options.{rule}.{key}")
        absent = [client for client in self.run.watch if not 0 <= client < self.partition.clients]
        if absent and self.run.watch != RunPlan().watch:
            last = self.partition.clients - 1
            raise ConfigurationError(f"run.watch names {absent[0]}; clients are 0 to {last}")

    def as_dict(self) -> dict[str, Any]:
        table = asdict(self)
        for name in KINDS:
            table[name] = {"kind": getattr(self, name).kind} | table[name]
        return table

    def changed(self, settings: Mapping[str, Any]) -> Experiment:
        """A copy with "section.key" settings on top."""
        table: dict[str, Any] = {}
        for path, value in settings.items():
            inner = table
            *sections, key = path.split(".")
            for section in sections:
                inner = inner.setdefault(section, {})
                if not isinstance(inner, dict):
                    raise ConfigurationError(f"{path} is below a setting that has a value")
            inner[key] = value
        return self.updated(table)

    def updated(self, table: Mapping[str, Any]) -> Experiment:
        """A copy with the values of a nested table on top, as read from TOML."""
        _check_sizes(table)
        base = self
        for section in ("data", "model"):  # options belong to the name they came with
            old, new = getattr(self, section), table.get(section)
            if isinstance(new, dict) and new.get("name", old.name) != old.name:
                base = replace(base, **{section: replace(old, options={})})
        return _merge(base, table, "")

    def without_effect(self, settings: Iterable[str]) -> str | None:
        """In words, the first of these settings that changes nothing beside the others."""
        for path in settings:
            name, _, key = path.partition(".")
            section = getattr(self, name)
            if not is_dataclass(section):
                continue
            needs = {e.name: e.metadata["only_if"] for e in fields(section)}
            owners = kinds_that_know(KINDS.get(name, {}), key)
            if owners and key not in needs:
                return _only_for(path, f"{name}.kind", owners, getattr(self, name).kind)
            for other, wanted in needs.get(key, {}).items():
                if (found := getattr(section, other)) not in wanted:
                    if wanted == (None,):
                        return f"{path} has no effect beside {name}.{other}"
                    return _only_for(path, f"{name}.{other}", wanted, found)
        return None


def rule_option(value: Any) -> Any:
    """The value of a rule's option as Python spells it: TOML has no None."""
    return None if value == "none" else single(value)


def kinds_that_know(kinds: Kinds, key: str) -> list[str]:
    return [kind for kind, options in kinds.items() if key in {e.name for e in fields(options)}]


def _only_for(path: str, other: str, wanted: Iterable[str | None], found: str) -> str:
    return f"{path} is for {other} = {' or '.join(map(str, wanted))}; here it is {found}"


def _merge(base: Any, table: Mapping[str, Any], where: str) -> Any:
    """A copy of dataclass `base` with the table's values, checked by name and type."""
    known = [entry.name for entry in fields(base)]
    hints = get_type_hints(type(base))
    changes: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{where}{key}"
        if inside := [] if where or key in known else _sections_with(base, key):
            raise ConfigurationError(
                f"unknown setting {key!r}; did you mean {' or '.join(inside)}?"
            )
        check_name("setting", path, [f"{where}{name}" for name in known])
        current = getattr(base, key)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigurationError(f"{path} is a section, not a value")
            if path in KINDS:
                current, value = _of_kind(current, value, KINDS[path], path)
            changes[key] = _merge(current, value, f"{path}.")
        elif isinstance(current, dict):
            if not isinstance(value, Mapping):
                raise ConfigurationError(f"{path} is a table of options, not a value")
            changes[key] = _update(current, value)
        else:
            changes[key] = _fitting(value, hints[key], path)
    return replace(base, **changes)


def _sections_with(base: Any, key: str) -> list[str]:
    """The settings of this name in any section."""
    sections = {entry.name: getattr(base, entry.name) for entry in fields(base)}
    return [
        f"{name}.{key}"
        for name, section in sections.items()
        if is_dataclass(section) and key in {entry.name for entry in fields(section)}
    ]


def _of_kind(
    current: Any, table: Mapping[str, Any], kinds: Kinds, section: str
) -> tuple[Any, dict[str, Any]]:
    """The options of the table's `kind`, and its settings in the table.

    Settings that both kinds know keep their values. Settings of other kinds must have their
    defaults: older files name them all.
    """
    kind = _fitting(table.get("kind", current.kind), str, f"{section}.kind")
    check_name(f"{section}.kind", kind, kinds)
    known = {entry.name for entry in fields(kinds[kind])}
    defaults = {e.name: default_of(e) for options in kinds.values() for e in fields(options)}
    for key, value in table.items():
        path = f"{section}.{key}"
        check_name("setting", path, [f"{section}.{name}" for name in ("kind", *defaults)])
        if key not in ("kind", *known) and value != defaults[key]:
            owners = kinds_that_know(kinds, key)
            raise ConfigurationError(_only_for(path, f"{section}.kind", owners, kind))
    if kind != current.kind:
        kept = {name: value for name, value in vars(current).items() if name in known}
        current = kinds[kind](**kept)
    return current, {key: value for key, value in table.items() if key in known}


def _update(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _update(merged[key], value) if both else value
    return merged


def _check_sizes(value: Any, path: str = "") -> None:
    """Refuse whole numbers that nothing can use; Python does not even print the longest."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            _check_sizes(entry, f"{path}.{key}".removeprefix("."))
    elif isinstance(value, list):
        for entry in value:
            _check_sizes(entry, f"every entry of {path}")
    elif isinstance(value, int) and abs(value) > MOST_WHOLE:
        raise ConfigurationError(f"{path} must be a number that fits into 64 bits")


def _fitting(value: Any, hint: Any, path: str) -> Any:
    """The value if it is of the field's type; ints pass as floats, "none" as None."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if type(None) in kinds and value in (None, "none"):
        return None
    for kind in kinds:
        plain = get_origin(kind) or kind
        if plain is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if plain is list and isinstance(value, list):
            (inner,) = get_args(kind)
            return [_fitting(entry, inner, f"every entry of {path}") for entry in value]
        if isinstance(value, plain) and not (plain is int and isinstance(value, bool)):
            return value
    words = ("none" if k is type(None) else (get_origin(k) or k).__name__ for k in kinds)
    raise ConfigurationError(f"{path} must be {' or '.join(words)}, not {value!r:.80}")
