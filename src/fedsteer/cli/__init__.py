"""The command line: commands.toml declares the commands, one file each executes them.

Bad input ends with one clear line on stderr and exit code 2; a run that cannot continue with exit
code 1; Ctrl-C with exit code 130 and everything finished so far on disk.
"""

import argparse
import io
import os
import sys
import tomllib
from collections.abc import Sequence
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from fedsteer import __version__
from fedsteer.errors import FedsteerError, RoundRefused, TrainingFailed, extra

FORMATTER = argparse.RawDescriptionHelpFormatter


class Parser(argparse.ArgumentParser):
    """argparse, with one line for a mistake instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help says more\n")


def place(text: str) -> Path:
    """A path from the command line; an empty one is a shell variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError("names nothing; the current folder is .")
    return Path(text)


COMMANDS = tomllib.loads((files("fedsteer.cli") / "commands.toml").read_text())
"""Command -> help, description, epilog and arguments."""
TYPES = {"int": int, "float": float, "path": Path, "place": place}


def build_parser() -> argparse.ArgumentParser:
    tables = dict(COMMANDS)
    shared, texts = tables.pop("shared"), tables.pop("fedsteer")
    parser = Parser(prog="fedsteer", formatter_class=FORMATTER, **texts)
    parser.add_argument("--version", action="version", version=f"fedsteer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, table in tables.items():
        _add_command(commands, name, table, shared)
    return parser


def _add_command(commands: Any, name: str, table: dict[str, Any], shared: dict[str, Any]) -> None:
    texts = {key: table.get(key) for key in ("help", "description", "epilog")}
    parser = commands.add_parser(name, formatter_class=FORMATTER, **texts)
    for argument in table.get("arguments", ()):
        keywords = dict(table.get(argument) or shared[argument])
        parser.epilog = (parser.epilog or "") + keywords.pop("epilog", "")
        if keywords.pop("hidden", False):
            keywords |= {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        if "type" in keywords:
            keywords["type"] = TYPES[keywords["type"]]
        parser.add_argument(argument, **keywords)
    if "actions" in table:
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        for action in table["actions"]:
            _add_command(actions, action, table[action], shared)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the encoding lacks is replaced
            stream.reconfigure(errors="replace")
    try:
        return _execute(sys.argv[1:] if arguments is None else arguments)
    except FedsteerError as error:
        print(f"fedsteer: {error}", file=sys.stderr)
        input_was_fine = isinstance(error, (RoundRefused, TrainingFailed))
        return 1 if input_was_fine else 2
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("torch", "sklearn", "safetensors", "matplotlib"):
            print(f"fedsteer: {missing} is not installed: {extra('sim')}", file=sys.stderr)
            return 2
        raise
    except KeyboardInterrupt as stop:
        print(f"fedsteer: {str(stop) or 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has left; discard the rest, also at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a folder that was removed: not a bug
        where = f"{error.filename}: " if error.filename else ""
        print(f"fedsteer: {where}{error.strerror or error}", file=sys.stderr)
        return 2


def _execute(given: Sequence[str]) -> int:
    parser = build_parser()
    if not given:
        parser.print_help(sys.stderr)
        return 2
    options = parser.parse_args(given)
    if "" not in sys.path:  # the current folder may hold the user's "my_module:factory"
        sys.path.append("")
    code = int(import_module(f"fedsteer.cli.{options.command}").execute(options))
    sys.stdout.flush()
    return code
