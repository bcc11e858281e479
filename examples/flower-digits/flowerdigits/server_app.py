"""The server: any rule by name, everything else as in any Flower app."""

from __future__ import annotations

from typing import Any

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

    rule = str(config["rule"])
    options: dict[str, Any] = {"seed": int(config["seed"])}
    if rule == "scaffold":  # its server needs the clients' learning rate
        options["local_rate"] = float(config["rate"])
    strategy = make_strategy(rule, config, **options)
    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(config["num-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=evaluate,
    )
