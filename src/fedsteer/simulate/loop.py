"""The only round loop: participation -> plan -> local training -> rule -> optimiser -> records.

Training rounds are numbered 1..T for every rule, and participation and batches are drawn by that
number: a rule with a warm-up meets the same training rounds as a rule without one. The warm-up
itself takes place in rounds T+1, T+2, ... of the participation process.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor, as_tensor

from fedsteer.draws import generator
from fedsteer.errors import ConfigurationError, Diverged
from fedsteer.privacy import Ledger, release
from fedsteer.records.files import utc_now
from fedsteer.records.rows import Totals, client_rows, round_row
from fedsteer.rules import Requests, Round, Rule
from fedsteer.simulate.cells import MOST_WARM_UP, refuse_endless_warm_up
from fedsteer.simulate.world import World
from fedsteer.steering.optimiser import ServerOptimiser
from fedsteer.steering.rounds import REPORTED
from fedsteer.steering.state import Arrays, pack_server, unpack_server
from fedsteer.training import Order, Trained, evaluate


@dataclass(frozen=True)
class Asked:
    """What a round asks for, between its two halves."""

    requests: Requests
    orders: list[Order]
    training: bool
    began: float


@dataclass(frozen=True)
class RoundResult:
    """What happened in one round: its rows of rounds, timing and clients.jsonl."""

    row: dict[str, Any]
    timing: dict[str, Any]
    clients: list[dict[str, Any]]


@dataclass
class Simulation:
    """A run in memory: iterate `rounds()`, `pack()` between rounds, `restore()` to resume."""

    world: World
    rule: Rule
    number: int = 0  # rounds so far, warm-up included
    trained: int = 0  # training rounds so far
    totals: Totals = field(default_factory=Totals)
    watched: list[Any] = field(default_factory=list)  # (watched, k) coordinates per round
    last: dict[str, Any] = field(default_factory=dict)  # the last evaluation

    def __post_init__(self) -> None:
        run, server = self.world.experiment.run, self.world.experiment.server
        self.initial = self.world.network.initial(self.world.seed).to(run.device)
        self.model: Tensor = self.initial
        self.state = self.rule.init(self.world.network.dim, self.world.sizes, like=self.model)
        own_rate = ServerOptimiser(average=server.average)
        self.optimiser = own_rate if self.rule.own_rate else server
        self.moments = self.optimiser.init()
        self.ledger = Ledger(self.world.experiment.privacy)
        self.watch = [client for client in run.watch if 0 <= client < self.world.partition.clients]
        for owner in getattr(self.rule.options, "core_set", None) or ():
            if owner not in range(self.world.partition.clients):
                raise ConfigurationError(
                    f"core_set names {owner!r}; clients are 0 to {self.world.partition.clients - 1}"
                )
        refuse_endless_warm_up(self.rule, self.world.participation.probabilities)

    @property
    def finished(self) -> bool:
        """Whether all training rounds are done, or all privacy budgets are spent."""
        done = self.trained >= self.world.experiment.run.rounds
        return done or not any(map(self.ledger.within, range(self.world.partition.clients)))

    def rounds(self) -> Iterator[RoundResult]:
        """Round after round until the end."""
        while not self.finished:
            yield self.round()

    def round(self) -> RoundResult:
        asked = self.ask()
        trained = self.world.engine.train_orders(asked.orders)
        return self.absorb(asked, trained)

    def ask(self) -> Asked:
        """The first half of a round: who is present, and what the rule asks of them."""
        began = perf_counter()
        training = self.rule.phase(self.state) == "train"
        self.number += 1
        total = self.world.experiment.run.rounds
        drawn = self.trained + 1 if training else total + self.number
        if not training and self.number > MOST_WARM_UP:
            raise ConfigurationError("the warm-up waits for a client that never takes part")
        available, able = self.world.participation.present(drawn).tolist(), self.ledger.within
        requests = self.rule.plan(self.state, self.number, list(filter(able, available)))
        return Asked(
            requests=requests,
            orders=self._orders(requests, drawn, drawn if training else 0),
            training=training,
            began=began,
        )

    def absorb(self, asked: Asked, trained: Trained) -> RoundResult:
        """The second half: the rule steps, the model moves, the result is put together."""
        clock = [asked.began, perf_counter()]
        requests, training = asked.requests, asked.training
        answers = self._private(self._answers(requests, trained))
        try:
            step = self.rule.step(self.state, answers)
            self.state = step.state
            if step.action == "move":
                moved = self.optimiser.step(self.moments, self.model, step.delta)
                self.model, self.moments = moved
            elif step.action == "restart":
                self.model, self.moments = self.initial, self.optimiser.init()
        except Diverged as error:
            raise Diverged(
                f"training diverges in round {self.number}: {error}; a lower training.rate or "
                f"options.{self.rule.name}.norm_bound may help",
                error.clients,
            ) from error
        self.trained += training
        clock.append(perf_counter())
        evaluation: dict[str, Any] = {}
        if training:
            positions = self.rule.coordinates(self.state, self.watch) if self.watch else None
            if positions is not None:
                self.watched.append(positions.astype(np.float32))
            if self.trained % self.world.experiment.run.evaluate_every == 0 or self.finished:
                self.last = evaluation = self._evaluation()
        clock.append(perf_counter())
        timing = {"round": self.number, "time": utc_now(), "seconds": clock[-1] - clock[0]}
        parts = zip(("train", "rule", "evaluate"), pairwise(clock), strict=True)
        timing |= {name: end - start for name, (start, end) in parts}
        columns = self._count(requests, training)
        columns["train_loss"] = float(trained.losses.mean()) if len(trained.losses) else None
        work = zip(requests.everyone, trained.losses.tolist(), trained.steps.tolist(), strict=True)
        cost = self.ledger.columns
        extras = {
            client: {"loss": loss, "steps": steps} | cost(client) for client, loss, steps in work
        }
        found, collected = step.diagnostics, set(requests.collect)
        return RoundResult(
            row=round_row(self.number, found, **columns, **cost()) | evaluation,
            timing=timing,
            clients=client_rows(self.number, found, collected, extras),
        )

    def result(self) -> dict[str, Any]:
        """The summary of a finished run."""
        totals = self.totals.result(self.number, self.trained)
        return self.last | totals | self.ledger.columns()

    def pack(self) -> tuple[Arrays, dict[str, Any]]:
        """Everything needed to resume exactly here."""
        arrays, server = pack_server(self.state, self.moments, self.model)
        if self.watched:
            arrays["watched"] = np.stack(self.watched)
        meta = {"number": self.number, "trained": self.trained, "totals": asdict(self.totals)}
        return arrays, meta | {"last": self.last, "releases": self.ledger.pack()} | server

    def restore(self, arrays: Arrays, meta: dict[str, Any]) -> None:
        """The inverse of `pack`."""
        server = unpack_server(arrays, meta, like=self.initial)
        self.state, self.moments, self.model = server
        self.number, self.trained = int(meta["number"]), int(meta["trained"])
        self.totals, self.last = Totals(**meta["totals"]), meta["last"]
        self.watched = list(arrays.get("watched", []))
        self.ledger.restore(meta.get("releases", ()))

    def _orders(self, asked: Requests, drawn: int, trained: int) -> list[Order]:
        """What each client asked has to do; participation and batches are those of `drawn`.

        trained   the training round, 0 in a warm-up
        """
        points = self.world.partition.at(trained).indices
        control = asked.shared.get("control")
        proximal = float(asked.shared.get("proximal", 0.0))
        orders = []
        for client in asked.everyone:
            own = asked.each.get(client, {})
            correction = own.get("correction")
            if control is not None:
                mine = own.get("control")
                correction = (control if mine is None else control - mine).to(self.model.dtype)
            orders.append(
                Order(
                    client=int(client),
                    points=points[int(client)],
                    seed=self.world.seed,
                    round=drawn,
                    start=own.get("start", self.model),
                    correction=correction,
                    proximal=proximal,
                )
            )
        return orders

    def _answers(self, asked: Requests, trained: Trained) -> Round:
        clients = asked.everyone
        reported = self.world.reported
        return Round(
            number=self.number,
            clients=clients,
            updates=trained.updates,
            probabilities=None if reported is None else reported[np.array(clients, np.int64)],
            model=self.model,
            refresh=asked.refresh or None,
            **{name: getattr(trained, name) for name in REPORTED},
        )

    def _private(self, answers: Round) -> Round:
        """The answers clipped and noised, if the experiment asks for privacy."""
        privacy, clients = self.ledger.privacy, answers.clients
        if not privacy.on or not clients:
            return answers
        rows = []
        for client, update in zip(clients, answers.updates, strict=True):
            draw = generator(self.world.seed, "privacy", round=self.number, client=client)
            rows.append(release(update.cpu().numpy(), privacy, draw.standard_normal))
        self.ledger.count(clients)
        return replace(answers, updates=as_tensor(np.stack(rows)).to(answers.updates))

    def _count(self, asked: Requests, training: bool) -> dict[str, Any]:
        """Add the round to the totals; its columns for traffic and memory."""
        count, size = len(asked.everyone), 4 * self.world.network.dim
        # A start model travels instead of the global one, control variates beside it.
        controls = count * ("control" in asked.shared)
        controls += sum("control" in own or "correction" in own for own in asked.each.values())
        return self.totals.count(
            asked,
            training_round=self.trained if training else 0,
            uploads=count,
            bytes_up=count * size,
            bytes_down=(count + controls) * size,
            server_bytes=self.state.nbytes,
        )

    @property
    def averaged(self) -> Tensor | None:
        """The averaged model, if the experiment asks for one and the model has moved."""
        return self.optimiser.averaged(self.moments)

    def _evaluation(self) -> dict[str, Any]:
        world, held = self.world, self.world.partition.at(self.trained)
        points, classes = (world.test_images, world.test_labels), world.dataset.classes
        found = evaluate(world.network, self.model, *points, classes)
        row: dict[str, Any] = {}
        models = {"": self.model} | ({} if self.averaged is None else {"average_": self.averaged})
        if world.held_out is not None:
            for prefix, model in models.items():
                aside = evaluate(world.network, model, *world.held_out, classes)
                row[f"{prefix}held_out_accuracy"] = aside.accuracy
        if self.averaged is not None:
            average = evaluate(world.network, self.averaged, *points, classes)
            row |= {"average_accuracy": average.accuracy, "average_loss": average.loss}
        return row | {
            "accuracy": found.accuracy,
            "loss": found.loss,
            "class_accuracy": found.class_accuracy.tolist(),
            "group_accuracy": found.group_accuracy(held.label_groups),
            "client_accuracy": found.client_accuracy(held.holds.astype(np.float64)),
        }
