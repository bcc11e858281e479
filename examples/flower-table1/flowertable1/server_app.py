"""The server: train, and evaluate on the test data as often as the experiment says."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedsteer.training import evaluate
from flowertable1.dataset import world_of
from flowertable1.model import record_of, weights_of
from flowertable1.strategy import strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run as many rounds as the experiment has."""
    world, spec = world_of(context.run_config)
    run = world.experiment.run

    def test(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if number % run.evaluate_every and number != run.rounds:
            return None
        points = world.test_images, world.test_labels
        weights = weights_of(arrays, run.device)
        found = evaluate(world.network, weights, *points, world.dataset.classes)
        return MetricRecord({"accuracy": found.accuracy, "loss": found.loss})

    strategy_of(world, spec, context.run_config).start(
        grid,
        record_of(world.network.initial(world.seed)),
        num_rounds=run.rounds,
        timeout=float(context.run_config["round-timeout"]),
        evaluate_fn=test,
    )
