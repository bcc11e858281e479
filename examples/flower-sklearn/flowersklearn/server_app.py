"""The server: any rule by name except fedprox and scaffold, which need help from clients."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedsteer.flower import make_strategy
from flowersklearn.task import accuracy, zero_weights

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and evaluate on the server."""
    config = context.run_config

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": accuracy(arrays.to_numpy_ndarrays())})

    strategy = make_strategy(str(config["rule"]), config, seed=int(config["seed"]))
    strategy.start(
        grid,
        ArrayRecord(zero_weights()),
        num_rounds=int(config["num-rounds"]),
        evaluate_fn=evaluate,
    )
