"""The server: any rule by name, everything else as in any Flower app."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedsteer.flower import make_strategy
from flowerdigits.task import make_model, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and evaluate on the server."""
    config = context.run_config
    model = make_model(int(config["seed"]))

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        accuracy, loss = test(model)
        return MetricRecord({"accuracy": accuracy, "loss": loss})

    strategy = make_strategy(str(config["rule"]), config, seed=int(config["seed"]))
    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=evaluate,
    )
