"""FedSteer, evaluated by how far the weights have come."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedsteer.flower import FedSteer

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run."""

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        (weights,) = arrays.to_numpy_ndarrays()
        return MetricRecord({"accuracy": float(np.tanh(np.linalg.norm(weights)))})

    config = context.run_config
    strategy = FedSteer.from_run_config(config, fraction_evaluate=0.0)
    strategy.start(
        grid,
        ArrayRecord([np.zeros(20)]),
        num_rounds=int(config["num-rounds"]),
        timeout=float(config["round-timeout"]),
        evaluate_fn=evaluate,
    )
