"""The rounds of a run on Flower: ask, aggregate, evaluate, write down, go on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import INFO, WARNING, getLogger
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedsteer.flower.nodes import await_registration

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
    """The rounds that are left, the last finished one evaluated again if that was cut short."""
    result = Result()
    arrays = result.arrays = strategy.model.record()
    store = strategy.store

    def ask(messages: Iterable[Message]) -> Iterable[Message]:
        wanted = list(messages)  # the SuperLink refuses an empty list
        return grid.send_and_receive(wanted, timeout=timeout) if wanted else []

    def evaluate(number: int) -> None:
        replies = ask(strategy.configure_evaluate(number, arrays, evaluate_config, grid))
        if (found := strategy.aggregate_evaluate(number, replies)) is not None:
            log(INFO, "\t└──> evaluation by clients: %s", found)
            result.evaluate_metrics_clientapp[number] = found
        if evaluate_fn is not None and (found := evaluate_fn(number, arrays)) is not None:
            log(INFO, "\t└──> evaluation by the server: %s", found)
            result.evaluate_metrics_serverapp[number] = found
            store.evaluated(found, "server")
        store.close_round()

    if strategy.number < num_rounds:
        await_registration(strategy.options, grid)
        store.reopen()
    if strategy.number:
        where = strategy.options.folder
        log(INFO, "fedsteer: going on after round %s from %s", strategy.number, where)
        if store.pending is not None:
            evaluate(strategy.number)
    elif evaluate_fn is not None and (found := evaluate_fn(0, arrays)) is not None:
        log(INFO, "\t└──> evaluation by the server: %s", found)
        result.evaluate_metrics_serverapp[0] = found
    for number in range(strategy.number + 1, num_rounds + 1):
        log(INFO, "[ROUND %s/%s]", number, num_rounds)
        replies = ask(strategy.configure_train(number, arrays, train_config, grid))
        moved, metrics = strategy.aggregate_train(number, replies)
        arrays = result.arrays = moved if moved is not None else arrays
        if metrics is not None:
            log(INFO, "\t└──> training: %s", metrics)
            result.train_metrics_clientapp[number] = metrics
        evaluate(number)
    if strategy.number and not strategy.used:
        said = "no reply in %s rounds could be used: the model is the one that it began with"
        log(WARNING, f"fedsteer: {said}", strategy.number)
    store.finish(strategy.totals.result(strategy.number, strategy.trained))
    return result
