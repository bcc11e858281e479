"""Who a reply comes from, so that coordinates are never attached to the wrong client.

Node ids of Flower are random: they change when an unkeyed SuperNode restarts and in every new
simulation. In this order a client is known by

    key-...      its public key, where SuperNodes are authenticated: stable whatever restarts
    client-...   the id it reports: a name or number of its own, such as its partition; one that
                 begins so already is taken as it is
    node-...     its bare node id, which is all there is if it reports nothing

Nobody can take over another's memory. Two claims to one id in a round are both refused. With
authenticated nodes a reported id belongs to the key that used it first. Without, it belongs to the
node that used it last for as long as that node is online, and a node cannot change its id; what
remains open then is a claim made while the real client is away, which only keys can rule out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from fedsteer.errors import ConfigurationError

REPORTED_KEYS = ("client-id", "partition-id")
"""Where a reply's metrics or config may carry the client's own id."""

LONGEST_ID = 200
ROUNDS_TO_MEET = 3
"""After these it is time to wonder about clients nobody answered as."""
NAMELESS = (
    "some clients report no id: they are strangers again when their SuperNode restarts. Report "
    "a partition-id (fedsteer.flower.report_identity), or authenticate SuperNodes"
)


def client_name(client: int | str) -> str:
    """The full name of a client a user names by its reported id: 7 is "client-7"."""
    text = str(client)
    return text if text.startswith(("client-", "key-", "node-")) else f"client-{text}"


def reported_name(reported: str) -> str:
    """The name of a client that reports this id; whatever it says, it is no key and no node."""
    return reported if reported.startswith("client-") else f"client-{reported}"


def key_name(public_key: bytes) -> str:
    """The name of the client with this public key (PEM in bytes, as Flower hands it out)."""
    if not isinstance(public_key, bytes):
        raise ConfigurationError(f"a public key is bytes, not {public_key!r}")
    return f"key-{sha256(public_key).hexdigest()[:32]}"


@dataclass
class Identities:
    """What is known about nodes, kept in the checkpoint."""

    authenticated: bool = False
    keys: dict[int, str] = field(default_factory=dict)  # node id -> key-...
    names: dict[int, str] = field(default_factory=dict)  # node id -> client-... it turned out to be
    owners: dict[str, str] = field(
        default_factory=dict
    )  # reported id -> key-... that used it first
    left: set[str] = field(default_factory=set)  # clients that ever left for good

    def meet(self, nodes: Mapping[int, bytes]) -> None:
        """Nodes that are online and their public keys (empty where there is none)."""
        self.keys |= {node: key_name(key) for node, key in nodes.items() if key}

    def expected(self, node: int) -> str:
        """Who this node is thought to be before it has answered."""
        if self.authenticated and node in self.keys:
            return self.keys[node]
        return self.names.get(node, f"node-{node}")

    def trusts(self, node: int) -> bool:
        """Whether what this node says may count at all."""
        return not self.authenticated or node in self.keys

    def met(self) -> set[str]:
        """Clients that ever said who they are or, where keys count, were online with one."""
        return set(self.names.values()) | (set(self.keys.values()) if self.authenticated else set())

    def leavers(self, names: Iterable[str], members: Iterable[Any]) -> list[str]:
        """The members among these; whoever left before has nothing to do, strangers are refused."""
        wanted, here = list(dict.fromkeys(names)), set(members)
        strangers = [name for name in wanted if name not in here and name not in self.left]
        if strangers:
            raise ConfigurationError(
                f"{strangers[0]} is no client of this run, so nobody leaves; known: "
                f"{few(here) or 'nobody'}"
            )
        return [name for name in wanted if name in here]

    def forget(self, names: Collection[str]) -> None:
        """These clients left for good; their nodes and ids are free again."""
        self.left |= set(names)
        self.keys = {node: key for node, key in self.keys.items() if key not in names}
        self.names = {node: name for node, name in self.names.items() if name not in names}
        self.owners = {said: key for said, key in self.owners.items() if key not in names}

    def resolve(
        self, claims: Mapping[int, str | None], online: Collection[int]
    ) -> tuple[dict[int, str], dict[int, str]]:
        """(node -> client, node -> reason for refusing it) for the replies of one round."""
        clients: dict[int, str] = {}
        refused: dict[int, str] = {}
        judge = self._by_key if self.authenticated else self._by_report
        for node, reported in claims.items():
            name, reason = judge(node, reported, online)
            if reason is None:
                clients[node] = name
            else:
                refused[node] = reason
        for name, count in Counter(clients.values()).items():
            if count > 1:
                for node in [node for node, claimed in clients.items() if claimed == name]:
                    refused[node] = f"{name} was claimed by {count} nodes in one round"
                    del clients[node]
        if self.authenticated:
            for node, name in clients.items():
                if (reported := claims[node]) is not None:
                    self.owners.setdefault(reported, name)
        else:
            taken = {name for node, name in clients.items() if claims[node] is not None}
            kept = {node: name for node, name in self.names.items() if name not in taken}
            self.names = kept | {node: name for node, name in clients.items() if name in taken}
        return clients, refused

    def _by_key(
        self, node: int, reported: str | None, online: Collection[int]
    ) -> tuple[str, str | None]:
        if not self.trusts(node):
            return "", "has no public key although nodes must be authenticated"
        key = self.keys[node]
        if reported is not None and self.owners.get(reported, key) != key:
            return key, f"reports id {reported!r}, which belongs to another key"
        return key, None

    def _by_report(
        self, node: int, reported: str | None, online: Collection[int]
    ) -> tuple[str, str | None]:
        before = self.names.get(node)
        if reported is None:
            return before or f"node-{node}", None
        name = reported_name(reported)
        if before is not None and before != name:
            return name, f"reports id {reported!r} but was {before} before"
        holder = next((other for other, held in self.names.items() if held == name), node)
        if holder != node and holder in online:
            return name, f"reports id {reported!r}, which node {holder} has and is still online"
        return name, None

    def pack(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "keys": [[node, key] for node, key in self.keys.items()],
            "names": [[node, name] for node, name in self.names.items()],
            "owners": self.owners,
            "left": sorted(self.left),
        }

    def restore(self, packed: Mapping[str, Any]) -> None:
        """The inverse of `pack`."""
        self.keys = {int(node): key for node, key in packed["keys"]}
        self.names = {int(node): name for node, name in packed["names"]}
        self.owners = dict(packed["owners"])
        self.left = set(packed.get("left", ()))  # older checkpoints know of nobody


def few(names: Collection[str]) -> str:
    """Enough names for one line."""
    return ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")


class Nameless:
    """Clients that are known by the ids of their nodes alone: told of once in each start."""

    def __init__(self) -> None:
        self.told = False

    def warning(
        self,
        answered: Iterable[str],
        members: Callable[[], Iterable[Any]],
        online: Collection[int],
    ) -> str:
        """What to say of them, where any has answered; nothing otherwise."""
        if self.told or not any(client.startswith("node-") for client in answered):
            return ""
        self.told = True
        here = {f"node-{node}" for node in online}
        gone = {name for name in map(str, members()) if name.startswith("node-")} - here
        if not gone:
            return NAMELESS
        return (
            f"{NAMELESS}. {len(gone)} that earlier rounds knew so are not online ({few(gone)}): if "
            "their nodes have other ids now, let go of them (strategy.leave), or they count on and "
            "shorten every step"
        )


class Awaited:
    """Clients that options name: one that nobody answers as may be misspelt."""

    def __init__(self, named: Mapping[str, set[str]]) -> None:
        self.named = named  # by option
        self.answered: set[str] = set()

    def missing_after(self, number: int, answered: Iterable[str], met: set[str]) -> str:
        """What to say after a round, once, when there was time for everybody to come."""
        if number > ROUNDS_TO_MEET:
            return ""
        self.answered.update(answered)
        known = self.answered | met
        missing = [
            f"{len(names - known)} of {len(names)} in {option} ({few(names - known)})"
            for option, names in self.named.items()
            if names - known
        ]
        if number < ROUNDS_TO_MEET or not missing:
            return ""
        seen = f"those who did: {few(known)}" if known else "nobody did"
        said = f"some named clients never answered: {'; '.join(missing)}"
        return f"after {number} rounds {said}. Misspelt, or away? {seen}"


def reported_id(records: Mapping[str, Any]) -> str | None:
    """The id a reply carries in any of its metric or config records, as text."""
    for key in REPORTED_KEYS:
        for record in records.values():
            value = record.get(key)
            if isinstance(value, (str, int, float)) and not isinstance(value, bool):
                plain = int(value) if isinstance(value, float) and value.is_integer() else value
                if len(str(plain)) > LONGEST_ID:
                    raise ValueError(f"its {key} is longer than {LONGEST_ID} characters")
                return str(plain)
    return None
