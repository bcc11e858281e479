"""The worker process of one side: its arguments are SIDE FOLDER THREADS PROCESSES [DEVICE].

`measure` starts it; nobody needs to call it by hand.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from fedsteer.bench.protocol import Channel
from fedsteer.bench.sides import How
from fedsteer.bench.work import load_work


def main(side: str, folder: str, threads: str, processes: str, device: str = "cpu") -> None:
    """Load the work and hand it to the side."""
    channel = Channel()
    how = How(int(threads), int(processes), device, Path(folder))
    import_module(f"fedsteer.bench.sides.{side}").run(load_work(Path(folder)), how, channel)


if __name__ == "__main__":
    main(*sys.argv[1:])
