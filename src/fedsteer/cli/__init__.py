"""The command line: one file per command. It uses argparse, so NumPy and torch are enough.

Bad input ends with one clear line on stderr and exit code 2; a run that cannot continue with exit
code 1; Ctrl-C with exit code 130 and everything finished so far on disk.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from fedsteer import __version__
from fedsteer.errors import FedsteerError, RoundRefused, TrainingFailed, extra


class Parser(argparse.ArgumentParser):
    """argparse, with one line for a mistake instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help says more\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    from fedsteer.cli import bench, compare, data, pack, report, reproduce, rules, run, settings
    from fedsteer.cli.shared import HELP

    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="fedsteer", formatter_class=formatter, **HELP["fedsteer"])
    parser.add_argument("--version", action="version", version=f"fedsteer {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in (run, compare, reproduce, report, pack, rules, settings, data, bench):
        command.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the encoding lacks is replaced
            stream.reconfigure(errors="replace")
    try:
        return _execute(sys.argv[1:] if arguments is None else arguments)
    except (RoundRefused, TrainingFailed) as error:  # a run failed; the input was fine
        print(f"fedsteer: {error}", file=sys.stderr)
        return 1
    except FedsteerError as error:
        print(f"fedsteer: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("torch", "sklearn", "safetensors", "matplotlib"):
            print(f"fedsteer: {missing} is not installed: {extra('sim')}", file=sys.stderr)
            return 2
        raise
    except KeyboardInterrupt:
        print("fedsteer: interrupted", file=sys.stderr)
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
    code = int(options.execute(options))
    sys.stdout.flush()
    return code
