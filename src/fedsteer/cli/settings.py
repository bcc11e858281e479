"""`fedsteer settings`: every setting of an experiment and what it means."""

from __future__ import annotations

import argparse
from typing import Any

from fedsteer.cli.shared import add_command, add_settings, read_experiment

EPILOG = """examples:
  fedsteer settings                                   of the embedded digits
  fedsteer settings emnist --set partition.kind=dirichlet
  fedsteer settings cifar-10 > mine.toml              a file to change; then: fedsteer run mine.toml

Options of rules (`options.RULE.NAME`): fedsteer rules RULE.
"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "settings",
        execute,
        help="every setting of an experiment",
        description="Print an experiment as a TOML file in which every setting says what it means.",
        epilog=EPILOG,
    )
    add_settings(parser)


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    from fedsteer.simulate.experiment_files import settings_toml

    print(settings_toml(read_experiment(options)), end="")
    return 0
