"""Flower: apps of the Message API on its simulation engine with ray, stock FedAvg.

A round is what Flower's `Strategy.start` does between two calls of `configure_train`: messages to
the nodes, ClientApps in ray actors, replies, aggregation. The ServerApp tells each node whose data
to train on, so that the cohort is the same as on the other sides; actors load the data once.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.peers.module import initial_module
from benchmarks.peers.protocol import Channel, Gate, Orders, load_work
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import MessageType
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsteer.bench.sides import ENDLESS, train
from fedsteer.bench.workloads import Work

FOLDER, THREADS = "FEDSTEER_BENCH_FOLDER", "FEDSTEER_BENCH_THREADS"

client_app = ClientApp()


class Over(Exception):
    """Raised to leave Flower's loop."""


@lru_cache(maxsize=1)
def _loaded() -> tuple[Work, torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Once in every actor."""
    torch.set_num_threads(int(os.environ[THREADS]))
    work = load_work(Path(os.environ[FOLDER]))
    images, labels = torch.from_numpy(work.images), torch.from_numpy(work.labels)
    return work, work.workload.network().factory(), images, labels


@client_app.train()
def train_client(message: Message, context: Context) -> Message:
    """One client's epochs."""
    work, module, images, labels = _loaded()
    (arrays,) = message.content.array_records.values()
    (config,) = message.content.config_records.values()
    module.load_state_dict(arrays.to_torch_state_dict())
    own = work.own(int(str(config["client"])))
    train(module, images[own], labels[own], work.workload)
    answer = RecordDict()
    answer["arrays"] = ArrayRecord(module.state_dict())
    answer["metrics"] = MetricRecord({"num-examples": work.workload.points})
    return Message(answer, reply_to=message)


class Watched(FedAvg):
    """FedAvg with our cohorts; waits at the gate between rounds."""

    def __init__(self, work: Work, channel: Channel) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.work = work
        self.latest: ArrayRecord | None = None
        self.gate = Gate(
            channel,
            self.weights,
            version=f"flwr {version('flwr')}, ray {version('ray')}, torch {torch.__version__}",
        )

    def weights(self) -> Any:
        """In torch's order; the records hold all parameters and nothing else."""
        assert self.latest is not None
        values = self.latest.to_torch_state_dict().values()
        return np.concatenate([value.numpy().reshape(-1) for value in values])

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for every client of the cohort."""
        self.latest = arrays
        if not self.gate.next_round():
            raise Over
        cohort = self.work.cohort(server_round - 1)
        nodes = sorted(grid.get_node_ids())[: len(cohort)]
        messages = []
        for node, client in zip(nodes, cohort, strict=True):
            content = RecordDict()
            content["arrays"], content["config"] = arrays, ConfigRecord({"client": client})
            messages.append(Message(content, node, MessageType.TRAIN))
        return messages


def run(work: Work, orders: Orders, channel: Channel) -> None:
    """Flower's own loop."""
    os.environ |= {
        FOLDER: str(orders.folder),
        THREADS: str(orders.threads),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    from flwr.simulation import run_simulation

    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord(initial_module(work).state_dict())
        try:
            Watched(work, channel).start(grid, start, num_rounds=ENDLESS)
        except Over:
            return

    cores = max(orders.threads, orders.processes)
    try:
        run_simulation(
            server_app,
            client_app,
            num_supernodes=work.workload.clients,
            backend_config={
                "init_args": {"address": "local", "num_cpus": cores},
                "client_resources": {"num_cpus": orders.threads, "num_gpus": 0.0},
            },
        )
    except BaseException:
        # The ServerApp's thread still waits at the gate and would keep this process alive.
        traceback.print_exc()
        os._exit(1)
