"""A Flower strategy around a rule: messages in, `Round` to the rule, arrays out.

Thin on purpose. What a round does to the model is decided by the same rule and the same server
optimiser as in the simulator; here are only identity, participation as it is, what is written to
disk, and resuming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from logging import INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedsteer.errors import ConfigurationError, RoundRefused
from fedsteer.flower.asking import Asked, make_round, personal
from fedsteer.flower.identity import Awaited, Identities, Nameless, client_name, few
from fedsteer.flower.layout import averaged
from fedsteer.flower.loop import EvaluateFunction, run_rounds
from fedsteer.flower.manifest import (
    describe_setup,
    manifest,
    refuse_other_model,
    refuse_other_setup,
    refuse_to_repeat,
)
from fedsteer.flower.model import GlobalModel
from fedsteer.flower.nodes import await_nodes, await_registration, online, sample
from fedsteer.flower.options import SAMPLING, clients_named, divide, from_run_config
from fedsteer.flower.payload import is_personal
from fedsteer.flower.replies import (
    Reading,
    leave_out_mistaken,
    points,
    read_replies,
    weighted_metrics,
)
from fedsteer.flower.rows import client_entries, round_entry, rule_metrics
from fedsteer.flower.store import RunStore
from fedsteer.records.rows import Totals
from fedsteer.rules import Diagnostics, Rule, make_rule
from fedsteer.rules.algorithm import Memory
from fedsteer.steering.clients import Clients
from fedsteer.steering.optimiser import ServerOptimiser
from fedsteer.steering.state import State, pack_states, unpack_states

log = getLogger("flwr").log
OWN_STARTS = (
    "clients go on from models of their own: a wrapper that clips around the global one would "
    "cut them short"
)
MetricsFunction = Callable[[list[RecordDict], str], MetricRecord]


class RuleStrategy(Strategy):
    """Any rule of fedsteer as a Flower strategy (Message API).

    preset                      "practical", or "paper" with probabilities estimated
    train_metrics_aggr_fn,      as in Flower: (replies' contents, weighted_by_key) -> metrics;
    evaluate_metrics_aggr_fn    by default means weighted by data points
    options                     those of `StrategyOptions` and of the rule
    """

    rule_name = "fedsteer"

    def __init__(
        self,
        *,
        preset: str = "practical",
        train_metrics_aggr_fn: MetricsFunction | None = None,
        evaluate_metrics_aggr_fn: MetricsFunction | None = None,
        **options: Any,
    ) -> None:
        self.options, chosen = divide(self.rule_name, preset, options)
        self.rule: Rule = make_rule(self.rule_name, preset=preset, **chosen)
        self.preset = preset
        self.sampling = options.get("probabilities") == SAMPLING
        self.optimiser = ServerOptimiser(self.options.server_optimiser, self.options.server_rate)
        if self.rule.own_rate:
            self.optimiser = ServerOptimiser()
        self.train_metrics = train_metrics_aggr_fn or weighted_metrics
        self.evaluate_metrics = evaluate_metrics_aggr_fn or weighted_metrics
        self.identities = Identities(self.options.authenticated)
        self.store = RunStore(None if self.options.folder is None else Path(self.options.folder))
        self.number = 0  # of the last finished round
        self.trained = 0  # rounds so far that were no warm-up
        self.used = 0  # updates that the rule took in, those of a warm-up as well
        self.totals = Totals()
        self.moments = self.optimiser.init()
        self.state: State  # these two from the first arrays on
        self.model: GlobalModel
        self._driven = False  # our own `start` runs the rounds
        self._timeout: float | None = None
        self._leaving: list[str] = []  # clients that leave between this round and the next
        self._awaited = Awaited(clients_named(self.options, self.rule.options))
        self._nameless = Nameless()
        self._asked: Asked | None = None  # by the round that is under way

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any], **more: Any) -> RuleStrategy:
        """With the "fedsteer-..." keys of `context.run_config`; `more` has the last word."""
        return cls(**(from_run_config(cls.rule_name, config) | more))

    # -- Flower's hooks -----------------------------------------------------------------------

    def summary(self) -> None:
        """Log what will run."""
        log(INFO, "\t├──> fedsteer rule: %s (preset %s)", self.rule.name, self.preset)
        source = SAMPLING if self.sampling else self.rule.options.probabilities
        log(INFO, "\t├──> probabilities: %s", source)
        log(INFO, "\t└──> records and checkpoint: %s", self.options.folder or "not written")

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask whoever is online, or a sample of them; only if nobody is there at all, wait."""
        self._adopt(arrays)
        if server_round <= self.number:
            self.store.close()
            refuse_to_repeat(server_round, self.number, self.options.folder)
        self._let_go()
        self.store.round_begins()
        if not self._driven and self.number == 0:
            if "starts" in self.rule.needs:
                log(WARNING, "fedsteer: %s", OWN_STARTS)
            try:
                await_registration(self.options, grid)
            except ConfigurationError:
                self.store.close()
                raise
        # A loop that is not ours does not tell how long a round may take.
        limit = self.options.registration_timeout if self._timeout is None else self._timeout
        there = await_nodes(grid, 1, limit)
        self.identities.meet(there)
        everyone = {node: self.identities.expected(node) for node in there}
        chosen = set(self._sample(everyone, "train", server_round))
        requests = self.rule.plan(
            self.state,
            server_round,
            available=sorted({everyone[node] for node in chosen}),
            reachable=sorted(set(everyone.values())),
        )
        config["server-round"] = server_round
        asked = Asked(set(there), len(chosen) / max(len(there), 1), requests)
        asked.names = asked.chosen(everyone, chosen)
        for node, content in asked.contents(arrays, config, self.model, self.options):
            asked.messages.append(self._message(content, node, MessageType.TRAIN))
        log(INFO, "configure_train: asking %s of %s online", len(asked.messages), len(there))
        self._asked = asked
        return asked.messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Turn replies into a `Round`, let the rule step, write everything down."""
        asked = self._asked
        assert asked is not None, "configure_train comes first"
        reading = read_replies(
            replies,
            asked.messages,
            asked.sent,
            asked.online,
            self.model.layout,
            self.identities,
            self.options.weighted_by_key,
        )
        answered = [reply.client for reply in reading.usable.values()]
        if said := self._awaited.missing_after(server_round, answered, self.identities.met()):
            log(WARNING, "fedsteer: %s", said)
        if is_personal(asked.requests):
            alone = personal(asked, reading.usable, self.rule, self.state, server_round)
            leave_out_mistaken(reading, asked.names, alone)
        if said := self._nameless.warning(answered, self._clients.members, asked.online):
            log(WARNING, "fedsteer: %s", said)
        try:
            step = self.rule.step(
                self.state,
                make_round(
                    server_round,
                    reading.usable,
                    asked,
                    self.rule,
                    self.options,
                    self.sampling,
                    self.model.vector,
                    self.identities.left,
                ),
            )
        except RoundRefused as refusal:
            return self._hold(server_round, asked, reading, refusal)
        self.state, self.used = step.state, self.used + len(step.diagnostics.clients)
        for client, reason in list(step.diagnostics.dropped.items())[:1]:
            more = len(step.diagnostics.dropped) - 1
            others = f"; and {more} more, clients.jsonl has them" if more else ""
            log(WARNING, "fedsteer: %s was dropped: %s%s", client, reason, others)
        used = dict(zip(step.diagnostics.clients, step.diagnostics.fresh, strict=True))
        fresh = [reply for reply in reading.usable.values() if used.get(reply.client)]
        if step.action == "move":
            model = self.model
            model.vector, self.moments = self.optimiser.step(self.moments, model.vector, step.delta)
            model.rest = averaged([r.rest for r in fresh], [r.size for r in fresh], model.rest)
        elif step.action == "restart":
            self.model.restart()
            self.moments = self.optimiser.init()
        self._record(server_round, asked, step.diagnostics, reading)
        arrays, metrics = self._end_round(server_round), MetricRecord()
        if fresh:  # a user's function that raises must find the round finished and on disk
            contents = [reply.content for reply in fresh]
            metrics = self.train_metrics(contents, self.options.weighted_by_key)
        rule_metrics(metrics, step.diagnostics, len(reading.failed))
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask whoever is online to evaluate, or a sample of them."""
        if self.options.fraction_evaluate <= 0:
            return []
        there = online(grid)
        self.identities.meet(there)
        names = {
            node: self.identities.expected(node) for node in there if self.identities.trusts(node)
        }
        config["server-round"] = server_round
        content = RecordDict(
            {self.options.arrayrecord_key: arrays, self.options.configrecord_key: config}
        )
        chosen = self._sample(names, "evaluate", server_round)
        return [self._message(content, node, MessageType.EVALUATE) for node in chosen]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics of whoever answered."""
        key = self.options.weighted_by_key
        good = [reply.content for reply in replies if not reply.has_error()]
        usable = [content for content in good if points(content, key) is not None]
        metrics = self.evaluate_metrics(usable, key) if usable else None
        if metrics is not None:
            self.store.evaluated(metrics, "clients")
        if not self._driven:
            self.store.close_round()
        return metrics

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """As Flower's, but going on from the last finished round where there is a checkpoint."""
        self._driven, self._timeout = True, timeout
        try:
            again = hasattr(self, "model")  # a second start goes on like a resumed run
            if again and self.options.folder is None:
                # Memory is all there is. A round may have ended between its parts.
                other = GlobalModel(initial_arrays, self.options.steer, self.options.buffers)
                refuse_other_model(self.model.describe(), other.describe())
                self.number = max(self.number, self._clients.number)
            else:
                self._begin(initial_arrays, self.options.resume or again)
            if self._let_go():
                self._save()
            self.summary()
            return run_rounds(
                self,
                grid,
                num_rounds,
                timeout,
                ConfigRecord() if train_config is None else train_config,
                ConfigRecord() if evaluate_config is None else evaluate_config,
                evaluate_fn,
            )
        finally:
            self._asked = None
            self.store.close()

    def leave(self, clients: Iterable[int | str]) -> None:
        """Clients leave for good, with all that is known of them; a stranger is refused.

        They are named as in the records, a plain id being a reported one. It takes effect between
        rounds: at once, or when the round that is under way ends, or, before the first `start`,
        when that has found its checkpoint.
        """
        named = [clients] if isinstance(clients, (int, str)) else clients
        names = [client_name(client) for client in named]
        if not hasattr(self, "model"):
            self._leaving += names
        elif self._asked is not None:
            self._leaving += self.identities.leavers(names, self._clients.members())
        else:
            with self.store.opened():
                self._leaving += names
                if self._let_go():
                    self._save()

    # -- inside -------------------------------------------------------------------------------

    def _adopt(self, arrays: ArrayRecord) -> None:
        """The arrays of a round that somebody else drives."""
        if hasattr(self, "model"):
            self.model.take(arrays)
        else:
            self._begin(arrays, self.options.resume)

    def _begin(self, arrays: ArrayRecord, resume: bool) -> None:
        """Take the first arrays as the model, and go on from the checkpoint if there is one."""
        model = GlobalModel(arrays, self.options.steer, self.options.buffers)
        try:
            state = self.rule.init(model.layout.dim, self.options.population, like=model.vector)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} (sizes: population={{id: points}} here)") from None
        setup = describe_setup(
            self.rule, self.optimiser, self.options, self.sampling, model.describe()
        )
        moments, number, counted = self.optimiser.init(), 0, {"trained": 0, "used": 0}
        found = self.store.load() if resume else None
        if found is not None:
            packed, meta = found
            refuse_other_setup(meta["setup"], setup, self.options.folder)
            model.restore(packed)
            state, moments = unpack_states(packed, meta, "rule", "moments")
            number = meta["number"]
            counted = {"used": number} | meta["totals"]  # older ones do not tell
            self.identities.restore(meta["identities"])
        # Nothing is taken over before here: what was refused once is refused again.
        self.model, self.state, self.moments, self._setup = model, state, moments, setup
        self.number, self.trained, self.used = number, counted.pop("trained"), counted.pop("used")
        self.totals = Totals(**counted)
        if found is None:
            self._begin_records()

    def _begin_records(self) -> None:
        dim = self.model.layout.dim
        self.store.begin(manifest(self.rule, self.preset, self.options, self.sampling, dim))

    @property
    def _clients(self) -> Clients:
        return cast(Memory, self.state.memory).clients

    def _let_go(self) -> bool:
        """Whether anybody was to leave, and did."""
        names, self._leaving = self._leaving, []
        leavers = self.identities.leavers(names, self._clients.members()) if names else []
        if leavers:
            self.state = self.rule.leave(self.state, leavers)
            self.identities.forget(leavers)
            log(INFO, "fedsteer: left for good: %s", few(leavers))
        return bool(leavers)

    def _message(self, content: RecordDict, node: int, kind: str) -> Message:
        # Nobody should still work on a question whose round is over.
        return Message(
            content, node, kind, ttl=None if self._timeout is None else float(self._timeout)
        )

    def _sample(self, names: Mapping[int, str], purpose: str, number: int) -> list[int]:
        fraction = getattr(self.options, f"fraction_{purpose}")
        least = getattr(self.options, f"min_{purpose}_nodes")
        return sample(names, fraction, least, self.rule.options.seed, number, purpose)

    def _hold(
        self, number: int, asked: Asked, reading: Reading, refusal: RoundRefused
    ) -> tuple[ArrayRecord, MetricRecord]:
        """A round the rule refuses as a whole leaves model and memory as they are."""
        log(WARNING, "fedsteer: round %s was refused: %s", number, refusal)
        for reply in reading.usable.values():
            reading.failed[reply.client] = f"round refused: {refusal}"
        self._record(number, asked, Diagnostics(self.rule.phase(self.state)), reading)
        return self._end_round(number), MetricRecord({"fedsteer-active": 0})

    def _record(self, number: int, asked: Asked, happened: Diagnostics, reading: Reading) -> None:
        self.trained += happened.phase == "train"
        held = self.state.nbytes
        row = round_entry(number, self.trained, happened, reading, asked, self.totals, held)
        collected = asked.requests.collect
        self.store.record(row, client_entries(number, happened, reading, collected))

    def _end_round(self, number: int) -> ArrayRecord:
        self.number, self._asked = number, None
        self._let_go()
        self._save()
        return self.model.record()

    def _save(self) -> None:
        packed, states = pack_states(rule=self.state, moments=self.moments)
        more = {"number": self.number, "identities": self.identities.pack(), "setup": self._setup}
        more |= {"totals": asdict(self.totals) | {"trained": self.trained, "used": self.used}}
        self.store.save(self.model.pack() | packed, states | more)
