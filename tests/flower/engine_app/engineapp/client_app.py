"""A client without data: it pulls the weights towards a target of its own."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsteer.flower import report_identity

FAULTY = 1

app = ClientApp(mods=[report_identity])


@app.train()
def train(message: Message, context: Context) -> Message:
    """A tenth of the way, unless it is this client's turn to do something wrong."""
    partition = int(context.node_config["partition-id"])
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    step = 0.1 * (np.cos(np.arange(weights.size) + partition) - weights)
    size = 10 + partition
    fault = context.run_config["fault"] if partition == FAULTY else "none"
    since = message.content["config"]["server-round"] - context.run_config["fault-round"]
    if fault == "size" and since == 0:
        size = 1_000_000
    if fault == "size" and since > 0:
        raise RuntimeError("out of battery")  # its next report would put the size right
    if fault == "length" and since == 0:
        step *= 1e4
    metrics = MetricRecord({"num-examples": size, "train_loss": float(partition)})
    content = RecordDict({"arrays": ArrayRecord([weights + step]), "metrics": metrics})
    return Message(content, reply_to=message)
