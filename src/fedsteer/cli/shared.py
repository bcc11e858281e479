"""What several commands share: arguments, and checks of what was typed."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedsteer.errors import ConfigurationError

HELP = tomllib.loads((files("fedsteer.cli") / "help.toml").read_text())
"""Command -> help, description and epilog."""


def add_command(
    commands: Any, name: str, execute: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """The parser of a command that `execute` carries out."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = commands.add_parser(
        name, formatter_class=formatter, **HELP[name]
    )
    parser.set_defaults(execute=execute)
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Which experiment, and what to change in it."""
    parser.add_argument(
        "experiment",
        nargs="?",
        default="digits",
        help="a shipped experiment (digits, fashion-mnist, emnist, cifar-10) or a TOML file; "
        "default: digits",
    )
    parser.add_argument("--data", metavar="NAME", help="another data set, see `fedsteer data list`")
    parser.add_argument("--rounds", type=int, metavar="T", help="number of training rounds")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where to train; default: cpu")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change any setting (`fedsteer settings` names them), e.g. --set training.rate=0.05 "
        "--set options.fedsteer.ridge=1",
    )


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """The experiment, and how to run it."""
    add_settings(parser)
    parser.add_argument(
        "--resume", action="store_true", help="resume the run in --out (compare always does)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def add_execution(parser: argparse.ArgumentParser) -> None:
    """Where the runs of a comparison are executed, and how many at a time."""
    parser.epilog = f"{parser.epilog}{HELP['executors']['epilog']}"
    choices = ("processes", "ray")
    parser.add_argument(
        "--executor",
        choices=choices,
        default="processes",
        help="where runs are executed: processes of this machine (default), or a Ray cluster, see "
        "below; --set run.engine= says how a run trains its clients",
    )
    parser.add_argument(  # the old name
        "--engine",
        dest="executor",
        choices=choices,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help="most runs at a time; default, or 0: by the cores of the machine or of the cluster",
    )


def read_experiment(options: argparse.Namespace) -> Any:
    """The experiment these arguments mean."""
    from fedsteer.simulate.experiment_files import load_experiment, parse_settings

    settings: dict[str, Any] = {}
    if options.data is not None:
        settings["data.name"] = options.data
    if options.rounds is not None:
        settings["run.rounds"] = options.rounds
    if options.device is not None:
        settings["run.device"] = options.device
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


def place(text: str) -> Path:
    """A path from the command line; an empty one is a shell variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError("names nothing; the current folder is .")
    return Path(text)


def writable(folder: Path) -> Path:
    """The folder, if it can be written to.

    It is not made yet, so a mistake that shows later leaves no empty folder.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    except OSError as error:
        raise ConfigurationError(f"cannot write to {folder}: {error.strerror}") from None
    if not there.is_dir():
        words = "File exists" if there == folder else "Not a directory"
        raise ConfigurationError(f"cannot write to {folder}: {words}")
    if not os.access(there, os.W_OK | os.X_OK):
        fixed = hasattr(os, "statvfs") and os.statvfs(there).f_flag & os.ST_RDONLY
        words = "the file system is read-only" if fixed else "permission denied"
        raise ConfigurationError(f"cannot write to {folder}: {words}")
    return folder


def tell_failures(runs: Iterable[Any]) -> int:
    """One line on stderr for every run that could not continue; the exit code."""
    failed = [run for run in runs if run.failure is not None and not run.finished]
    for run in failed:
        print(f"fedsteer: {run.folder} stopped: {run.failure}", file=sys.stderr)
    return 1 if failed else 0


def tell_left_out(count: int, where: str) -> None:
    """One line on stderr about runs that were found but are not shown."""
    if count:
        one, many = "run, of another table or a copy, is", "runs, of other tables or copies, are"
        print(f"fedsteer: {count} {one if count == 1 else many} not {where}", file=sys.stderr)


def terminal_width() -> int | None:
    """Columns of the terminal; None if the output goes elsewhere and has to be complete."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
