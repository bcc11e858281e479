"""fedsteer and the plain loop, as `fedsteer bench` measures them, in a worker process."""

from __future__ import annotations

from benchmarks.peers.protocol import Channel, Gate, Orders

from fedsteer.bench.measure import Variant
from fedsteer.bench.sides import SIDES
from fedsteer.bench.workloads import Work


def run(work: Work, orders: Orders, channel: Channel) -> None:
    """Round after round."""
    side = SIDES[orders.side].start(work, Variant("", orders.threads))
    gate = Gate(channel, side.weights, settle=side.settle, **side.facts)
    while gate.next_round():
        side.round()
