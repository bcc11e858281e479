"""Any rule, evaluated by how far the weights have come."""

from __future__ import annotations

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from fedsteer.flower import make_strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run."""

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        (weights,) = arrays.to_numpy_ndarrays()
        return MetricRecord({"accuracy": float(np.tanh(np.linalg.norm(weights)))})

    config = context.run_config
    rule = str(config["rule"])
    options = {"core_size": 2} if rule == "fedsteer" else {}
    strategy = make_strategy(rule, config, fraction_evaluate=0.0, **options)
    strategy.start(
        grid,
        ArrayRecord([np.zeros(20)]),
        num_rounds=int(config["num-rounds"]),
        timeout=float(config["round-timeout"]) or None,
        evaluate_fn=evaluate,
    )
