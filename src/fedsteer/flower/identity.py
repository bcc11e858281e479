"""Which client a reply comes from, so that coordinates never go to the wrong one.

A client is known by its public key (`key-...`) if SuperNodes are authenticated, else by the id that
it reports (`client-...`), else by its node id (`node-...`), which Flower draws anew for an unkeyed
SuperNode that restarts. No client can take over another's memory: docs/flower.md says how.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from fedsteer.errors import ConfigurationError

REPORTED_KEYS = ("client-id", "partition-id")
"""Keys of a reply's metrics or config that may hold the client's own id."""

LONGEST_ID = 200
ROUNDS_TO_MEET = 3
"""Clients that options name and that have not answered by then are worth a warning."""
NAMELESS = (
    "some clients report no id, so they become strangers when their SuperNode restarts. Report a "
    "partition-id (fedsteer.flower.report_identity), or authenticate SuperNodes"
)
GONE = (
    ". {} from earlier rounds are not online ({}): if their nodes have new ids, remove the old "
    "ones (strategy.leave). Until then they count as members and shorten every step"
)


def client_name(client: int | str, prefixes: tuple[str, ...] = ("client-", "key-", "node-")) -> str:
    """The full name of a client that an option names by its reported id: 7 is "client-7"."""
    return str(client) if str(client).startswith(prefixes) else f"client-{client}"


def key_name(public_key: bytes) -> str:
    """The name of the client with this public key (PEM as bytes, the way Flower passes it)."""
    if not isinstance(public_key, bytes):
        raise ConfigurationError(f"a public key is bytes, not {public_key!r}")
    return f"key-{sha256(public_key).hexdigest()[:32]}"


@dataclass
class Identities:
    """What is known about nodes, kept in the checkpoint."""

    authenticated: bool = False
    keys: dict[int, str] = field(default_factory=dict)  # node id -> key-...
    names: dict[int, str] = field(default_factory=dict)  # node id -> client-... as it reported
    left: set[str] = field(default_factory=set)  # clients that have left for good at some time
    nameless_told: bool = False  # once per process, so not in the checkpoint

    def meet(self, nodes: Mapping[int, bytes]) -> dict[int, str]:
        """Remember the nodes' public keys (empty: none); return the client each node counts as."""
        self.keys |= {node: key_name(key) for node, key in nodes.items() if key}
        return {node: self.expected(node) for node in nodes}

    def expected(self, node: int) -> str:
        """The client that this node counts as until it answers."""
        if self.authenticated and node in self.keys:
            return self.keys[node]
        return self.names.get(node, f"node-{node}")

    def trusts(self, node: int) -> bool:
        """Whether replies of this node may be used."""
        return not self.authenticated or node in self.keys

    def leavers(self, names: Iterable[str], members: Iterable[Any]) -> list[str]:
        """The clients of these names. Those that left before are skipped, strangers refused."""
        wanted, known = list(dict.fromkeys(names)), set(members)
        met = known.union(self.left, self.names.values(), self.keys.values())
        if strangers := [name for name in wanted if name not in met]:
            raise ConfigurationError(
                f"{strangers[0]} is not a client of this run, so no client leaves; known: "
                f"{few(known) or 'none'}"
            )
        return [name for name in wanted if name in known or name not in self.left]

    def forget(self, names: Collection[str]) -> None:
        """Forget clients that left for good; their nodes and ids are free again."""
        self.left |= set(names)
        self.keys = {node: key for node, key in self.keys.items() if key not in names}
        self.names = {node: name for node, name in self.names.items() if name not in names}

    def resolve(
        self, claims: Mapping[int, str | None], online: Collection[int]
    ) -> tuple[dict[int, str], dict[int, str]]:
        """(node -> client, node -> reason to refuse it) for the replies of one round."""
        found = {node: self._identify(node, said, online) for node, said in claims.items()}
        clients = {node: name for node, (name, why_not) in found.items() if not why_not}
        refused = {node: why_not for node, (_, why_not) in found.items() if why_not}
        claimed = Counter(clients.values())
        for node, name in list(clients.items()):
            if claimed[name] > 1:
                refused[node] = f"{name} was claimed by {claimed[name]} nodes in one round"
                del clients[node]
        for node, name in clients.items():
            if claims[node] is not None and not self.authenticated:
                others = {other: held for other, held in self.names.items() if held != name}
                self.names = others | {node: name}
        return clients, refused

    def _identify(
        self, node: int, reported: str | None, online: Collection[int]
    ) -> tuple[str, str]:
        """The client that a reply comes from, and why that is refused ("" if it is not)."""
        before = self.expected(node)
        if not self.trusts(node):
            return before, "has no public key although nodes must be authenticated"
        if reported is None or self.authenticated:
            return before, ""
        name = client_name(reported, ("client-",))  # it cannot become a key or node by saying so
        if node in self.names and before != name:
            return name, f"reports id {reported!r} but was {before} before"
        holder = next((other for other, held in self.names.items() if held == name), node)
        if holder != node and holder in online:
            return name, f"reports id {reported!r}, which belongs to node {holder}, still online"
        return name, ""

    def hints(
        self,
        number: int,
        answered: set[str],
        *,
        named: Mapping[str, set[str]],
        members: Iterable[Any],
        online: Collection[int],
    ) -> Iterator[str]:
        """Warnings after a round. `named` are the clients that options name, by option."""
        met = answered.union(self.names.values(), self.keys.values() if self.authenticated else ())
        missing = [
            f"{len(names - met)} of {len(names)} in {option} ({few(names - met)})"
            for option, names in named.items()
            if names - met
        ]
        if number == ROUNDS_TO_MEET and missing:
            others = f"those who did: {few(met)}" if met else "none did"
            yield (
                f"after {ROUNDS_TO_MEET} rounds some named clients never answered: "
                f"{'; '.join(missing)}. Misspelt, or away? {others}"
            )
        if not self.nameless_told and any(client.startswith("node-") for client in answered):
            self.nameless_told = True
            nameless = {name for name in map(str, members) if name.startswith("node-")}
            gone = nameless - {f"node-{node}" for node in online}
            yield NAMELESS + (GONE.format(len(gone), few(gone)) if gone else "")

    def pack(self) -> dict[str, Any]:
        return {
            "keys": list(self.keys.items()),
            "names": list(self.names.items()),
            "left": sorted(self.left),
        }

    def restore(self, packed: Mapping[str, Any]) -> None:
        self.keys, self.names = dict(packed["keys"]), dict(packed["names"])
        self.left = set(packed["left"])


def few(names: Collection[str]) -> str:
    """Up to five names, for a message."""
    return ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")


def reported_id(records: Mapping[str, Any]) -> str | None:
    """The id that a reply carries in any of its metric or config records, as text."""
    for key in REPORTED_KEYS:
        for record in records.values():
            value = record.get(key)
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                plain = int(value) if isinstance(value, float) and value.is_integer() else value
                if len(str(plain)) > LONGEST_ID:
                    raise ValueError(f"its {key} is longer than {LONGEST_ID} characters")
                return str(plain)
    return None
