"""A client that is often away.

Any Flower strategy could use it. The two helpers are for FedProx and SCAFFOLD and do nothing under
other rules.
"""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsteer.flower.client import add_correction, proximal_penalty, sent_parameters
from flowerdigits.task import is_there, make_model, partitions, train

app = ClientApp()


@app.train()
def train_locally(message: Message, context: Context) -> Message:
    """Train on this client's partition, unless it is away."""
    config: dict[str, Any] = dict(context.run_config)
    partition, seed = int(context.node_config["partition-id"]), config["seed"]
    number = int(message.content["config"]["server-round"])
    clients = config["clients"]
    if not is_there(partition, number, clients, config["weak"], config["powerful"], seed):
        return Message(Error(code=0, reason="away"), reply_to=message)

    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = partitions(clients, config["gamma"], config["points"], seed)[partition]
    sent = sent_parameters(model, message)
    loss, steps = train(
        model,
        images,
        labels,
        config["epochs"],
        config["batch"],
        config["rate"],
        seed + number,
        penalty=lambda: proximal_penalty(model, message, sent),  # FedProx
        correct=lambda: add_correction(model, message),  # SCAFFOLD
    )
    metrics = {
        "train_loss": loss,
        "num-examples": len(labels),
        "num-steps": steps,  # SCAFFOLD
        "partition-id": partition,  # who this is, whatever node it runs on
    }
    content = RecordDict(
        {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content, reply_to=message)
