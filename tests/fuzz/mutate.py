"""Changes to valid inputs: of bytes, and of JSON documents, which stay documents."""

from __future__ import annotations

import json
from copy import deepcopy
from random import Random
from typing import Any

DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]

ODD_VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 0.5, 1e308, float("nan"), float("inf"), 2**63, -(10**20), 10**4000),
    *("", "0", "\ud800", "\0\x1b[31m\x85", "a\nb\u2028c", "\ufffe\u202e", "</script>&<b", "os"),
    *("$\\frac{$", "=1+1", "../..", "x" * 3000, "9" * 5000, "int32", "train", "fresh"),
    *([], {}, [[]], [None], {"a": None}, [1, "2", 3.5], {"1": {"2": {}}}, DEEP),
]
ODD_KEYS = [value for value in ODD_VALUES if isinstance(value, str)]
TOKENS = [
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\n", b"\r", b'"', b"-", b"nan", b"1e999"),
    *(
        b"0x" + b"f" * 5000,
        b"9" * 5000,
        b"[" * 2000,
        b"{",
        b"=",
        b",",
        b".",
        b"1979-05-27",
        b"true",
    ),
]


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """One to four bytes or stretches of bytes changed, cut out, doubled, or put in."""
    found = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(found))
        end = min(len(found), at + random.choice((1, 1, 2, 4, 16, 200)))
        match random.randrange(5):
            case 0:
                del found[at:end]
            case 1:
                found[at:at] = found[at:end]
            case 2:
                found[at:end] = random.randbytes(end - at)
            case 3:
                found[at:at] = random.choice(TOKENS)
            case _:
                found[at:end] = bytes(byte ^ 1 << random.randrange(8) for byte in found[at:end])
    return bytes(found)


def mutated_document(data: bytes, random: Random) -> bytes:
    """One to three values of a JSON document replaced, left out, doubled or exchanged."""
    whole = [json.loads(data)]
    for _ in range(random.randint(1, 3)):
        places = list(_places(whole))
        inside, key = random.choice(places)
        match random.randrange(5):
            case 0 if inside is not whole:
                del inside[key]
            case 1 if isinstance(inside, dict):
                inside[random.choice(ODD_KEYS)] = inside.pop(key)
            case 2 if isinstance(inside, list) and inside is not whole:
                inside.insert(key, deepcopy(inside[key]))
            case 3:
                other, place = random.choice(places)
                inside[key] = deepcopy(other[place])
            case _:
                inside[key] = deepcopy(random.choice(ODD_VALUES))
    return json.dumps(whole[0]).encode()


def _places(inside: Any) -> Any:
    """Every value of a document, as where it is and its key."""
    waiting = [inside]
    while waiting:
        one = waiting.pop()
        pairs = one.items() if isinstance(one, dict) else enumerate(one)
        for key, value in pairs:
            yield one, key
            if isinstance(value, (dict, list)):
                waiting.append(value)
