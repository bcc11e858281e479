"""A step that ends midway: the state is as it was, or used up where it may be half written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsteer import Round, StateError, make_rule
from fedsteer.steering.kernels import numpy as in_numpy
from tests.rules.enrolled import DIM, SIZES, Enrolled, packed
from tests.rules.test_bad_input import each_rule, good_round, in_the_middle


@each_rule
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_step_that_fails_midway_leaves_the_state_alone(
    entry: Enrolled, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything before the commit: here the norm bound, after the pass."""
    played = in_the_middle(entry, "refuse")
    good, before = good_round(played), packed(played.state)

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(type(played.rule), "_bound", fails)
        with pytest.raises(error):
            played.rule.step(played.state, good)
    assert packed(played.state) == before
    played.rule.step(played.state, good)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("begun", [False, True])
def test_a_state_whose_columns_were_being_written_is_used_up(
    begun: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU does it, behind a pass that can still fail on the host."""
    rule = make_rule("fedsteer", core_set=[0, 1])
    updates = np.random.default_rng(3).standard_normal((2, DIM))
    state = rule.step(rule.init(DIM, SIZES), Round(1, [0, 1], updates, [0.5, 0.5])).state

    def fails(*_: object, keep: Any, **__: object) -> None:
        keep.queued = begun
        raise error

    monkeypatch.setattr(in_numpy, "one_pass", fails)
    with pytest.raises(error):
        rule.step(state, Round(2, [1, 0], updates, [0.5, 0.5]))
    monkeypatch.undo()
    if begun:
        with pytest.raises(StateError, match="earlier step"):
            state.pack()
    else:
        rule.step(state, Round(2, [1, 0], updates, [0.5, 0.5]))
