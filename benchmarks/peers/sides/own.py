"""fedsteer and the plain loop, as `fedsteer bench` measures them, in a worker process."""

from __future__ import annotations

from benchmarks.peers.protocol import Channel, Gate, Orders

from fedsteer.bench.sides import start_fedsteer, start_plain
from fedsteer.bench.workloads import Work

STARTS = {"fedsteer": start_fedsteer, "plain": start_plain}


def run(work: Work, orders: Orders, channel: Channel) -> None:
    """Round after round."""
    side = STARTS[orders.side](work, orders.threads)
    gate = Gate(channel, side.weights, **side.facts)
    while gate.next_round():
        side.round()
