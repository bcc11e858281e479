"""A step that ends midway leaves the state as it was."""

from __future__ import annotations

import pytest

from fedsteer.steering.state import State
from tests.rules.enrolled import Enrolled, packed
from tests.rules.test_bad_input import each_rule, good_round, in_the_middle


@each_rule
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_step_that_fails_midway_leaves_the_state_alone(
    entry: Enrolled, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything before the commit: here the last call before it."""
    played = in_the_middle(entry, "refuse")
    good, before = good_round(played), packed(played.state)

    def fails(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(State, "renew", fails)
        with pytest.raises(error):
            played.rule.step(played.state, good)
    assert packed(played.state) == before
    played.rule.step(played.state, good)
