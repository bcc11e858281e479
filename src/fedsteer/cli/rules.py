"""`fedsteer rules`: every rule, its options and their meaning."""

import argparse
import sys
import textwrap
from dataclasses import fields
from typing import Any

from fedsteer.errors import check_name
from fedsteer.options import default_of, describe_range
from fedsteer.rules import RULES, Algorithm, preset_options
from fedsteer.rules.options import Options

YARDSTICK = "FedAvg with every client present: the yardstick of comparisons."


def execute(options: argparse.Namespace) -> int:
    lines = {name: (rule.__doc__ or "").strip() for name, rule in RULES.items()}
    lines["full"] = YARDSTICK
    if options.name is None:
        width = max(map(len, lines))
        for name, line in lines.items():
            print(f"{name:<{width}}  {line}")
        print("\nfedsteer rules NAME explains one.")
        return 0
    name = options.name.partition(":")[0]  # presets are explained with their rule
    check_name("rule", name, lines)
    print(explain(RULES[name]) if name in RULES else YARDSTICK)
    return 0


def explain(rule: type[Algorithm]) -> str:
    """Equations, options, presets."""
    common = {entry.name for entry in fields(Options)}
    own = [f for f in fields(rule.options_type) if f.name not in common]
    shared = [f for f in fields(rule.options_type) if f.name in common]
    lines = [(sys.modules[rule.__module__].__doc__ or "").strip(), ""]
    if own:
        lines += ["Options", *(_line(entry) for entry in own), ""]
    lines += ["Options of every rule", *(_line(entry) for entry in shared), ""]
    practical = preset_options(rule, "practical")
    words = ", ".join(f"{key}={value!r}" for key, value in practical.items())
    return "\n".join([*lines, textwrap.fill(f'Preset "practical": {words}', 92)])


def _line(entry: Any) -> str:
    head = f"  {entry.name} = {default_of(entry)!r}"
    limits = describe_range(entry)
    body = entry.metadata["help"] + (f" [{limits}]" if limits else "")
    return f"{head}\n" + textwrap.fill(body, 92, initial_indent=" " * 6, subsequent_indent=" " * 6)
