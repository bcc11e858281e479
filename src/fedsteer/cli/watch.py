"""`fedsteer watch`: runs as they go, in the terminal or as a page of this machine."""

import argparse

from fedsteer.errors import ConfigurationError
from fedsteer.watch.folder import LiveFolder
from fedsteer.watch.page import serve
from fedsteer.watch.terminal import print_once, watch

SHORTEST, LONGEST = 0.2, 3600.0


def execute(options: argparse.Namespace) -> int:
    if options.port is not None and not options.serve:
        raise ConfigurationError("--port goes with --serve")
    if options.once and options.serve:
        raise ConfigurationError("--once prints one frame; it does not go with --serve")
    if not SHORTEST <= options.every <= LONGEST:
        raise ConfigurationError(
            f"--every must be from {SHORTEST:g} to {LONGEST:g} seconds, not {options.every:g}"
        )
    folder = LiveFolder(options.folder)
    if options.once:
        print_once(folder)
        return 0
    if not options.serve:
        watch(folder, options.every)
    elif not folder.look().ended:  # nobody has a page open yet
        serve(folder, options.port or 0, options.every, _say)
    print(f"all runs have ended; their page: fedsteer report {options.folder}")
    return 0


def _say(address: str) -> None:
    print(f"{address} shows the runs, on this machine only; Ctrl-C ends it", flush=True)
