"""`fedsteer data`: list, check and fetch data sets."""

import argparse

from fedsteer.data import CATALOGUE, check, fetch
from fedsteer.data.catalogue import source_of


def execute(options: argparse.Namespace) -> int:
    if options.action == "list":
        width = max(map(len, CATALOGUE))
        for name, entry in CATALOGUE.items():
            print(f"{name:<{width}}  {entry.description}")
        return 0
    for name in options.names:
        source_of(name)
    if options.action == "fetch":
        for name in options.names:
            print(f"{name}: {fetch(name, folder=options.folder)}")
        return 0
    whole = True
    for name in options.names or CATALOGUE:
        found = check(name, folder=options.folder)
        whole &= found.state == "ok" or not options.names
        print(f"{name}: {found.state}" + (f", {found.problem}" if found.problem else ""))
        if found.dataset is not None:
            train, test = len(found.dataset.train_labels), len(found.dataset.test_labels)
            print(f"  {train:,} training and {test:,} test images in {found.folder or 'memory'}")
    return 0 if whole else 2
