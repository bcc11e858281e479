"""`make chaos`: break runs at every kind of moment, and print what became of them."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Flower's dependencies
    from tests.chaos.matrix import (
        LEAST_KILLS,
        LONG,
        SHORT,
        kills_with_checkpoint,
        results_of,
        tables,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a sample that takes seconds")
    short = parser.parse_args().short
    torch.set_num_threads(1)  # threads would not survive a fork
    began, results = time.monotonic(), []
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # its syncs take no time
    with tempfile.TemporaryDirectory(prefix="chaos-", dir=in_memory) as place:
        for result in results_of(SHORT if short else LONG, Path(place).resolve()):
            results.append(result)
            if result.failure:
                print(f"{result.fault} of {result.world} at {result.call}: {result.failure}")
    print(tables(results))
    kills = kills_with_checkpoint(results)
    print(f"\n{len(results)} runs broken in {time.monotonic() - began:.0f} s")
    if not short and kills < LEAST_KILLS:
        print(f"only {kills} kills hit a run with a checkpoint, not {LEAST_KILLS}")
        return 1
    return int(any(result.failure for result in results))


sys.exit(main())
