"""Participation as it is: whoever is online, or a sample of them; nobody absent is waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from logging import INFO, getLogger

from flwr.serverapp import Grid

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError
from fedsteer.flower.options import StrategyOptions

log = getLogger("flwr").log


def online(grid: Grid) -> dict[int, bytes]:
    """Nodes that are online now, and their public keys (empty where Flower tells none)."""
    return {node.node_id: bytes(node.public_key) for node in grid.get_nodes()}


def await_nodes(grid: Grid, wanted: int, seconds: float, pause: float = 1.0) -> dict[int, bytes]:
    """Nodes online once there are `wanted`, or when the time is over: the caller judges."""
    began, there = time.monotonic(), online(grid)
    said = -1
    while len(there) < wanted and (left := began + seconds - time.monotonic()) > 0:
        if len(there) != said:
            said = len(there)
            log(INFO, "fedsteer: waiting up to %.0f s for nodes: %s of %s", left, said, wanted)
        time.sleep(min(pause, left))
        there = online(grid)
    return there


def await_registration(options: StrategyOptions, grid: Grid) -> None:
    """Before the first round only: somebody has to be there to begin with."""
    wanted, limit = options.min_available_nodes, options.registration_timeout
    there = len(await_nodes(grid, wanted, limit))
    if there < wanted:
        raise ConfigurationError(
            f"{there} of {wanted} nodes had registered after {limit:g} seconds; start "
            "SuperNodes, or change min_available_nodes or registration_timeout"
        )


def sample(
    names: Mapping[int, str], fraction: float, least: int, seed: int, number: int, purpose: str
) -> list[int]:
    """A share of the nodes; a function of the seed, the round and who is online."""
    order = sorted(names, key=lambda node: (names[node], node))
    if fraction <= 0:
        return []
    count = min(max(least, 1, round(fraction * len(order))), len(order))
    if count == len(order):
        return order
    draw = generator(seed, f"sample for {purpose}", round=number)
    return [order[i] for i in sorted(draw.choice(len(order), count, replace=False).tolist())]
