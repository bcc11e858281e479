"""What is run: one frozen dataclass per section of an experiment file.

An experiment is a TOML file, by path or by the name of one that ships with the package. Every
section and key is checked; an unknown one is an error that names the nearest valid one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, get_type_hints

from fedsteer.errors import ConfigurationError, unknown
from fedsteer.options import check_options, check_value, option, single
from fedsteer.rules import RULES
from fedsteer.steering.optimiser import ServerOptimiser
from fedsteer.training.local import LocalTraining

PRECISIONS = ("fast", "float32")
DEVICES = ("cpu", "cuda")
WORDS = {"True": True, "False": False, "None": "none"}  # as Python has them
MOST_WHOLE = 1 << 63  # of any whole number in a setting
MOST_CLIENTS, MOST_ROUNDS, MOST_THREADS = 10_000_000, 1_000_000_000, 1_024


@dataclass(frozen=True)
class Data:
    """Which images. `folder` overrides where they are searched."""

    name: str = option("digits", "`fedsteer data list`")
    folder: str | None = option(None, "default: $FEDSTEER_DATA, then the cache")
    options: dict[str, Any] = option({}, "of the made-up data set only")


@dataclass(frozen=True)
class PartitionPlan:
    """Who holds what: label-groups (the paper's), dirichlet, shards or iid."""

    kind: str = option("label-groups", "label-groups, dirichlet, shards or iid")
    clients: int = option(100, "how many there are", low=1, high=MOST_CLIENTS)
    points: int | None = option(None, "per client on average; left out or none: all there are")
    gamma: float = option(0.9, "label-groups: share of clients in the common group")
    labels_per_client: float = option(
        1.0, "label-groups: share of its group's labels a client holds"
    )
    alpha: float = option(0.3, "dirichlet: smaller is more skewed")
    shards_per_client: int = option(2, "shards: of points sorted by label")
    replace: bool = option(False, "clients may share points (needed where N exceeds the data)")


@dataclass(frozen=True)
class ParticipationPlan:
    """Who is there: groups (the paper's), bernoulli, markov, diurnal, trace or everybody."""

    kind: str = option("groups", "groups, bernoulli, markov, diurnal, trace or everybody")
    weak: float = option(0.04, "groups, markov, diurnal: probability of the weak ...")
    powerful: float = option(0.16, "... and of the powerful clients")
    share: float = option(0.5, "share of weak clients")
    probabilities: list[float] | None = option(None, "any vector instead of the two groups")
    mean_on: float = option(4.0, "markov: mean number of rounds a client stays")
    amplitude: float = option(0.8, "diurnal: how much of p comes and goes with the day")
    period: float = option(24.0, "diurnal: rounds a day")
    phases: str = option("common", 'diurnal: everybody\'s day at once, or "spread"')
    trace: str | None = option(None, "trace: a file, see docs/traces.md")
    round_seconds: float = option(600.0, "trace: length of a round")
    reported: str = option("known", "what rules are told of p: known, estimated, or wrong")
    wrong_factor: float = option(1.0, 'reported = "wrong": p times this ...')
    wrong_noise: float = option(0.0, "... times exp(noise), per client")


@dataclass(frozen=True)
class Model:
    """Which network: a name or "package.module:factory", and its options."""

    name: str = option("mlp", 'or "package.module:factory": factory(shape, classes, **options)')
    options: dict[str, Any] = option({}, "e.g. hidden = [64]")


GROUPS, BY_ODDS = ("weak", "powerful", "share"), ("groups", "bernoulli", "markov", "diurnal")
ONLY_FOR: dict[str, dict[str, tuple[str | None, ...]]] = {
    "partition.gamma": {"kind": ("label-groups",)},
    "partition.labels_per_client": {"kind": ("label-groups",)},
    "partition.alpha": {"kind": ("dirichlet",)},
    "partition.shards_per_client": {"kind": ("shards",)},
    **{f"participation.{name}": {"kind": BY_ODDS, "probabilities": (None,)} for name in GROUPS},
    "participation.probabilities": {"kind": BY_ODDS},
    "participation.mean_on": {"kind": ("markov",)},
    "participation.amplitude": {"kind": ("diurnal",)},
    "participation.period": {"kind": ("diurnal",)},
    "participation.phases": {"kind": ("diurnal",)},
    "participation.trace": {"kind": ("trace",)},
    "participation.round_seconds": {"kind": ("trace",)},
    "participation.wrong_factor": {"reported": ("wrong",)},
    "participation.wrong_noise": {"reported": ("wrong",)},
    "server.beta1": {"method": ("momentum", "adam", "yogi")},
    "server.beta2": {"method": ("adam", "yogi")},
    "server.tau": {"method": ("adam", "yogi")},
}
"""Settings that mean something only beside others of their section, which have one of these."""


@dataclass(frozen=True)
class RunPlan:
    """How long, how often, on what."""

    rounds: int = option(150, "of training; a warm-up comes before", low=1, high=MOST_ROUNDS)
    evaluate_every: int = option(10, "rounds", low=1)
    checkpoint_every: int = option(10, "rounds", low=1)
    device: str = option("cpu", "or cuda, cuda:1")
    engine: str = option("auto", "auto: by the static rule of fedsteer.training.engines")
    threads: int = option(0, "0: by the static rule", low=0, high=MOST_THREADS)
    precision: str = option(
        "fast", "of local training on a GPU: fast (tf32, bfloat16) or float32", choices=PRECISIONS
    )
    test_share: float = option(
        1.0, "of the test set, from its end (the authors' code uses .7)", above=0, high=1
    )
    watch: list[int] = option([5, 55, 95], "whose coordinates to record")
    baseline: str = option("fedavg", "comparisons are paired against this entry")


@dataclass(frozen=True)
class Experiment:
    """All sections. `rules` are the entries compared, `options` what a rule is told here."""

    name: str = "digits"
    title: str = ""
    data: Data = field(default_factory=Data)
    partition: PartitionPlan = field(default_factory=PartitionPlan)
    participation: ParticipationPlan = field(default_factory=ParticipationPlan)
    model: Model = field(default_factory=Model)
    training: LocalTraining = field(default_factory=LocalTraining)
    server: ServerOptimiser = field(default_factory=ServerOptimiser)
    run: RunPlan = field(default_factory=RunPlan)
    rules: list[str] = field(default_factory=lambda: ["fedsteer"])
    seeds: int = option(5, "how many, from 0 on", low=1)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # per rule name
    variants: dict[str, dict[str, Any]] = field(default_factory=dict)  # label -> rule and options

    def __post_init__(self) -> None:
        check_options(self)
        check_options(self.partition, "partition.")
        check_options(self.run, "run.")
        if not self.rules:
            raise ConfigurationError("rules must name at least one rule")
        if not self.name or self.name in (".", "..") or set(self.name) & set("/\\\0"):
            raise ConfigurationError(f"name is that of a folder, not {self.name!r}")
        if self.run.device.partition(":")[0] not in DEVICES:
            raise unknown("run.device", self.run.device, DEVICES)
        for rule in self.options:
            if rule not in RULES:
                raise unknown("rule in options", rule, RULES)
        for section, tables in (("options", self.options), ("variants", self.variants)):
            for name, table in tables.items():
                if not isinstance(table, Mapping):
                    raise ConfigurationError(f"{section}.{name} is a table, not a value")
        for rule, table in self.options.items():  # also of rules that are not asked for today
            known = {entry.name: entry for entry in fields(RULES[rule].options_type)}
            for key, value in table.items():
                if key not in known:
                    raise unknown(f"option of {rule}", key, known)
                check_value(known[key], single(value), f"options.{rule}.{key}")
        absent = [client for client in self.run.watch if not 0 <= client < self.partition.clients]
        if absent and self.run.watch != RunPlan().watch:
            last = self.partition.clients - 1
            raise ConfigurationError(f"run.watch names {absent[0]}; clients are 0 to {last}")

    def as_dict(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)

    def changed(self, settings: Mapping[str, Any]) -> Experiment:
        """With "section.key" settings on top."""
        table: dict[str, Any] = {}
        for path, value in settings.items():
            inner = table
            *sections, key = path.split(".")
            for section in sections:
                inner = inner.setdefault(section, {})
                if not isinstance(inner, dict):
                    raise ConfigurationError(f"{path} lies below a setting that has a value")
            inner[key] = value
        base = self
        for section in ("data", "model"):  # options belong to the name they came with
            old, new = getattr(self, section), table.get(section)
            if isinstance(new, dict) and new.get("name", old.name) != old.name:
                base = replace(base, **{section: replace(old, options={})})
        changed: Experiment = _merge(base, table, "")
        return changed

    def without_effect(self, settings: Iterable[str]) -> str | None:
        """Which of these settings changes nothing here, in words: it is for another kind."""
        for path in settings:
            section = path.partition(".")[0]
            for name, wanted in ONLY_FOR.get(path, {}).items():
                if (found := getattr(getattr(self, section), name)) not in wanted:
                    if wanted == (None,):
                        return f"{path} has no effect beside {section}.{name}"
                    words = " or ".join(map(str, wanted))
                    return f"{path} is for {section}.{name} = {words}; here it is {found}"
        return None


def shipped_experiments() -> dict[str, str]:
    """Name -> TOML text of every experiment in the package."""
    folder = files("fedsteer") / "experiments"
    return {
        entry.name.removesuffix(".toml"): entry.read_text()
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".toml")
    }


