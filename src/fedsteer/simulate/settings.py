"""An experiment as a TOML file in which every setting says what it means.

The meanings stand beside the fields of the dataclasses (`fedsteer.options.option`).
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fedsteer.simulate.experiment import Experiment

WIDTH = 34  # of a setting, before its meaning


def settings_toml(experiment: Experiment) -> str:
    """All settings of an experiment; `load_experiment` reads it."""
    lines = []
    if experiment.title:
        lines.append(f"title = {_toml(experiment.title)}")
    lines += [f"seeds = {experiment.seeds}", "rules = ["]
    lines += [f"    {_toml(rule)}," for rule in experiment.rules] + ["]"]
    for field in fields(experiment):
        section = getattr(experiment, field.name)
        if is_dataclass(section):
            lines += ["", f"# {_first_line(section)}", f"[{field.name}]", *_settings(section)]
    for name in ("options", "variants"):
        for key, table in getattr(experiment, name).items():
            lines += ["", f"[{name}.{_key(key)}]"]
            lines += [f"{_key(k)} = {_toml(v)}" for k, v in table.items() if v is not None]
    return "\n".join(lines) + "\n"


def _settings(section: Any) -> Iterator[str]:
    for field in fields(section):
        value = getattr(section, field.name)
        setting = f"{field.name} = {_toml(value)}" if value is not None else f"# {field.name} = ..."
        yield f"{setting:<{WIDTH}}  # {field.metadata['help']}"


def _first_line(section: Any) -> str:
    return (inspect.getdoc(type(section)) or "").splitlines()[0]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(str(k))} = {_toml(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
