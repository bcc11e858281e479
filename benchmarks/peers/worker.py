"""The worker process of one side; `processes.Worker` starts it.

python -m benchmarks.peers.worker MODULE SIDE FOLDER THREADS PROCESSES
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from benchmarks.peers.protocol import Channel, Orders, load_work


def main(module: str, side: str, folder: str, threads: str, processes: str) -> None:
    """Load the work and hand it to the side."""
    channel = Channel()
    orders = Orders(side=side, folder=Path(folder), threads=int(threads), processes=int(processes))
    work = load_work(orders.folder)
    import_module(f"benchmarks.peers.sides.{module}").run(work, orders, channel)


if __name__ == "__main__":
    main(*sys.argv[1:])
