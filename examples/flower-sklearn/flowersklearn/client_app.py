"""A scikit-learn client."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsteer.flower import report_identity
from flowersklearn.task import fit, is_there, partition

app = ClientApp(mods=[report_identity])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Fit, unless this client is away."""
    config = context.run_config
    client, seed = int(context.node_config["partition-id"]), int(config["seed"])
    number = int(message.content["config"]["server-round"])
    if not is_there(client, number, float(config["often"]), float(config["rarely"]), seed):
        return Message(Error(code=0, reason="away"), reply_to=message)
    images, labels = partition(client, int(config["clients"]), seed)
    weights = message.content["arrays"].to_numpy_ndarrays()
    weights = fit(weights, images, labels, float(config["rate"]), seed + number)
    metrics = MetricRecord({"num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
    return Message(content, reply_to=message)
