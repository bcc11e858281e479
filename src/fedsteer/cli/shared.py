"""What several commands share: checks of what was typed, and words about runs."""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from fedsteer.errors import ConfigurationError
from fedsteer.records import Run


def read_experiment(options: argparse.Namespace) -> Any:
    """The experiment these arguments mean."""
    # Here, because it imports torch, which a report does not need.
    from fedsteer.simulate.experiment_files import load_experiment, parse_settings

    if options.data is not None and Path(options.data).is_dir():
        raise ConfigurationError(
            f"--data names a data set, not a folder; --set data.folder={options.data} says where "
            "its files are"
        )
    short = {"data.name": options.data, "run.rounds": options.rounds, "run.device": options.device}
    settings: dict[str, Any] = {key: value for key, value in short.items() if value is not None}
    settings |= parse_settings(options.set)
    experiment = load_experiment(options.experiment, settings)
    if (words := experiment.without_effect(settings)) is not None:
        raise ConfigurationError(words)
    # Other data make another experiment, with its own folder.
    shipped, data = load_experiment(options.experiment), experiment.data.name
    if data != shipped.data.name and experiment.name == shipped.name:
        title = f"{shipped.title}; here: {data}" if shipped.title == experiment.title != "" else ""
        experiment = replace(experiment, name=f"{shipped.name}-{data}", title=title)
    return experiment


def writable(folder: Path) -> Path:
    """The folder, if it can be written to.

    It is not made yet, so a mistake that shows later leaves no empty folder.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        TemporaryFile(dir=there).close()
    except OSError as error:
        raise ConfigurationError(f"cannot write to {folder}: {error.strerror}") from None
    return folder


def tell_failures(runs: Iterable[Run]) -> int:
    """One line on stderr for every run that could not continue; the exit code."""
    failed = {run.folder: reason for run in runs if (reason := _failure(run)) is not None}
    for folder, reason in failed.items():
        print(f"fedsteer: {folder} stopped: {reason}", file=sys.stderr)
    return 1 if failed else 0


def _failure(run: Run) -> str | None:
    if run.damage is not None:
        return run.failure or run.damage
    return None if run.finished else run.failure


def tell_left_out(count: int, where: str) -> None:
    """One line on stderr about runs that were found but are not shown."""
    if count:
        one = "run, of another table, of tuning or a copy, is"
        many = "runs, of other tables, of tuning or copies, are"
        print(f"fedsteer: {count} {one if count == 1 else many} not {where}", file=sys.stderr)
