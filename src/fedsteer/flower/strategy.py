"""A Flower strategy around a rule: messages in, a `Round` to the rule, arrays out.

The rule and the server optimiser are those of the simulator and decide everything that happens to
the model. The strategy only translates. Its parts: requests to nodes (`asking`), their replies
(`replies`), which client a reply comes from (`identity`), what a round changes on the server
(`run`), and what goes to disk (`store`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import INFO, WARNING
from typing import Any, Self

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.serverapp.strategy.strategy_utils import log_strategy_start_info
from threadpoolctl import threadpool_limits

from fedsteer.errors import ConfigurationError, RoundRefused
from fedsteer.flower.asking import (
    Asked,
    await_nodes,
    await_registration,
    log,
    sample,
    still_at_work,
)
from fedsteer.flower.identity import client_name
from fedsteer.flower.loop import SPENT, EvaluateFunction, run_rounds, train_metrics
from fedsteer.flower.metrics import data_points, weighted_metrics
from fedsteer.flower.options import clients_named, from_run_config, split_options
from fedsteer.flower.releases import refuse_wrappers
from fedsteer.flower.replies import (
    CUT_OFF,
    leave_out_mistaken,
    leave_out_outdated,
    read_replies,
    warn_of,
)
from fedsteer.flower.run import ServerRun
from fedsteer.records.rows import Tracker
from fedsteer.rules import RULES, Diagnostics, make_rule

MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]


class RuleStrategy(Strategy):
    """Any rule of fedsteer as a Flower strategy (Message API).

    preset                      "practical", or "paper" with estimated probabilities
    train_metrics_aggr_fn,      as in Flower: (contents of replies, weighted_by_key) -> metrics;
    evaluate_metrics_aggr_fn    by default means weighted by data points, of what is possible
    callbacks                   functions, called after each round with its row as a dict
    options                     those of `StrategyOptions` and of the rule
    """

    rule_name = "fedsteer"

    def __init__(
        self,
        *,
        preset: str = "practical",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
        callbacks: Iterable[Tracker] = (),
        **options: Any,
    ) -> None:
        self.options, rule_options = split_options(self.rule_name, preset, options)
        meant = self.options.meaning_of(preset, RULES[self.rule_name])
        self.rule = make_rule(self.rule_name, **(meant | rule_options))
        self.preset = preset
        self.train_metrics = train_metrics_aggr_fn
        self.evaluate_metrics = evaluate_metrics_aggr_fn
        self.run = ServerRun(self.rule, self.options, preset, meant, callbacks)
        self._own_loop = False  # whether our `start` runs the rounds
        self._timeout: float | None = None  # of a round; other loops do not tell
        self._asked: Asked | None = None  # by the round that is under way
        self.cut_off: dict[str, int] = {}  # messages of closed rounds -> nodes at work on them

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any], **more: Any) -> Self:
        """Take options from the "fedsteer-..." keys of `context.run_config`; `more` overrides."""
        return cls(**(from_run_config(cls.rule_name, config) | more))

    def summary(self) -> None:
        log(INFO, "\t├──> fedsteer rule: %s (preset %s)", self.rule.name, self.preset)
        log(INFO, "\t├──> probabilities: %s", self.run.rule_options["probabilities"])
        if words := self.run.releases.summary:
            log(INFO, "\t├──> privacy: %s", words)
        log(INFO, "\t└──> records and checkpoint: %s", self.options.folder or "not written")

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """As Flower's, but resume after the last finished round if there is a checkpoint."""
        self._own_loop, self.cut_off = True, {}
        self._timeout = None if timeout is None else float(timeout)
        try:
            self.run.begin(initial_arrays)
            self.run.let_leave()
            log(INFO, "Starting %s strategy:", type(self).__name__)
            log_strategy_start_info(num_rounds, initial_arrays, train_config, evaluate_config)
            self.summary()
            return run_rounds(
                self,
                grid,
                num_rounds,
                self._timeout,
                train_config or ConfigRecord(),
                evaluate_config or ConfigRecord(),
                evaluate_fn,
            )
        finally:
            self._asked = None
            self.run.store.close()

    def leave(self, clients: Iterable[int | str]) -> None:
        """Remove clients for good, with all that is known of them; a stranger is an error.

        Name them as in the records; a plain id is a reported one. It happens between rounds: now,
        at the end of the round that is under way or, before the first `start`, when that has found
        its checkpoint.
        """
        named = [clients] if isinstance(clients, (int, str)) else clients
        names = [client_name(client) for client in named]
        self.run.leave(names, round_under_way=self._asked is not None)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes that are online, or a sample of them. Wait only if there are none."""
        run = self.run
        if not self._own_loop:
            refuse_wrappers()
        run.begin_round(server_round, arrays)
        if not self._own_loop:
            try:
                if run.number == 0:
                    await_registration(grid, self.options)
                if run.out_of_budget(await_nodes(grid, 0, 0.0)):
                    raise ConfigurationError(SPENT)
            except ConfigurationError:
                run.store.close()
                raise
        limit = self.options.registration_timeout if self._timeout is None else self._timeout
        online = await_nodes(grid, 1, limit, lambda nodes: len(run.eligible(nodes)))
        everyone_online = run.identities.meet(online)
        run.back_off.keep(everyone_online.values())
        clients = self._askable(grid, run.eligible(online), server_round)
        seed = self.rule.options.seed
        sampled = set(sample(clients, self.options, "train", seed=seed, number=server_round))
        requests = self.rule.plan(
            run.state,
            server_round,
            available=sorted({clients[node] for node in sampled}),
            reachable=sorted(set(clients.values())),
        )
        everyone, refreshed = set(requests.everyone), set(requests.refresh)
        config["server-round"] = server_round
        self._asked = asked = Asked(
            number=server_round,
            requests=requests,
            online=set(online),
            share=len(sampled) / max(len(clients), 1),
            clients={
                node: client
                for node, client in clients.items()
                if client in everyone and (node in sampled or client in refreshed)
            },
        )
        config.update(run.releases.ask(asked.clients.values(), run.model.layout.steered))
        asked.write(arrays, config, run.model, self.options, self._timeout)
        log(INFO, "configure_train: asking %s of %s online", len(asked.messages), len(online))
        if resting := len(online) - len(clients):
            reasons = "late from before, in back-off, or out of privacy budget"
            log(INFO, "fedsteer: %s are not asked: %s", resting, reasons)
        return asked.messages

    def _askable(self, grid: Grid, online: dict[int, str], number: int) -> dict[int, str]:
        """Those that are not at work on a closed round, nor in back-off; if there are none, all."""
        busy = still_at_work(grid, self.cut_off)
        free = {node: client for node, client in online.items() if node not in busy}
        return self.run.back_off.eligible(free or online, number)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make a `Round` of the replies, let the rule step, and write everything down."""
        run, asked, key = self.run, self._asked, self.options.weighted_by_key
        assert asked is not None, "configure_train comes first"
        enough = self.options.enough if self._own_loop else 1.0  # other loops wait for all
        reading = read_replies(replies, asked, run.model.layout, run.identities, key, enough)
        run.releases.receive(reading, asked)
        hints = run.identities.hints(
            server_round,
            {reply.client for reply in reading.usable},
            named=clients_named(self.options, self.rule.options),
            members=run.state.clients.members,
            online=asked.online,
        )
        for hint in hints:
            log(WARNING, "fedsteer: %s", hint)
        leave_out_mistaken(reading, asked, self.rule, run.state, server_round)
        if "starts" not in self.rule.needs:
            leave_out_outdated(reading, run.sent_models)
        warn_of("%s %s", {c: why for c, why in reading.failed.items() if why != CUT_OFF})
        fresh = []
        run.store.settle()
        try:
            # BLAS's threads wait for each other: beside other work a step took ten times as long.
            with threadpool_limits(1, "blas"):
                step = self.rule.step(run.state, run.make_round(server_round, reading, asked))
        except RoundRefused as refusal:  # model and state stay as they are
            log(WARNING, "fedsteer: round %s was refused: %s", server_round, refusal)
            reading.failed.update({r.client: f"round refused: {refusal}" for r in reading.usable})
            diagnostics = Diagnostics(phase=self.rule.phase(run.state))
        else:
            diagnostics = step.diagnostics
            fresh = run.take_step(step, reading.usable)
        self._asked, failure, metrics, left_out = None, None, None, 0
        try:
            if fresh:
                told = [(reply.client, reply.content) for reply in fresh]
                metrics, left_out = self._averaged(self.train_metrics, told)
        except Exception as error:  # the user's own: raised once the round is on disk
            failure = error
        row = run.end_round(server_round, asked, reading, diagnostics, metrics or {}, left_out)
        arrays = run.model.record()
        if failure is not None:
            raise failure
        return arrays, train_metrics(row | {"training": metrics})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes that are online, or a sample of them, to evaluate."""
        if self.options.fraction_evaluate <= 0:
            return []
        identities = self.run.identities
        clients = identities.meet(await_nodes(grid, 0, 0.0))
        clients = self._askable(grid, clients, server_round)
        trusted = {node: client for node, client in clients.items() if identities.trusts(node)}
        config["server-round"] = server_round
        content = RecordDict(
            {self.options.arrayrecord_key: arrays, self.options.configrecord_key: config}
        )
        seed = self.rule.options.seed
        sampled = sample(trusted, self.options, "evaluate", seed=seed, number=server_round)
        return [Message(content, n, MessageType.EVALUATE, ttl=self._timeout) for n in sampled]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics of the replies."""
        key, store = self.options.weighted_by_key, self.run.store
        client_of, own = self.run.identities.expected, self.evaluate_metrics
        told = [
            (client_of(reply.metadata.src_node_id), reply.content)
            for reply in replies
            if not reply.has_error()
        ]
        if own is not None:
            told = [entry for entry in told if data_points(entry[1], key) is not None]
        metrics, left_out = self._averaged(own, told) if told else (None, 0)
        store.left_out(left_out)
        if metrics is not None:
            store.evaluated(metrics, "clients")
        if not self._own_loop:
            store.close_round()
        return metrics

    def _averaged(
        self, own: MetricsFunction | None, told: Sequence[tuple[str, RecordDict]]
    ) -> tuple[MetricRecord, int]:
        """What clients report, averaged, and how many of them reported what is impossible."""
        contents, key = [content for _, content in told], self.options.weighted_by_key
        if own is not None:
            return own(contents, key), 0
        metrics, odd = weighted_metrics(contents, key)
        warn_of("%s reported what is impossible: %s", {told[at][0]: odd[at] for at in odd})
        return metrics, len(odd)
