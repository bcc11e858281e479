"""`fedsteer data`: list, check and fetch data sets."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fedsteer.cli.shared import add_command


def add(commands: Any) -> None:
    """Add the command."""
    parser = add_command(commands, "data", execute)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("list", help="what there is").set_defaults(names=[])
    for action, words, many in (
        ("check", "verify the files; without a name, of all data sets", "*"),
        ("fetch", "download the official files", "+"),
    ):
        own = actions.add_parser(action, help=words, description=words[0].upper() + words[1:] + ".")
        own.add_argument("names", nargs=many, metavar="NAME", help="data sets")
        own.add_argument("--folder", type=Path, help="look or put the files here")


def execute(options: argparse.Namespace) -> int:
    """Run it."""
    from fedsteer.data import CATALOGUE, check, fetch
    from fedsteer.data.catalogue import source_of

    for name in options.names:
        source_of(name)
    if options.action == "list":
        width = max(map(len, CATALOGUE))
        for name, entry in CATALOGUE.items():
            print(f"{name:<{width}}  {entry.description}")
        return 0
    if options.action == "fetch":
        for name in options.names:
            print(f"{name}: {fetch(name, folder=options.folder)}")
        return 0
    whole = True
    for name in options.names or CATALOGUE:
        found = check(name, folder=options.folder)
        whole &= found.ok or not options.names
        print(f"{name}: {found.state}" + (f", {found.problem}" if found.problem else ""))
        if found.dataset is not None:
            train, test = len(found.dataset.train_labels), len(found.dataset.test_labels)
            print(f"  {train:,} training and {test:,} test images in {found.folder or 'memory'}")
    return 0 if whole else 2
