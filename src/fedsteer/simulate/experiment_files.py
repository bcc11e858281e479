"""Experiments as TOML: read from files, changed by --set, written with explanations."""

import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError, unknown
from fedsteer.options import default_of
from fedsteer.reading import reading
from fedsteer.simulate.experiment import KINDS, Experiment, Kinds, kinds_that_know

WORDS = {"True": True, "False": False, "None": "none"}  # as Python spells them
WIDTH = 34  # of a setting, before its meaning


def shipped_experiments(folder: str = "") -> dict[str, str]:
    """Name -> TOML text of every experiment in the package, or of the files in a subfolder."""
    entries = (files("fedsteer") / "experiments" / folder).iterdir()
    texts = {e.name: e.read_text() for e in entries if e.name.endswith(".toml")}
    return {name.removesuffix(".toml"): texts[name] for name in sorted(texts)}


def load_experiment(name: str, settings: Mapping[str, Any] | None = None) -> Experiment:
    """An experiment by shipped name or path to a TOML file, with settings on top."""
    path, shipped = Path(name), shipped_experiments()
    own = name.endswith(".toml")
    if not own and name not in shipped:
        raise unknown("experiment", name, shipped)
    with reading(name, "valid TOML", error=ConfigurationError):
        table = tomllib.loads(path.read_text("utf-8-sig") if own else shipped[name])
        experiment = Experiment(name=path.stem if own else name).updated(table)
        if own:
            experiment = _beside(path.parent, experiment)
    return experiment.changed(settings or {})


def _beside(folder: Path, experiment: Experiment) -> Experiment:
    """Files that an experiment names are beside it, unless they are only elsewhere."""
    found: dict[str, str] = {}
    for section in ("data", "participation"):
        options = getattr(experiment, section)
        for entry in fields(options):
            place = getattr(options, entry.name) if entry.metadata["path"] else None
            if place is not None and (folder / place).exists():
                found[f"{section}.{entry.name}"] = str(folder / place)
    return experiment.changed(found)


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
        except (ValueError, RecursionError):  # also a number of too many digits
            settings[key.strip()] = WORDS.get(text.strip(), text)
    return settings


def settings_toml(experiment: Experiment) -> str:
    """An experiment as TOML in which every setting says what it means.

    `load_experiment` reads it. Settings of kinds that the experiment does not use are comments.
    """
    lines = []
    if experiment.title:
        lines.append(f"title = {_toml(experiment.title)}")
    lines += [f"seeds = {experiment.seeds}", "rules = ["]
    lines += [f"    {_toml(rule)}," for rule in experiment.rules] + ["]"]
    for field in fields(experiment):
        section = getattr(experiment, field.name)
        if is_dataclass(section):
            about = (inspect.getdoc(section) or "").partition("\n")[0]
            lines += ["", f"# {about}", f"[{field.name}]"]
            lines += _settings(section, KINDS.get(field.name, {}))
    for name in ("options", "variants"):
        for key, table in getattr(experiment, name).items():
            lines += ["", f"[{name}.{_key(key)}]"]
            lines += [f"{_key(k)} = {_toml(v)}" for k, v in table.items() if v is not None]
    return "\n".join(lines) + "\n"


def _settings(section: Any, kinds: Kinds) -> Iterator[str]:
    if kinds:
        yield _line("kind", section.kind, ", ".join(kinds))
    for field in fields(section):
        yield _line(field.name, getattr(section, field.name), field.metadata["help"])
    shown = {field.name for field in fields(section)}
    for options in kinds.values():
        for field in fields(options):
            if field.name not in shown:
                shown.add(field.name)
                owners = ", ".join(kinds_that_know(kinds, field.name))
                meaning = f"{owners}: {field.metadata['help']}"
                yield _line(field.name, default_of(field), meaning, comment=True)


def _line(name: str, value: Any, meaning: str, comment: bool = False) -> str:
    setting = f"{name} = {_toml(value)}" if value is not None else f"{name} = ..."
    if comment or value is None:
        setting = f"# {setting}"
    return f"{setting:<{WIDTH}}  # {meaning}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(k))} = {_toml(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
