"""Privacy on Flower: noise on arrival, and counts of releases that no kill can lose.

A release is counted on disk before anything can be seen of it. If the server adds the noise, that
is once the update has arrived and before it is used, so an update whose round is lost by a kill
counts. If clients add it, it is before they are asked: what they send has left them, whether it
arrives or not.
"""

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
from flwr.serverapp import strategy

from fedsteer.errors import ConfigurationError
from fedsteer.flower.asking import Asked
from fedsteer.flower.replies import Reading
from fedsteer.privacy import Ledger, Privacy, epsilon, release, secret_normals
from fedsteer.reading import reading
from fedsteer.records.files import naming, plain, write_json
from fedsteer.records.names import PRIVACY

WRAPPERS = tuple(
    kind for name, kind in vars(strategy).items() if name.startswith("DifferentialPrivacy")
)
NO_WRAPPERS = (
    "Flower's differential privacy wrappers count on updates that are used once and weigh the "
    "same, and no rule here is like that: give it privacy=Privacy(clip=..., noise=...) instead"
)
CLIP, NOISE, ARRAYS = "privacy-clip", "privacy-noise", "privacy-arrays"
"""Keys of what a client is told that has to add the noise."""


@final
class Releases:
    """Who may still be asked, the noise, and the counts; all of it does nothing without privacy."""

    def __init__(self, privacy: Privacy | None, folder: Path | None) -> None:
        self.privacy = privacy or Privacy()
        self.ledger = Ledger(self.privacy)
        self._path = folder / PRIVACY if folder is not None and self.privacy.on else None

    @property
    def setup(self) -> dict[str, Any] | None:
        """What the counts are counts of, as JSON; None without privacy."""
        terms = {name: value for name, value in asdict(self.privacy).items() if name != "budget"}
        return plain(terms) if self.privacy.on else None

    @property
    def summary(self) -> str:
        """The terms in a line; empty without privacy."""
        own = self.privacy
        if not own.on:
            return ""
        noise = f"clip {own.clip:g}, noise of {own.noise:g} clips, added by the {own.where}"
        return f"{noise}; one release costs epsilon {epsilon(own, 1):.3g}"

    def load(self, *, anew: bool) -> None:
        """Take in the counts of the file, or start `anew`."""
        if self._path is None:
            return
        if anew:
            self._path.unlink(missing_ok=True)
        elif self._path.exists():
            with naming(self._path):
                content = self._path.read_bytes()
            with reading(self._path, "the counts of releases"):
                found = json.loads(content)
                setup = found["setup"]
                self.ledger.restore(found["releases"])
            if setup != self.setup:
                raise ConfigurationError(
                    f"{self._path} counts releases with other settings of privacy; choose another "
                    "folder, or set resume=False to start over there"
                )

    def within_budget(self, clients: Mapping[int, str]) -> dict[int, str]:
        """The nodes that may be asked for an update."""
        return {node: client for node, client in clients.items() if self.ledger.within(client)}

    def ask(self, clients: Iterable[str], steered: list[str]) -> dict[str, Any]:
        """These are about to be asked; returns what they must be told."""
        if not self.privacy.on or self.privacy.where == "server":
            return {}
        self._count(clients)
        return {CLIP: self.privacy.clip, NOISE: self.privacy.noise, ARRAYS: steered}

    def receive(self, reading: Reading, asked: Asked) -> None:
        """Put noised updates in the place of those that arrived, before anything reads them."""
        if not self.privacy.on:
            return
        if self.privacy.where == "client":  # a node that was unknown may turn out to be a client
            for reply in reading.usable:
                assumed = asked.clients[reply.node]
                if assumed != reply.client:
                    self._count([reply.client] * self.ledger.releases.pop(assumed, 0))
            return
        for reply in list(reading.usable):
            if not self.ledger.within(reply.client):
                reading.usable.remove(reply)
                reading.failed[reply.client] = "its privacy budget is spent"
        self._count(reply.client for reply in reading.usable)
        for reply in reading.usable:
            with np.errstate(over="ignore", invalid="ignore"):  # the rule drops what is not finite
                update = np.asarray(reply.update)
            reply.update = release(update, self.privacy, secret_normals)

    def _count(self, clients: Iterable[str]) -> None:
        self.ledger.count(clients)
        if self._path is not None:
            write_json(self._path, {"setup": self.setup, "releases": self.ledger.pack()})


def refuse_wrappers() -> None:
    """Refuse to be called by one of Flower's wrappers, which do not show themselves otherwise."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), WRAPPERS):
            raise ConfigurationError(NO_WRAPPERS)
        frame = frame.f_back
