"""`fedsteer settings`: every setting of an experiment and what it means."""

from __future__ import annotations

import argparse
from typing import Any

from fedsteer.cli.shared import add_command, add_settings, read_experiment


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(commands, "settings", execute)
    add_settings(parser)


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    from fedsteer.simulate.experiment_files import settings_toml

    print(settings_toml(read_experiment(options)), end="")
    return 0
