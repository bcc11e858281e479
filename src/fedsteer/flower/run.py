"""The server's side of a run: everything that a checkpoint holds, and how a round changes it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedsteer.errors import ConfigurationError, Diverged
from fedsteer.flower.asking import Asked, array_bytes, log
from fedsteer.flower.back_off import BackOff
from fedsteer.flower.identity import Identities, few
from fedsteer.flower.model import GlobalModel
from fedsteer.flower.options import SAMPLING, StrategyOptions
from fedsteer.flower.outdated import SentModels
from fedsteer.flower.releases import Releases
from fedsteer.flower.replies import Reading, Reply, warn_of
from fedsteer.flower.resume import refuse_other_setup, without_lost
from fedsteer.flower.store import RunStore
from fedsteer.reading import reading
from fedsteer.records.files import plain
from fedsteer.records.names import label_of
from fedsteer.records.rows import Totals, Tracker, client_rows, round_row
from fedsteer.rules import Diagnostics, Round, Rule, Step
from fedsteer.steering.optimiser import ServerOptimiser
from fedsteer.steering.rounds import REPORTED
from fedsteer.steering.state import State, pack_server, unpack_server

NEW_RUN: dict[str, Any] = {"number": 0, "trained": 0, "used": 0, "totals": {}}


class ServerRun:
    """Model, rule state, optimiser moments, identities, totals, and the folder they are saved to.

    The model and the states exist once `begin` has seen the first arrays.
    """

    model: GlobalModel
    state: State
    moments: State
    sent_models: SentModels
    number = 0  # of the last finished round
    trained: int  # rounds without the warm-up
    used: int  # updates that the rule used, including those of a warm-up
    totals: Totals

    def __init__(
        self,
        rule: Rule,
        options: StrategyOptions,
        preset: str,
        preset_options: dict[str, Any],
        callbacks: Iterable[Tracker],
    ) -> None:
        self.rule, self.preset, self.options = rule, preset, options
        self.preset_options = preset_options
        self.rule_options = asdict(rule.options)
        known = rule.options.probabilities == "known"
        self.sampling = known and options.known_probabilities is None
        if self.sampling:  # as the user gave it; the rule itself gets "known"
            self.rule_options["probabilities"] = SAMPLING
        self.optimiser = ServerOptimiser(
            "sgd" if rule.own_rate else options.server_optimiser,
            1.0 if rule.own_rate else options.server_rate,
            average=options.server_average,
        )
        self.identities = Identities(options.authenticated)
        self.back_off = BackOff()
        folder = None if options.folder is None else Path(options.folder)
        self.releases = Releases(options.privacy, folder)
        self.store = RunStore(folder, callbacks)
        self.begun = False
        self._leaving: list[str] = []  # clients that leave when this round ends

    def begin(self, arrays: ArrayRecord) -> None:
        """Take the first arrays as the model, then the checkpoint if there is one.

        A second start always resumes; without a folder it continues with what is in memory.
        """
        model = GlobalModel(arrays, self.options.steer, self.options.buffers)
        if self.begun and self.options.folder is None:
            if model.describe() != self.model.describe():
                raise ConfigurationError(
                    "this strategy has trained a model with other arrays, and a second start "
                    "continues with that model; make a new strategy"
                )
            self.number = max(self.number, self.state.clients.number)  # if a round was interrupted
            return
        try:
            state = self.rule.init(model.layout.dim, self.options.population, like=model.vector)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} (sizes: population={{id: points}} here)") from None
        moments = self.optimiser.init()
        setup, saved = self._setup_of(model), NEW_RUN
        found = None
        if self.begun or self.options.resume:
            found = self.store.load(partial(refuse_other_setup, setup))
        with reading(self.store.folder, "the folder of this run"):
            if found is not None:
                saved = found.run
                state, moments, _ = unpack_server(found.arrays, saved)
                state = without_lost(self.rule, state, found, self.store.folder)
                model.restore(found.arrays)
                self.identities.restore(saved["identities"])
                self.releases.ledger.restore(saved.get("releases", ()))
                if self.options.back_off:
                    self.back_off.restore(saved.get("back_off", ()))
            self.number = max(int(saved["number"]), state.clients.number)
            self.trained = int(saved["trained"])
            self.used, self.totals = int(saved["used"]), Totals(**saved["totals"])
        if found is None:
            self.store.begin(self._manifest(model.layout.dim))
        self.releases.load(anew=not (self.begun or self.options.resume))
        self.model, self.state, self.moments, self._setup = model, state, moments, setup
        self.sent_models = SentModels(model.layout.dim)
        self.begun = True  # not earlier: a start that was refused is refused again
        if found is None:  # rows without a checkpoint could be another run's: never leave such
            self.save()

    def _manifest(self, dim: int) -> dict[str, Any]:
        options = self.options
        return {
            "rule": {
                "label": label_of(f"{self.rule.name}:{self.preset}"),
                "name": self.rule.name,
                "preset": self.preset,
                "preset_options": self.preset_options,
                "options": self.rule_options,
            },
            "seed": self.rule.options.seed,
            "experiment": {
                "name": options.experiment,
                "title": "A Flower run",
                "server": {"rate": options.server_rate, "method": options.server_optimiser},
                "participation": {
                    "fraction_train": options.fraction_train,
                    "authenticated": options.authenticated,
                },
                "privacy": asdict(self.releases.privacy),
            },
            "engine": {"name": "flower"},
            "dim": dim,
        }

    def _setup_of(self, model: GlobalModel) -> dict[str, Any]:
        """The settings that cannot change between two starts of a run: what it is known by."""
        now: dict[str, Any] = plain(
            {
                "rule": self.rule.name,
                "server_optimiser": self.optimiser.method,
                "authenticated": self.options.authenticated,
                "population": self.options.population,
                "arrays": model.describe(),
                "privacy": self.releases.setup,
                **self.rule_options,
            }
        )
        return now

    def begin_round(self, number: int, arrays: ArrayRecord) -> None:
        """Take the arrays that a round begins with. Other loops than ours may change them."""
        if not self.begun:
            self.begin(arrays)
        if number <= self.number:
            self.store.close()
            folder = self.options.folder
            raise ConfigurationError(
                f"round {number} was asked for, but {folder or 'this strategy'} is after round "
                f"{self.number}: only fedsteer's own start() continues from there; call that, or "
                + ("choose another folder" if folder else "make a new strategy")
            )
        self.model.take(arrays)
        self.sent_models.note(number, self.model.vector)
        self.let_leave()
        self.store.round_begins()

    def make_round(self, number: int, reading: Reading, asked: Asked) -> Round:
        """What the replies tell the rule."""
        replies, needs = reading.usable, self.rule.needs
        clients = [reply.client for reply in replies]
        probabilities = None  # the rule drops clients with nan, here and in the sizes
        if self.sampling:
            probabilities = [asked.share] * len(clients)
        elif (known := self.options.known_probabilities) is not None:
            probabilities = [known.get(client, np.nan) for client in clients]
        # The rule knows the sizes of a given population, except of clients that left and returned.
        sizes: list[float] | None = None
        if (population := self.options.population) is None:
            sizes = [reply.size for reply in replies] or None
        elif self.identities.left.intersection(clients):
            sizes = [population.get(client, np.nan) for client in clients]
        starts = [asked.sent[reply.node] for reply in replies] if "starts" in needs else []
        reported: dict[str, Any] = {
            name: [reply.numbers[name] for reply in replies]
            for name in needs.intersection(REPORTED)
        }
        return Round(
            number=number,
            clients=clients,
            updates=[reply.update for reply in replies],
            probabilities=probabilities,
            sizes=sizes,
            starts=np.stack(starts) if starts else None,
            model=self.model.vector,
            refresh=[r.client for r in replies if asked.clients[r.node] in asked.requests.refresh]
            or None,
            **reported,
        )

    def eligible(self, online: Mapping[int, bytes]) -> dict[int, str]:
        """The nodes whose clients have privacy budget left, of those with these public keys."""
        return self.releases.within_budget(self.identities.meet(online))

    def out_of_budget(self, online: Mapping[int, bytes]) -> bool:
        """Whether there are clients, and all have spent their privacy budget."""
        known = {*self.state.clients.members, *self.identities.meet(online).values()}
        return bool(known) and not any(map(self.releases.ledger.within, known))

    @property
    def averaged(self) -> ArrayRecord | None:
        """The averaged model, once there is one."""
        vector = self.optimiser.averaged(self.moments)
        return None if vector is None else self.model.record_of(vector)

    def take_step(self, step: Step, replies: list[Reply]) -> list[Reply]:
        """Take over the rule's new state, and move the model; returns the fresh replies."""
        used = dict(zip(step.diagnostics.clients, step.diagnostics.fresh, strict=True))
        fresh = [reply for reply in replies if used.get(reply.client)]
        self.state, self.used = step.state, self.used + len(step.diagnostics.clients)
        found = step.diagnostics
        warn_of("%s was dropped: %s", found.dropped)
        warn_of("%s reported %.4g data points, far from what is believed", found.disbelieved)
        warn_of("%s sent an update far too long; %.2g of it counts", found.cut_down)
        if found.trust < 1.0:
            fewer = "far fewer clients come than before: estimates of the others count %.2g"
            log(WARNING, f"fedsteer: {fewer}", found.trust)
        warn_of("%s has been silent for %s rounds, and soon counts as gone", found.fading)
        warn_of("%s was silent for %s rounds, and counts as gone until it answers", found.gone)
        model = self.model
        if step.action == "move":
            try:
                model.vector, self.moments = self.optimiser.step(
                    self.moments, model.vector, step.delta, model.layout.holds
                )
            except Diverged as error:
                log(WARNING, "fedsteer: the model stays as it is: %s", error)
            if not self.releases.privacy.on:  # they have no noise
                believed = dict(zip(found.clients, found.sizes.tolist(), strict=True))
                model.buffers.average([r.rest for r in fresh], [believed[r.client] for r in fresh])
        elif step.action == "restart":
            model.restart()
            self.moments = self.optimiser.init()
        elif step.diagnostics.phase == "train":
            log(WARNING, "fedsteer: a round without a fresh update: the model stays as it is")
        return fresh

    def end_round(
        self,
        number: int,
        asked: Asked,
        reading: Reading,
        diagnostics: Diagnostics,
        metrics: Mapping[str, Any],
        left_out: int = 0,
    ) -> dict[str, Any]:
        """End the round: write down what happened and save; return its row of rounds.jsonl."""
        training = diagnostics.phase == "train"
        self.trained += training
        columns = self.totals.count(
            asked.requests,
            training_round=self.trained if training else 0,
            uploads=len(reading.usable),
            bytes_up=reading.received,
            bytes_down=array_bytes(message.content for message in asked.messages),
            server_bytes=self.state.nbytes,
        )
        losses = [reply.loss for reply in reading.usable if reply.loss is not None]
        row = round_row(
            number,
            diagnostics,
            asked=len(asked.requests.everyone),
            failed=len(reading.failed),
            **columns,
            **self.releases.ledger.columns(),
            train_loss=float(np.mean(losses)) if losses else None,
            training=dict(metrics) or None,
            metrics_left_out=left_out,
        )
        if self.options.back_off:
            self.back_off.note(number, reading.answered, reading.missed)
        cost = self.releases.ledger.columns
        extras = {reply.client: reply.columns | cost(reply.client) for reply in reading.usable}
        collected = set(asked.requests.collect)
        self.store.record(row, client_rows(number, diagnostics, collected, extras, reading.failed))
        self.number = number
        self.let_leave()
        if number % self.options.checkpoint_every == 0:
            self.save()
        return row

    def save(self) -> None:
        if self.store.records is None:
            return
        arrays, server = pack_server(self.state, self.moments, self.model.vector)
        run = {
            "number": self.number,
            "trained": self.trained,
            "used": self.used,
            "totals": asdict(self.totals),
            "identities": self.identities.pack(),
            "back_off": self.back_off.pack(),
            "releases": self.releases.ledger.pack(),
            "setup": self._setup,
        }
        self.store.save(self.model.pack() | arrays, run | server)

    def leave(self, names: Iterable[str], *, round_under_way: bool) -> None:
        """Remove clients between two rounds; before the first, once the state exists."""
        if not self.begun:
            self._leaving += names
        elif round_under_way:
            self._leaving += self.identities.leavers(names, self.state.clients.members)
        else:
            between = self.store.records is None  # two starts: the files are closed
            try:
                if between:
                    self.store.load()
                self._leaving += names
                self.let_leave()
            finally:
                if between:
                    self.store.close()

    def let_leave(self) -> None:
        """Remove the clients that were to leave, and save if there were any."""
        names, self._leaving = self._leaving, []
        leavers = self.identities.leavers(names, self.state.clients.members) if names else []
        if leavers:
            clients = self.state.clients
            known = {*clients.members, *clients.silent}
            self.store.settle()
            self.state = self.rule.leave(self.state, [name for name in leavers if name in known])
            self.identities.forget(leavers)
            log(INFO, "fedsteer: left for good: %s", few(leavers))
            self.save()
