"""A client without data: it pulls the weights towards a target of its own."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsteer.flower import report_identity

app = ClientApp(mods=[report_identity])


@app.train()
def train(message: Message, context: Context) -> Message:
    """A tenth of the way."""
    partition = int(context.node_config["partition-id"])
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    weights = weights + 0.1 * (np.cos(np.arange(weights.size) + partition) - weights)
    metrics = MetricRecord({"num-examples": 10 + partition, "train_loss": float(partition)})
    content = RecordDict({"arrays": ArrayRecord([weights]), "metrics": metrics})
    return Message(content, reply_to=message)
