"""Our own loop of rounds: Flower's, but one that resumes and keeps every result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedsteer.flower.asking import await_nodes, await_registration, log, send_and_wait
from fedsteer.flower.store import Row
from fedsteer.records.files import plain
from fedsteer.records.names import MODEL

if TYPE_CHECKING:
    from fedsteer.flower.strategy import RuleStrategy

EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]
COLUMNS = (
    *("active", "fresh", "dropped", "failed", "columns"),
    *("variance", "bound_factor", "delta_norm", "weight_sum"),
)
"""Columns of rounds.jsonl that are also train metrics."""
SPENT = "all clients have spent their privacy budget, so the run ends here"


def run_rounds(
    strategy: RuleStrategy,
    grid: Grid,
    num_rounds: int,
    timeout: float | None,
    train_config: ConfigRecord,
    evaluate_config: ConfigRecord,
    evaluate_fn: EvaluateFunction | None,
) -> Result:
    """Run the rounds that are left. If the last evaluation was cut short, repeat it first."""
    run, store, began = strategy.run, strategy.run.store, time.perf_counter()
    result = Result(arrays=run.model.record())
    store.plan(max(run.number, num_rounds))

    def ask(messages: Iterable[Message], **more: Any) -> Iterable[Message]:
        enough = strategy.options.enough
        return send_and_wait(grid, list(messages), timeout=timeout, enough=enough, **more)

    def evaluate_on_server(number: int) -> None:
        if evaluate_fn is None:
            return
        if (found := evaluate_fn(number, result.arrays)) is not None:
            log(INFO, "\t└──> evaluation by the server: %s", shown(found))
            result.evaluate_metrics_serverapp[number] = found
            if number == 0:
                store.first_evaluation = plain(dict(found))
            store.evaluated(found, "server")
        averaged = run.averaged
        if averaged is not None and (found := evaluate_fn(number, averaged)) is not None:
            log(INFO, "\t└──> of the averaged model: %s", shown(found))
            store.evaluated(found, "average")

    def evaluate(number: int) -> None:
        messages = strategy.configure_evaluate(number, result.arrays, evaluate_config, grid)
        found = strategy.aggregate_evaluate(number, ask(messages))
        if found is not None:
            log(INFO, "\t└──> evaluation by clients: %s", shown(found))
            result.evaluate_metrics_clientapp[number] = found
        evaluate_on_server(number)
        store.keep_best(result.arrays)
        store.close_round()

    if run.number < num_rounds:
        await_registration(grid, strategy.options)
    if run.number == 0:
        evaluate_on_server(0)
    else:
        where = strategy.options.folder or "memory"
        log(INFO, "fedsteer: resuming after round %s from %s", run.number, where)
        if store.pending is not None:
            evaluate(run.number)
        recall(result, store.first_evaluation, store.rows())
    for number in range(run.number + 1, num_rounds + 1):
        if run.out_of_budget(await_nodes(grid, 0, 0.0)):
            log(WARNING, "fedsteer: %s", SPENT)
            break
        log(INFO, "")
        log(INFO, "[ROUND %s/%s]", number, num_rounds)
        messages = strategy.configure_train(number, result.arrays, train_config, grid)
        arrays, metrics = strategy.aggregate_train(number, ask(messages, cut_off=strategy.cut_off))
        result.arrays = result.arrays if arrays is None else arrays
        if metrics is not None:
            log(INFO, "\t└──> training: %s", shown(metrics))
            result.train_metrics_clientapp[number] = metrics
        evaluate(number)
    if run.number and not run.used:
        hint = "no reply in %s rounds could be used: the model is the one that it began with"
        log(WARNING, f"fedsteer: {hint}", run.number)
    result.arrays = run.averaged or result.arrays
    store.write_model(MODEL, result.arrays)
    if run.number % strategy.options.checkpoint_every:
        store.close_round()
        run.save()
    store.finish(run.totals.result(run.number, run.trained) | run.releases.ledger.columns())
    log(INFO, "")
    log(INFO, "Strategy execution finished in %.2fs", time.perf_counter() - began)
    log(INFO, "")
    log(INFO, "Final results:")
    for line in ("", *str(result).splitlines(), ""):
        log(INFO, "\t%s", line)
    return result


def recall(result: Result, first: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Fill in the rounds before a resume, from their records; `first` is the first evaluation."""
    if first:
        result.evaluate_metrics_serverapp[0] = recorded(first)
    for row in rows:
        number, evaluation = row["round"], row.get("evaluation", {})
        result.train_metrics_clientapp[number] = train_metrics(row)
        if "clients" in evaluation:
            result.evaluate_metrics_clientapp[number] = recorded(evaluation["clients"])
        if "server" in evaluation:
            result.evaluate_metrics_serverapp[number] = recorded(evaluation["server"])


def recorded(metrics: Mapping[str, Any]) -> MetricRecord:
    """Metrics as they were before they became JSON, which has no nan."""

    def number(value: Any) -> Any:
        return math.nan if value is None else value

    return MetricRecord(
        {
            name: [number(one) for one in value] if isinstance(value, list) else number(value)
            for name, value in metrics.items()
        }
    )


def train_metrics(row: Row) -> MetricRecord:
    """The clients' metrics of a round and, with the prefix "fedsteer-", those of the rule."""
    found = recorded(row.get("training") or {})
    for column in (*COLUMNS, *({"epsilon"} & row.keys())):
        value = row.get(column)
        found[f"fedsteer-{column.replace('_', '-')}"] = math.nan if value is None else value
    return found


def shown(metrics: Mapping[str, Any]) -> str:
    """Metrics in one line, with four digits."""

    def short(value: Any) -> str:
        if isinstance(value, list):
            return f"[{', '.join(map(short, value))}]"
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {short(value)}" for name, value in metrics.items())
