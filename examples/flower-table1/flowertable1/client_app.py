"""A client that is there in the same rounds, and draws the same batches, as in the simulator."""

from __future__ import annotations

from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsteer.flower.client import correction, proximal_strength
from fedsteer.training import Order
from flowertable1.dataset import world_of
from flowertable1.model import record_of, weights_of

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's points, unless it is away."""
    world, _ = world_of(context.run_config)
    client = int(context.node_config["partition-id"])
    number = int(message.content["config"]["server-round"])
    if client not in world.participation.present(number):
        return Message(Error(code=0, reason="away"), reply_to=message)
    device = world.experiment.run.device
    sent = correction(message)  # of SCAFFOLD, and of practical FedSteer
    order = Order(
        client=client,
        points=world.partition.at(number).indices[client],
        seed=world.seed,
        round=number,
        start=weights_of(message.content["arrays"], device),
        correction=None if sent is None else weights_of(sent, device),
        proximal=proximal_strength(message),
    )
    trained = world.engine.train_orders([order])
    metrics = {
        "train_loss": float(trained.losses[0]),
        "num-examples": len(order.points),
        "num-steps": int(trained.steps[0]),
        "partition-id": client,  # who this is, whatever node it runs on
    }
    arrays = record_of(order.start - trained.updates[0])
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
    return Message(content, reply_to=message)