def load_experiment(name: str, settings: Mapping[str, Any] | None = None) -> Experiment:
    """An experiment by shipped name or path to a TOML file, with settings on top."""
    path = Path(name)
    if path.suffix == ".toml":
        try:
            text = path.read_text()
        except OSError as error:
            raise ConfigurationError(f"cannot read {name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigurationError(f"{name} is not valid TOML: not a text in UTF-8") from None
        title = path.stem
    else:
        shipped = shipped_experiments()
        if name not in shipped:
            raise unknown("experiment", name, shipped)
        text, title = shipped[name], name
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{name} is not valid TOML: {error}") from None
    experiment: Experiment = _merge(Experiment(name=title), table, "")
    if path.suffix == ".toml":
        experiment = _beside(path.parent, experiment)
    return experiment.changed(settings or {})


def _beside(folder: Path, experiment: Experiment) -> Experiment:
    """Files that an experiment names lie where it does, unless they only lie elsewhere."""
    named = {
        "participation.trace": experiment.participation.trace,
        "data.folder": experiment.data.folder,
    }
    there = {key: folder / place for key, place in named.items() if place is not None}
    return experiment.changed({key: str(path) for key, path in there.items() if path.exists()})


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """--set section.key=value pairs; values are TOML, a bare word is a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"--set wants section.key=value, not {pair!r}")
        try:
            whole = re.sub(r"^([+-]?)(?=\.\d)", r"\g<1>0", text.strip())  # .5 is 0.5
            settings[key.strip()] = tomllib.loads(f"value = {whole}")["value"]
        except ValueError:  # also a number of too many digits
            settings[key.strip()] = WORDS.get(text.strip(), text)
    return settings


def _merge(base: Any, table: Mapping[str, Any], where: str) -> Any:
    """A copy of dataclass `base` with the table's values, checked by name and kind."""
    known = {entry.name for entry in fields(base)}
    hints = get_type_hints(type(base))
    changes: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{where}{key}"
        if key not in known:
            raise unknown("setting", path, [f"{where}{name}" for name in known])
        current = getattr(base, key)
        if is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ConfigurationError(f"{path} is a section, not a value")
            changes[key] = _merge(current, value, f"{path}.")
        elif isinstance(current, dict):
            if not isinstance(value, Mapping):
                raise ConfigurationError(f"{path} is a table of options, not a value")
            changes[key] = _update(current, value)
        else:
            changes[key] = _fitting(value, hints[key], path)
    return replace(base, **changes)


def _update(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _update(merged[key], value) if both else value
    return merged


def _fitting(value: Any, hint: Any, path: str) -> Any:
    """The value if it is of the field's type; ints pass as floats, "none" as None."""
    kinds = getattr(hint, "__args__", (hint,)) if "|" in str(hint) else (hint,)
    if type(None) in kinds and value in (None, "none"):
        return None
    if isinstance(value, int) and abs(value) > MOST_WHOLE:
        raise ConfigurationError(f"{path} must be a number that fits into 64 bits")
    for kind in kinds:
        plain = getattr(kind, "__origin__", kind)
        if plain is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if plain is list and isinstance(value, list):
            return [_fitting(entry, kind.__args__[0], f"every entry of {path}") for entry in value]
        if isinstance(value, plain) and not (plain is int and isinstance(value, bool)):
            return value
    words = (
        "none" if k is type(None) else str(getattr(k, "__origin__", k).__name__) for k in kinds
    )
    wanted = " or ".join(words)
    raise ConfigurationError(f"{path} must be {wanted}, not {value!r:.80}")
