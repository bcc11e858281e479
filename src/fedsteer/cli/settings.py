"""`fedsteer settings`: every setting of an experiment and what it means."""

import argparse

from fedsteer.cli.shared import read_experiment
from fedsteer.simulate.experiment_files import settings_toml


def execute(options: argparse.Namespace) -> int:
    print(settings_toml(read_experiment(options)), end="")
    return 0
