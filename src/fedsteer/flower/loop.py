"""The rounds of a run: ask, aggregate, evaluate, write down."""

from __future__ import annotations

from collections.abc import Callable
from logging import INFO, WARNING, getLogger
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedsteer.flower.asking import ask, await_registration

if TYPE_CHECKING:
    from fedsteer.flower.strategy import RuleStrategy

log = getLogger("flwr").log
EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


def run_rounds(
    strategy: RuleStrategy,
    grid: Grid,
    num_rounds: int,
    timeout: float,
    train_config: ConfigRecord,
    evaluate_config: ConfigRecord,
    evaluate_fn: EvaluateFunction | None,
) -> Result:
    """Run the rounds that are left. If the last evaluation was cut short, repeat it first."""
    result = Result()
    run, store = strategy.run, strategy.run.store
    result.arrays = run.model.record()

    def evaluate_on_server(number: int) -> MetricRecord | None:
        found = None if evaluate_fn is None else evaluate_fn(number, result.arrays)
        if found is not None:
            log(INFO, "\t└──> evaluation by the server: %s", found)
            result.evaluate_metrics_serverapp[number] = found
        return found

    def evaluate(number: int) -> None:
        messages = strategy.configure_evaluate(number, result.arrays, evaluate_config, grid)
        found = strategy.aggregate_evaluate(number, ask(grid, messages, timeout))
        if found is not None:
            log(INFO, "\t└──> evaluation by clients: %s", found)
            result.evaluate_metrics_clientapp[number] = found
        if (found := evaluate_on_server(number)) is not None:
            store.evaluated(found, "server")
        store.close_round()

    if run.number < num_rounds:
        await_registration(grid, strategy.options)
        store.reopen()
    if run.number == 0:
        evaluate_on_server(0)
    else:
        folder = strategy.options.folder
        log(INFO, "fedsteer: resuming after round %s from %s", run.number, folder or "memory")
        if store.pending is not None:
            evaluate(run.number)
    for number in range(run.number + 1, num_rounds + 1):
        log(INFO, "[ROUND %s/%s]", number, num_rounds)
        messages = strategy.configure_train(number, result.arrays, train_config, grid)
        arrays, metrics = strategy.aggregate_train(number, ask(grid, messages, timeout))
        result.arrays = result.arrays if arrays is None else arrays
        if metrics is not None:
            log(INFO, "\t└──> training: %s", metrics)
            result.train_metrics_clientapp[number] = metrics
        evaluate(number)
    if run.number and not run.used:
        hint = "no reply in %s rounds could be used: the model is the one that it began with"
        log(WARNING, f"fedsteer: {hint}", run.number)
    store.finish(run.totals.result(run.number, run.trained))
    return result
