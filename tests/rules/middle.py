"""Rules in the middle of their work, and a good round for them to spoil."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round
from tests.rules.enrolled import (
    DIM,
    ENROLLED,
    LIBRARIES,
    Enrolled,
    Played,
    events,
    start,
)

RULES_ONCE = {entry.name: entry for entry in reversed(ENROLLED.values()) if entry.preset == "paper"}
each_rule = pytest.mark.parametrize("entry", RULES_ONCE.values(), ids=RULES_ONCE.keys())


def in_the_middle(entry: Enrolled, policy: str, library: str = "numpy-float64") -> Played:
    """A rule that remembers something; the last round it saw is number 9."""
    rule = entry.rule(bad_clients=policy)
    happenings = events(12, rounds=9, departures=False)
    return start(rule).play(happenings, LIBRARIES[library])


def good_round(played: Played, clients: tuple[Any, ...] = (1, 4, 6)) -> Round:
    draw = np.random.default_rng(5)
    count = len(clients)
    return Round(
        number=10,
        clients=list(clients),
        updates=draw.standard_normal((count, DIM)),
        probabilities=[0.5] * count,
        steps=[2] * count,
        model=played.model,
    )
